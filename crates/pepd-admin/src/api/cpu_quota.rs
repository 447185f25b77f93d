//! A bound on the processor time that a thread spends on its clients.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// Says when a thread has used so much processor time that it should wait: a leaky bucket.
///
/// Whatever clients ask for, and however many there are, the workers lose no more than
/// [`CpuQuota::SHARE`] of one core to them.
#[derive(Debug)]
pub struct CpuQuota {
    /// Processor time used beyond the share.
    debt: Duration,
    seen: Duration,
    when: Instant,
}

impl CpuQuota {
    /// One in so many: a tenth of a core.
    pub const SHARE: u32 = 10;

    /// Processor time that may be used in one go.
    pub const BURST: Duration = Duration::from_millis(20);

    /// Creates the quota of the thread that calls it; it may be asked on that thread only.
    pub fn new() -> Self {
        Self {
            debt: Duration::ZERO,
            seen: thread_time(),
            when: Instant::now(),
        }
    }

    /// Returns how long to wait before the next client.
    pub fn wait(&mut self) -> Duration {
        self.wait_at(Instant::now(), thread_time())
    }

    fn wait_at(&mut self, now: Instant, used: Duration) -> Duration {
        let passed = now.saturating_duration_since(self.when);
        self.debt += used.saturating_sub(self.seen);
        self.debt = self.debt.saturating_sub(passed / Self::SHARE);
        self.seen = used;
        self.when = now;
        self.debt.saturating_sub(Self::BURST) * Self::SHARE
    }
}

impl Default for CpuQuota {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the processor time of this thread; zero, and so no bound, should there be no such clock.
fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_beyond_the_burst_is_waited_for() {
        let mut quota = CpuQuota::new();
        let (start, used) = (quota.when, quota.seen);
        let ms = Duration::from_millis;
        assert_eq!(quota.wait_at(start, used + ms(20)), Duration::ZERO);
        assert_eq!(quota.wait_at(start, used + ms(30)), ms(100));
        // A thread that waits as it is told gets its share and no more.
        assert_eq!(quota.wait_at(start + ms(100), used + ms(30)), ms(0));
        assert_eq!(quota.wait_at(start + ms(100), used + ms(40)), ms(100));
        // A pause clears the debt, and is no credit for more than the burst.
        assert_eq!(quota.wait_at(start + ms(60_000), used + ms(60)), ms(0));
        assert_eq!(quota.wait_at(start + ms(60_000), used + ms(90)), ms(100));
    }
}
