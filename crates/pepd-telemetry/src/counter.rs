//! Counters: numbers that the workers turn up and anyone reads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one more.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Counts `n` more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Gives the number now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number of things that there are at the moment.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Counts one more until what is returned is dropped: so it goes down exactly once, whatever
    /// ends first.
    #[must_use]
    pub fn increment(&self) -> GaugeGuard<'_> {
        self.0.fetch_add(1, Relaxed);
        GaugeGuard(self)
    }

    /// Sets the number, where something else does the counting.
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// Gives the number now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// One unit of a [`Gauge`], which goes down when this is dropped.
#[derive(Debug)]
pub struct GaugeGuard<'a>(&'a Gauge);

impl Drop for GaugeGuard<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_goes_down_when_its_unit_is_dropped() {
        let live = Gauge::default();
        let guard = live.increment();
        assert_eq!(live.get(), 1);
        drop(guard);
        assert_eq!(live.get(), 0);
    }
}
