//! The least of a value lately.

use std::collections::VecDeque;

/// The least of what was seen lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Least {
    /// For how long it is remembered, in seconds.
    memory: f64,
    seen: VecDeque<(f64, f64)>,
}

impl Least {
    /// Makes one that remembers what was seen for so many seconds.
    pub(super) fn of(memory: f64) -> Self {
        Self {
            memory,
            seen: VecDeque::new(),
        }
    }

    /// Takes a value at a time in seconds.
    pub(super) fn add(&mut self, now: f64, value: f64) {
        while self.seen.back().is_some_and(|last| last.1 >= value) {
            self.seen.pop_back();
        }
        self.seen.push_back((now, value));
        let is_old = |first: &(f64, f64)| first.0 < now - self.memory;
        while self.seen.len() > 1 && self.seen.front().is_some_and(is_old) {
            self.seen.pop_front();
        }
    }

    /// Returns the least; none before the first.
    pub(super) fn get(&self) -> Option<f64> {
        self.seen.front().map(|first| first.1)
    }
}
