//! What is recorded for the metrics and stands nowhere else: distributions.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::histogram::Histogram;

use crate::{Side, TcpFigures};

/// Round-trip times, seconds: from a campus's own network to two satellite hops.
const RTT_BOUNDS: [f64; 16] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0,
    2.0, 5.0,
];

/// Shares of what was sent: where the square-root law puts a loss-based control out of business, and
/// the loss rates that the papers look at.
const RETRANSMITTED_BOUNDS: [f64; 11] = [
    0.0, 0.000_1, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5,
];

/// Everything recorded since the start. There is one per process, in [`crate::Counters`].
#[derive(Default)]
pub struct Measurements {
    pairs: Mutex<BTreeMap<(String, String), Arc<PairMeasurements>>>,
}

impl Measurements {
    /// What is recorded of the connections from one campus to another. Whoever records often
    /// keeps it.
    pub fn pair(&self, client_campus: &str, server_campus: &str) -> Arc<PairMeasurements> {
        let key = (client_campus.to_owned(), server_campus.to_owned());
        Arc::clone(lock(&self.pairs).entry(key).or_default())
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

    /// A leg has ended: of the bytes that it sent, this share, from 0 to 1, was sent again.
    pub fn retransmitted(&self, share: f64) {
        self.retransmitted.observe(share);
    }

    /// The same, from what was last seen of it; nothing, where nothing was sent or the kernel
    /// does not tell.
    pub(crate) fn ended(&self, last: &TcpFigures) {
        if let (Some(sent @ 1..), Some(again)) = (last.sent_bytes, last.retransmitted_bytes) {
            self.retransmitted(float(again) / float(sent));
        }
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

/// Exact up to 2^53, which is eight petabytes.
#[allow(clippy::cast_precision_loss, reason = "as said")]
fn float(n: u64) -> f64 {
    n as f64
}

/// Nothing panics while one of these locks is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
