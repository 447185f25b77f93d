//! `initial_window` of a leg.

use std::fmt;

/// What a connection may send before anything is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InitialWindow {
    /// So many segments.
    Segments(u32),
    /// What connections to the same network were seen to carry, with the kernel's controls.
    Auto,
}

impl InitialWindow {
    /// The name of [`InitialWindow::Auto`] in the file.
    pub const AUTO: &str = "auto";
}

impl fmt::Display for InitialWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segments(segments) => segments.fmt(f),
            Self::Auto => f.write_str(Self::AUTO),
        }
    }
}
