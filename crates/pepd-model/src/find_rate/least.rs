//! The least of a value lately.

use std::collections::VecDeque;

/// The least of what was seen in the last ten seconds: long enough that a queue has been empty once, and
/// short against the time for which a path stays as it is (bbr's is the same, tcp_bbr.c).
#[derive(Clone, Debug, Default)]
pub(super) struct Least(VecDeque<(f64, f64)>);

impl Least {
    const MEMORY: f64 = 10.0;

    /// Takes a value at a time in seconds.
    pub(super) fn add(&mut self, now: f64, value: f64) {
        while self.0.back().is_some_and(|last| last.1 >= value) {
            self.0.pop_back();
        }
        self.0.push_back((now, value));
        let is_old = |first: &(f64, f64)| first.0 < now - Self::MEMORY;
        while self.0.len() > 1 && self.0.front().is_some_and(is_old) {
            self.0.pop_front();
        }
    }

    /// Returns the least; none before the first.
    pub(super) fn get(&self) -> Option<f64> {
        self.0.front().map(|first| first.1)
    }
}
