//! A receiver: what has arrived, and when it is acknowledged.

use std::collections::BTreeSet;

/// How long an acknowledgement is delayed at most, seconds (Linux, `TCP_DELACK_MIN`).
pub(super) const DELAY: f64 = 0.04;

/// What has arrived of a leg.
#[derive(Clone, Debug, Default)]
pub(super) struct Receiver {
    /// The first packet that is missing.
    next: u64,
    /// What has arrived beyond it.
    beyond: BTreeSet<u64>,
    /// What has arrived and is not acknowledged.
    waiting: u32,
}

impl Receiver {
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Whether a packet would be next.
    pub(super) fn is_next(&self, number: u64) -> bool {
        number == self.next
    }

    /// Takes a packet; gives whether it is acknowledged at once.
    pub(super) fn take(&mut self, number: u64, delays: bool) -> bool {
        let in_order = self.is_next(number) && self.beyond.is_empty();
        if number >= self.next {
            self.beyond.insert(number);
        }
        while self.beyond.remove(&self.next) {
            self.next += 1;
        }
        self.waiting += 1;
        !delays || !in_order || self.waiting >= 2
    }

    /// Whether something waits to be acknowledged.
    pub(super) fn owes(&self) -> bool {
        self.waiting > 0
    }

    pub(super) fn acknowledged(&mut self) {
        self.waiting = 0;
    }
}
