//! What is recorded for the metrics and stands nowhere else: distributions, and errors by errno.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::histogram::Histogram;

/// Round-trip times, seconds: from a campus's own network to two satellite hops.
const RTT_BOUNDS: [f64; 16] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0,
    2.0, 5.0,
];

/// Shares of segments: where the square-root law puts a loss-based control out of business, and
/// the loss rates that the papers look at.
const RETRANSMITTED_BOUNDS: [f64; 11] = [
    0.0, 0.000_1, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5,
];

/// A leg of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Between the client and this box.
    Client,
    /// Between this box and the server.
    Upstream,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Client, Self::Upstream];

    /// As the label's value.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Upstream => "upstream",
        }
    }
}

/// Everything recorded since the start. There is one per process, in [`crate::Counters`].
#[derive(Default)]
pub struct Measurements {
    failures: Mutex<BTreeMap<(Side, i32), u64>>,
    pairs: Mutex<BTreeMap<(String, String), Arc<PairMeasurements>>>,
}

impl Measurements {
    /// A connection ended with this error on that leg.
    pub fn failed(&self, side: Side, errno: i32) {
        *lock(&self.failures).entry((side, errno)).or_default() += 1;
    }

    /// What is recorded of the connections from one campus to another. Whoever records often
    /// keeps it.
    pub fn pair(&self, client_campus: &str, server_campus: &str) -> Arc<PairMeasurements> {
        let key = (client_campus.to_owned(), server_campus.to_owned());
        Arc::clone(lock(&self.pairs).entry(key).or_default())
    }

    /// How many connections ended with which error on which leg.
    pub(super) fn failures(&self) -> BTreeMap<(Side, i32), u64> {
        lock(&self.failures).clone()
    }

    /// All pairs that anything was recorded of.
    pub(super) fn pairs(&self) -> BTreeMap<(String, String), Arc<PairMeasurements>> {
        lock(&self.pairs).clone()
    }
}

impl fmt::Debug for Measurements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Measurements").finish_non_exhaustive()
    }
}

/// The connections from one campus to another.
#[derive(Debug, Default)]
pub struct PairMeasurements {
    /// The legs between the clients and this box.
    pub client: LegMeasurements,
    /// The legs between this box and the servers.
    pub upstream: LegMeasurements,
}

impl PairMeasurements {
    pub(super) fn leg(&self, side: Side) -> &LegMeasurements {
        match side {
            Side::Client => &self.client,
            Side::Upstream => &self.upstream,
        }
    }
}

/// One side's legs.
#[derive(Debug)]
pub struct LegMeasurements {
    pub(super) rtt: Histogram,
    pub(super) retransmitted: Histogram,
}

impl LegMeasurements {
    /// A sample of a leg's smoothed round-trip time, in seconds. One is taken each second in
    /// which the leg carried something: a long transfer weighs what it lasts.
    pub fn rtt(&self, seconds: f64) {
        self.rtt.observe(seconds);
    }

    /// A leg has ended: of the segments that it sent, this share, from 0 to 1, was sent again.
    pub fn retransmitted(&self, share: f64) {
        self.retransmitted.observe(share);
    }
}

impl Default for LegMeasurements {
    fn default() -> Self {
        Self {
            rtt: Histogram::new(RTT_BOUNDS),
            retransmitted: Histogram::new(RETRANSMITTED_BOUNDS),
        }
    }
}

/// Nothing panics while one of these locks is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
