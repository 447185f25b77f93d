//! What a guest's run came to.

use std::time::Duration;

/// The directory where the guest finds the results folder; `PEPD_RESULTS` in its environment says
/// the same.
pub const RESULTS: &str = "/run/results";

/// The way in which the command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It ran to its end, with this status (128 + the signal if one killed it).
    Exited(u8),
    /// The guest ended before the command did: a kernel panic, or the command switched it off.
    /// Holds the end of the console.
    Died(String),
    /// The time limit passed. Holds the end of the console.
    TimedOut(String),
}

/// A guest that has run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The way in which the command ended.
    pub ended: Ended,
    /// The time from the start of QEMU to the start of the command, copies included; `None` if it
    /// never started.
    pub boot: Option<Duration>,
    /// The number of times that the command, and what it started, asked the host for a file or
    /// wrote results; on [`Clock::Virtual`](super::guest::Clock::Virtual) each time lets the clock
    /// run on. `None` if the guest did not say.
    pub host_requests: Option<u64>,
}
