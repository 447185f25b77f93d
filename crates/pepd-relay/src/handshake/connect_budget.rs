//! How much a flood may make the box send.

use std::time::{Duration, Instant};

/// The number of upstream legs that may be tried without a client that comes for them: as many at
/// once and per second as the table has room for. Those of clients that do come cost nothing, so
/// that this bounds what a flood makes the box send, and nothing else.
#[derive(Debug)]
pub(super) struct ConnectBudget {
    size: usize,
    left: usize,
    filled: Instant,
}

impl ConnectBudget {
    pub(super) fn new(size: usize, now: Instant) -> Self {
        Self {
            size,
            left: size,
            filled: now,
        }
    }

    pub(super) fn set_size(&mut self, size: usize) {
        self.size = size;
    }

    /// Returns whether one more may be tried.
    pub(super) fn has_any(&self, now: Instant) -> bool {
        if self.is_due(now) {
            self.size > 0
        } else {
            self.left > 0
        }
    }

    /// Notes that one more is tried.
    pub(super) fn take(&mut self, now: Instant) {
        if self.is_due(now) {
            self.left = self.size;
            self.filled = now;
        }
        self.left = self.left.saturating_sub(1);
    }

    /// Notes that one that was tried was not in vain.
    pub(super) fn give_back(&mut self) {
        self.left = (self.left + 1).min(self.size);
    }

    /// Returns whether it is to be filled again.
    fn is_due(&self, now: Instant) -> bool {
        const EVERY: Duration = Duration::from_secs(1);
        now.saturating_duration_since(self.filled) >= EVERY
    }
}
