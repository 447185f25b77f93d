//! What a link says about what it did.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize, Serializer};

/// A number of packets, and their bytes (of IP: headers included, no layer-2 framing).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// The number of packets.
    pub packets: u64,
    /// The number of their bytes.
    pub bytes: u64,
}

impl Amount {
    pub(super) fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

/// Delays as they were observed, to three significant digits.
#[derive(Clone, Debug)]
pub struct Delays(Histogram<u64>);

/// The largest delay that is told apart, for which any larger one counts: an hour in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;

impl Default for Delays {
    fn default() -> Self {
        #[allow(
            clippy::expect_used,
            reason = "these bounds and digits are within the crate's"
        )]
        let histogram = Histogram::new_with_bounds(1, LONGEST, 3).expect("constant bounds");
        Self(histogram)
    }
}

impl Delays {
    pub(super) fn record(&mut self, delay: Duration) {
        self.0
            .saturating_record(u64::try_from(delay.as_nanos()).unwrap_or(LONGEST));
    }

    /// Returns the quantiles that are reported; all zero if nothing was recorded.
    #[must_use]
    pub fn quantiles(&self) -> Quantiles {
        // A quantile is the upper end of its bucket, which may lie above the maximum.
        let max = self.0.max();
        let quantile = |q| Duration::from_nanos(self.0.value_at_quantile(q).min(max));
        Quantiles {
            mean: Duration::try_from_secs_f64(self.0.mean() / 1e9).unwrap_or_default(),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p95: quantile(0.95),
            p99: quantile(0.99),
            max: Duration::from_nanos(max),
        }
    }
}

/// The distribution of a delay. Serialised in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    /// The mean.
    #[serde(serialize_with = "seconds")]
    pub mean: Duration,
    /// The median.
    #[serde(serialize_with = "seconds")]
    pub p50: Duration,
    /// Nine in ten are not longer.
    #[serde(serialize_with = "seconds")]
    pub p90: Duration,
    /// 95 in 100 are not longer.
    #[serde(serialize_with = "seconds")]
    pub p95: Duration,
    /// 99 in 100 are not longer.
    #[serde(serialize_with = "seconds")]
    pub p99: Duration,
    /// The longest.
    #[serde(serialize_with = "seconds")]
    pub max: Duration,
}

fn seconds<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(span.as_secs_f64())
}

/// The delay that a link may have before its figures are not to be trusted: the RTT that it
/// emulates has to be right within a millisecond.
pub const LAG_LIMIT: Duration = Duration::from_millis(1);

/// A report on one direction since the link was connected or restarted.
///
/// `offered = dropped + sent` and `sent = lost + cut + delivered + refused + pending`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DirectionReport {
    /// The packets that came to the link.
    pub offered: Amount,
    /// The packets that the full queue dropped.
    pub dropped: Amount,
    /// The packets that went, or are to go, on the wire.
    pub sent: Amount,
    /// The packets that the loss model took on the wire.
    pub lost: Amount,
    /// The packets that outages took on the wire.
    pub cut: Amount,
    /// The packets that the other end was given.
    pub delivered: Amount,
    /// The packets that the other end's device would not take: it was down.
    pub refused: Amount,
    /// The packets that are still under way.
    pub pending: Amount,
    /// The largest packet that came, in bytes: no more than the MTU.
    pub largest: usize,
    /// The time that packets waited for their transmission.
    pub queue_delay: Quantiles,
    /// The time by which the link delivered later than it should have: the machine's share.
    pub lag: Quantiles,
    /// Packets that the kernel dropped before the link could read them.
    pub overruns: u64,
    /// Whether the link did not keep up: packets that it never saw were lost, or one in a hundred
    /// was delivered later than [`LAG_LIMIT`] after its time. The figures do not show the path that
    /// was asked for.
    pub fell_behind: bool,
}

impl DirectionReport {
    /// Returns whether these figures mean that the link did not keep up.
    pub(super) fn is_behind(lag: &Quantiles, overruns: u64) -> bool {
        overruns > 0 || lag.p99 > LAG_LIMIT
    }
}

/// A report on a link since it was connected or restarted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The time for which it has done so. Serialised in seconds.
    #[serde(serialize_with = "seconds")]
    pub elapsed: Duration,
    /// The direction from the first end to the second.
    pub a_to_b: DirectionReport,
    /// The direction from the second end to the first.
    pub b_to_a: DirectionReport,
}

impl Report {
    /// Returns whether the link could not keep up in one direction or the other.
    #[must_use]
    pub const fn fell_behind(&self) -> bool {
        self.a_to_b.fell_behind || self.b_to_a.fell_behind
    }
}
