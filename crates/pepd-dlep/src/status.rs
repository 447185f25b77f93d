//! How a request has gone, or why a session ends.

use std::fmt;

/// A status code (section 13.1). Those below 128 leave the session as it is, all others end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusCode(pub u8);

impl StatusCode {
    /// The request was done.
    pub const SUCCESS: Self = Self(0);
    /// The receiver wants to hear no more of the subject.
    pub const NOT_INTERESTED: Self = Self(1);
    /// The receiver refuses.
    pub const REQUEST_DENIED: Self = Self(2);
    /// Items contradict one another, or what is known.
    pub const INCONSISTENT_DATA: Self = Self(3);
    /// The message is not one of those that are known.
    pub const UNKNOWN_MESSAGE: Self = Self(128);
    /// The message has no place in this state, or from this side.
    pub const UNEXPECTED_MESSAGE: Self = Self(129);
    /// An item is not understood, wrong, missing, or there too often.
    pub const INVALID_DATA: Self = Self(130);
    /// The message is about a destination that has not been announced.
    pub const INVALID_DESTINATION: Self = Self(131);
    /// Nothing was heard for too long.
    pub const TIMED_OUT: Self = Self(132);
    /// The sender ends.
    pub const SHUTTING_DOWN: Self = Self(255);

    /// Returns whether it ends the session.
    pub fn is_fatal(self) -> bool {
        self.0 >= 128
    }
}

impl fmt::Display for StatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::SUCCESS => "success",
            Self::NOT_INTERESTED => "not interested",
            Self::REQUEST_DENIED => "request denied",
            Self::INCONSISTENT_DATA => "inconsistent data",
            Self::UNKNOWN_MESSAGE => "unknown message",
            Self::UNEXPECTED_MESSAGE => "unexpected message",
            Self::INVALID_DATA => "invalid data",
            Self::INVALID_DESTINATION => "invalid destination",
            Self::TIMED_OUT => "timed out",
            Self::SHUTTING_DOWN => "shutting down",
            Self(code) => return write!(f, "status {code}"),
        };
        f.write_str(name)
    }
}

/// A status code, and what its sender has to say about it (section 13.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The code.
    pub code: StatusCode,
    /// Text for people. Not trusted.
    pub text: String,
}

impl From<StatusCode> for Status {
    fn from(code: StatusCode) -> Self {
        let text = String::new();
        Self { code, text }
    }
}
