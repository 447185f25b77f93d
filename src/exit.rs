//! Exit codes (sysexits.h), chosen by what went wrong.

use std::fmt;

/// `pepd doctor` has found something that stops `run` or connections, or the box is not ready.
pub const FOUND: u8 = 1;

/// EX_USAGE: the command line was wrong.
pub const USAGE: u8 = Kind::Usage as u8;

/// The code of [`Failure::unavailable`], for a thread that ends the process.
pub const UNAVAILABLE: u8 = Kind::Unavailable as u8;

/// The exit codes and what they mean, for `--help` and the manual page.
pub const CODES: &[(u8, &str)] = &[
    (0, "all went well"),
    (
        FOUND,
        "`doctor` has found what would stop `run` or connections, or the box is not `ready`",
    ),
    (USAGE, "the command line was wrong"),
    (
        UNAVAILABLE,
        "the kernel or the host lacks something that is named, or no daemon answers",
    ),
    (Kind::Internal as u8, "an internal error"),
    (
        Kind::Temporary as u8,
        "the host did not answer in time, has no memory or descriptors now, or another pepd runs \
         already: it may work later",
    ),
    (
        Kind::NotPermitted as u8,
        "a capability, or the permission to ask the daemon, is missing",
    ),
    (Kind::Configuration as u8, "the configuration is wrong"),
];

/// A failure that ends the process, with the exit code that tells what kind it is.
#[derive(Debug)]
pub struct Failure {
    kind: Kind,
    message: String,
}

/// The result of a subcommand.
pub type Result<T = ()> = std::result::Result<T, Failure>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// EX_USAGE: the command line was wrong.
    Usage = 64,
    /// EX_UNAVAILABLE: the kernel or the host lacks something.
    Unavailable = 69,
    /// EX_SOFTWARE: something that should not happen.
    Internal = 70,
    /// EX_TEMPFAIL: it may work later.
    Temporary = 75,
    /// EX_NOPERM: a capability or a permission is missing.
    NotPermitted = 77,
    /// EX_CONFIG: the configuration is wrong.
    Configuration = 78,
}

impl Failure {
    /// Fails because the command line asks for what cannot be; the message says what would be right.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(Kind::Usage, format!("pepd: {message}"))
    }

    /// Fails because the kernel or the host lacks something that the message names, with the cure.
    pub fn unavailable(message: impl fmt::Display) -> Self {
        Self::new(Kind::Unavailable, format!("pepd: {message}"))
    }

    /// Fails because of something that should not happen: what was tried, and what the system said.
    pub fn internal(what: &str, error: impl fmt::Display) -> Self {
        Self::new(Kind::Internal, format!("pepd: {what}: {error}"))
    }

    /// Fails because not all of what was asked for could be done; the message says what could not.
    pub fn stays(message: impl fmt::Display) -> Self {
        Self::new(Kind::Internal, format!("pepd: {message}"))
    }

    /// Fails because of something that the message names and that may be different later.
    pub fn temporary(message: impl fmt::Display) -> Self {
        Self::new(Kind::Temporary, format!("pepd: {message}"))
    }

    /// Fails because a capability is missing that the message names.
    pub fn not_permitted(message: impl fmt::Display) -> Self {
        Self::new(Kind::NotPermitted, format!("pepd: {message}"))
    }

    /// Fails because the configuration is wrong; the report says where and what.
    pub fn configuration(report: String) -> Self {
        Self::new(Kind::Configuration, report)
    }

    fn new(kind: Kind, message: String) -> Self {
        Self { kind, message }
    }

    /// Says something more in a line of its own.
    pub fn and(self, more: impl fmt::Display) -> Self {
        Self {
            message: format!("{}\n{more}", self.message.trim_end()),
            ..self
        }
    }

    /// Gives the exit code.
    pub fn code(&self) -> u8 {
        self.kind as u8
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Failure {
    /// Converts an error about kernel state that could not be made, found or removed.
    fn kernel_state(error: &impl pepd_net::Classify) -> Self {
        match error.kind() {
            pepd_net::Kind::Unavailable => Self::unavailable(error),
            pepd_net::Kind::Temporary => Self::temporary(error),
            pepd_net::Kind::NotPermitted => Self::not_permitted(error),
            pepd_net::Kind::Internal => Self::internal("kernel state", error),
        }
    }
}

impl From<pepd_net::InstallError> for Failure {
    fn from(error: pepd_net::InstallError) -> Self {
        Self::kernel_state(&error)
    }
}

impl From<pepd_net::RemoveError> for Failure {
    fn from(error: pepd_net::RemoveError) -> Self {
        Self::kernel_state(&error)
    }
}

impl From<pepd_net::QueueBackendError> for Failure {
    fn from(error: pepd_net::QueueBackendError) -> Self {
        Self::kernel_state(&error)
    }
}

impl From<pepd_net::GateError> for Failure {
    fn from(error: pepd_net::GateError) -> Self {
        Self::kernel_state(&error)
    }
}

impl From<pepd_net::WatchError> for Failure {
    fn from(error: pepd_net::WatchError) -> Self {
        Self::kernel_state(&error)
    }
}

impl From<pepd_relay::ProbeError> for Failure {
    fn from(error: pepd_relay::ProbeError) -> Self {
        match error {
            pepd_relay::ProbeError::NotPermitted { .. } => Self::not_permitted(error),
            pepd_relay::ProbeError::Socket(_) => Self::internal("probe", error),
            pepd_relay::ProbeError::Congestion { .. } | pepd_relay::ProbeError::Option { .. } => {
                Self::unavailable(error)
            }
        }
    }
}

impl From<pepd_bpf::Error> for Failure {
    fn from(error: pepd_bpf::Error) -> Self {
        match error {
            pepd_bpf::Error::NotPermitted { .. } => Self::not_permitted(error),
            _ => Self::unavailable(error),
        }
    }
}

impl From<pepd_relay::ListenError> for Failure {
    fn from(error: pepd_relay::ListenError) -> Self {
        if error.is_shortage() {
            return Self::temporary(error);
        }
        Self::unavailable(error)
    }
}
