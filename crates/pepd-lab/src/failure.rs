//! Errors that have an exit status of their own (sysexits.h).

/// An error that ends the program with an exit status of its own.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The exit status.
    pub status: u8,
    message: String,
}

impl Failure {
    /// Returns EX_USAGE: the command line asks for something that is not there.
    pub fn usage(message: String) -> Self {
        Self {
            status: 64,
            message,
        }
    }

    /// Returns EX_UNAVAILABLE: the machine lacks something.
    pub fn unavailable(message: String) -> Self {
        Self {
            status: 69,
            message,
        }
    }

    /// Returns EX_SOFTWARE: something inside has gone wrong.
    pub fn internal(message: String) -> Self {
        Self {
            status: 70,
            message,
        }
    }

    /// Returns EX_NOPERM: the user may not do this.
    pub fn not_permitted(message: String) -> Self {
        Self {
            status: 77,
            message,
        }
    }

    /// Passes on what the same program in a guest ended with; it has said why.
    pub fn passed_on(status: u8) -> Self {
        Self {
            status,
            message: "the run in the guest has failed: see above".to_owned(),
        }
    }
}
