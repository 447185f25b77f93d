//! The distributions that are recorded for the metrics and are found nowhere else.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Side, TcpFigures};

/// Round-trip times, seconds: from a campus's own network to two satellite hops.
const RTT_BOUNDS: [f64; 16] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0,
    2.0, 5.0,
];

/// Shares of what was sent: where the square-root law makes a loss-based control useless, and the
/// loss rates that the papers study.
const RETRANSMITTED_BOUNDS: [f64; 11] = [
    0.0, 0.000_1, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5,
];

/// Everything recorded since the start. There is one per process, in [`crate::Counters`].
#[derive(Default)]
pub struct Measurements {
    pairs: Mutex<BTreeMap<(String, String), Arc<PairMeasurements>>>,
    /// By the leg's name.
    loaded_rtts: Mutex<BTreeMap<String, Arc<Distribution>>>,
}

impl Measurements {
    /// Returns what is recorded of the connections from one campus to another. Whoever records
    /// often keeps it.
    pub fn pair(&self, client_campus: &str, server_campus: &str) -> Arc<PairMeasurements> {
        let key = (client_campus.to_owned(), server_campus.to_owned());
        Arc::clone(lock(&self.pairs).entry(key).or_default())
    }

    /// Returns all pairs that anything was recorded of.
    pub fn pairs(&self) -> BTreeMap<(String, String), Arc<PairMeasurements>> {
        lock(&self.pairs).clone()
    }

    /// Returns the round trips, in seconds, of a leg while it is busy: a sample for each second and
    /// connection that sent something in it. Whoever records often keeps it.
    pub fn loaded_rtt(&self, leg: &str) -> Arc<Distribution> {
        let mut legs = lock(&self.loaded_rtts);
        let of_leg = legs.entry(leg.to_owned());
        Arc::clone(of_leg.or_insert_with(|| Arc::new(Distribution::new(&RTT_BOUNDS))))
    }

    /// Returns these of all legs that had connections.
    pub fn loaded_rtts(&self) -> BTreeMap<String, Arc<Distribution>> {
        lock(&self.loaded_rtts).clone()
    }
}

impl fmt::Debug for Measurements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Measurements").finish_non_exhaustive()
    }
}

/// The measurements of the connections from one campus to another.
#[derive(Debug, Default)]
pub struct PairMeasurements {
    /// The legs between the clients and this box.
    pub client: LegMeasurements,
    /// The legs between this box and the servers.
    pub upstream: LegMeasurements,
}

impl PairMeasurements {
    /// Returns the legs of one side.
    pub fn leg(&self, side: Side) -> &LegMeasurements {
        match side {
            Side::Client => &self.client,
            Side::Upstream => &self.upstream,
        }
    }
}

/// The measurements of one side's legs.
#[derive(Debug)]
pub struct LegMeasurements {
    /// Smoothed round-trip times, seconds: a sample for each second in which a leg carried
    /// something, so that a long transfer weighs what it lasts.
    pub rtt: Distribution,
    /// Shares, 0 to 1, of the bytes sent that were sent again: a sample for each leg that ended.
    pub retransmitted: Distribution,
}

impl LegMeasurements {
    /// Records the share of a leg that has ended, from its last figures; nothing, where nothing was
    /// sent or the kernel does not tell.
    pub(crate) fn observe_retransmitted(&self, last: &TcpFigures) {
        if let (Some(sent @ 1..), Some(again)) = (last.sent_bytes, last.retransmitted_bytes) {
            self.retransmitted.observe(float(again) / float(sent));
        }
    }
}

impl Default for LegMeasurements {
    fn default() -> Self {
        Self {
            rtt: Distribution::new(&RTT_BOUNDS),
            retransmitted: Distribution::new(&RETRANSMITTED_BOUNDS),
        }
    }
}

/// A histogram: how often a value fell between which bounds, as Prometheus counts.
#[derive(Debug)]
pub struct Distribution {
    /// Ascending; a value that equals a bound is below it.
    bounds: &'static [f64],
    state: Mutex<HistogramSnapshot>,
}

/// A [`Distribution`] at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistogramSnapshot {
    /// All values added up.
    pub sum: f64,
    /// The number of values.
    pub count: u64,
    /// The number of values between each bound and the one before it, not added up; the last bound
    /// is infinite.
    pub buckets: Vec<(f64, u64)>,
}

impl Distribution {
    fn new(bounds: &'static [f64]) -> Self {
        let all = bounds.iter().copied().chain([f64::INFINITY]);
        Self {
            bounds,
            state: Mutex::new(HistogramSnapshot {
                buckets: all.map(|bound| (bound, 0)).collect(),
                ..HistogramSnapshot::default()
            }),
        }
    }

    /// Records a value.
    pub fn observe(&self, value: f64) {
        let bound = self.bounds.iter().position(|bound| *bound >= value);
        let bucket = bound.unwrap_or(self.bounds.len());
        let mut state = lock(&self.state);
        state.sum += value;
        state.count += 1;
        if let Some((_, count)) = state.buckets.get_mut(bucket) {
            *count += 1;
        }
    }

    /// Returns what has been recorded so far.
    pub fn snapshot(&self) -> HistogramSnapshot {
        lock(&self.state).clone()
    }
}

/// Converts a count; exact up to 2^53, which is eight petabytes.
#[allow(clippy::cast_precision_loss, reason = "as said")]
fn float(n: u64) -> f64 {
    n as f64
}

/// Locks the mutex: nothing panics while one of these locks is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_falls_below_the_bound_that_it_equals() {
        let distribution = Distribution::new(&[1.0, 2.0]);
        for value in [0.5, 1.0, 1.5, 2.0, 7.0] {
            distribution.observe(value);
        }
        let expected = HistogramSnapshot {
            sum: 12.0,
            count: 5,
            buckets: vec![(1.0, 2), (2.0, 2), (f64::INFINITY, 1)],
        };
        assert_eq!(distribution.snapshot(), expected);
    }
}
