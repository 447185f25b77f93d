//! Quantities with a unit of their own.

/// A rate in bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rate(pub u64);

impl Rate {
    /// The whole bytes per second, as SO_MAX_PACING_RATE takes them (socket(7)).
    pub const fn bytes_per_second(self) -> u64 {
        self.0 / 8
    }
}

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Size(pub u64);
