//! What is still to happen in a simulation, in the order of time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Events, each with its time in seconds; of those at the same time the one that was entered first comes
/// first.
#[derive(Clone, Debug)]
pub(crate) struct Events<W> {
    heap: BinaryHeap<Event<W>>,
    count: u64,
}

impl<W> Events<W> {
    /// Begins with none.
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            count: 0,
        }
    }

    /// Enters one.
    pub(crate) fn enter(&mut self, at: f64, what: W) {
        self.count += 1;
        let count = self.count;
        self.heap.push(Event { at, count, what });
    }

    /// Takes the next one out, if its time has come by `until`.
    pub(crate) fn next(&mut self, until: f64) -> Option<(f64, W)> {
        if self.heap.peek()?.at > until {
            return None;
        }
        self.heap.pop().map(|event| (event.at, event.what))
    }
}

/// The earliest is the greatest.
#[derive(Clone, Debug)]
struct Event<W> {
    at: f64,
    count: u64,
    what: W,
}

impl<W> PartialEq for Event<W> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<W> Eq for Event<W> {}

impl<W> PartialOrd for Event<W> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<W> Ord for Event<W> {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_time = other.at.total_cmp(&self.at);
        by_time.then_with(|| other.count.cmp(&self.count))
    }
}
