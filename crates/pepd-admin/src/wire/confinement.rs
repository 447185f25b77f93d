//! What the daemon may still do.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What keeps a daemon that has been taken over from doing more than its work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Confinement {
    /// The user that it runs as.
    pub user: String,
    /// The capabilities that it has kept.
    pub capabilities: Vec<String>,
    /// Whether the system calls that it has no use for are refused (seccomp).
    pub system_calls_filtered: bool,
    /// The version of Landlock by which files are read-only and few programs may be run; none where
    /// the kernel lacks it.
    pub landlock: Option<u32>,
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}, {}", self.user, self.capabilities.join(" "))?;
        write!(
            f,
            ", system calls {}",
            match self.system_calls_filtered {
                true => "filtered",
                false => "not filtered",
            }
        )?;
        match self.landlock {
            Some(version) => write!(f, ", files read-only (Landlock {version})"),
            None => write!(f, ", files not confined"),
        }
    }
}
