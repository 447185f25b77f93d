//! A direction's last ten seconds.

use std::time::{Duration, Instant};

use super::meter::DirectionMeter;
use crate::history::DirectionSecond;
use crate::phase::PhaseTimes;
use crate::{Goodput, QueueBytes};

/// Bytes of each of the last ten seconds.
#[derive(Debug, Default)]
pub(super) struct RecentSeconds {
    bytes: [u32; 10],
    /// All bytes and all times when the newest second ended.
    before: (u64, PhaseTimes),
}

impl RecentSeconds {
    /// Begins with so many bytes that were delivered before, which are no second's.
    pub(super) fn after(bytes: u64) -> Self {
        Self {
            bytes: [0; 10],
            before: (bytes, PhaseTimes::default()),
        }
    }

    /// Ends a second, the `newest`th of ten in turn, and gives what happened in it.
    pub(super) fn advance(
        &mut self,
        newest: usize,
        now: Instant,
        meter: &DirectionMeter,
        queue: QueueBytes,
    ) -> DirectionSecond {
        let times = meter.clock.at(now, Duration::ZERO).0;
        let (bytes, before) = std::mem::replace(&mut self.before, (meter.delivered(), times));
        let bytes = meter.delivered().saturating_sub(bytes);
        self.bytes[newest] = u32::try_from(bytes).unwrap_or(u32::MAX);
        DirectionSecond::new(bytes, queue.total(), times.since(before))
    }

    /// Returns the goodput of a direction that has delivered `bytes` in its life of `age`; the
    /// `newest` second lasted `span`, and the one that has not ended yet `running`.
    pub(super) fn goodput(
        &self,
        newest: usize,
        span: Duration,
        running: Duration,
        bytes: u64,
        age: Duration,
    ) -> Goodput {
        let ten: u64 = self.bytes.iter().map(|bytes| u64::from(*bytes)).sum();
        let since = bytes.saturating_sub(self.before.0);
        let window = (Duration::from_secs(10) + running).min(age);
        Goodput {
            last_second: rate(self.bytes[newest].into(), span),
            last_ten_seconds: rate(ten + since, window),
            life: rate(bytes, age),
        }
    }
}

/// Returns the goodput in bits per second.
pub(super) fn rate(bytes: u64, time: Duration) -> f64 {
    // Below a millisecond the quotient says more about the clock than about the network.
    bytes as f64 * 8.0 / time.max(Duration::from_millis(1)).as_secs_f64()
}
