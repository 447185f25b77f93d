//! What is known of a leg before anything is seen of it.

use std::ops::RangeInclusive;

/// What was known of a leg before, as by a process that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// What its link carried, in bytes a second.
    pub capacity: f64,
    /// The least round trip, in seconds.
    pub rtt: f64,
}

impl Known {
    /// Of what was known so much is sent at first (RFC 9959, section 3.2: half).
    const PART: f64 = 0.5;
    /// The round trip with which it may be the same path still, as parts of the known one (RFC 9959, section 4.2).
    const SAME_PATH: RangeInclusive<f64> = 0.5..=10.0;

    /// Returns what to begin with where this is the round trip, in bytes a second.
    pub(super) fn first(self, rtt: f64) -> Option<f64> {
        let is_same = Self::SAME_PATH.contains(&(rtt / self.rtt));
        is_same.then_some(Self::PART * self.capacity)
    }
}
