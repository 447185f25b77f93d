//! What all errors of this crate have in common: a class, and drift.

/// The class of an error, which decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The kernel or the host lacks something, or something is in the way: 69.
    Unavailable,
    /// The host did not answer in time, and may the next time: 75.
    Temporary,
    /// CAP_NET_ADMIN is missing: 77.
    NotPermitted,
    /// Anything else: 70.
    Internal,
}

/// An error of this crate's, whichever operation it is of.
pub trait Classify: std::error::Error {
    /// Gives the class of the error.
    fn kind(&self) -> Kind;

    /// Gives the exit code of sysexits.h for this error: 69, 70, 75 or 77.
    fn exit_code(&self) -> u8 {
        match self.kind() {
            Kind::Unavailable => 69,
            Kind::Internal => 70,
            Kind::Temporary => 75,
            Kind::NotPermitted => 77,
        }
    }
}

/// Something that is not in the kernel as it was installed.
#[derive(Debug, thiserror::Error)]
#[error("{what}; something else changed it: `pepd down` and a restart install it anew")]
pub struct Drift {
    /// The difference, in words.
    pub what: String,
}

impl Drift {
    pub(crate) fn new(what: impl Into<String>) -> Drift {
        Drift { what: what.into() }
    }
}

impl Classify for Drift {
    fn kind(&self) -> Kind {
        Kind::Internal
    }
}
