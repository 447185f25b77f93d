//! What an operator is told about the host.

use std::fmt;

/// Something that does not stop pepd, but that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// A sentence on what is the matter and what follows from it.
    pub text: String,
    /// A sentence on what to do about it.
    pub cure: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.text, self.cure)
    }
}
