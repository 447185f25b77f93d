//! How much a flood may make the box send.

use std::time::{Duration, Instant};

/// How many upstream legs may be tried without a client that comes for them: as many at once
/// and per second as the table has room for. Those of clients that do come cost nothing, so
/// that this bounds what a flood makes the box send, and nothing else.
#[derive(Debug)]
pub(super) struct Budget {
    size: usize,
    left: usize,
    filled: Instant,
}

impl Budget {
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

    pub(super) fn take(&mut self, now: Instant) -> bool {
        const REFILL: Duration = Duration::from_secs(1);
        if now.saturating_duration_since(self.filled) >= REFILL {
            self.left = self.size;
            self.filled = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    pub(super) fn give_back(&mut self) {
        self.left = (self.left + 1).min(self.size);
    }
}
