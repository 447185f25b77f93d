//! Others on the link.

/// A connection of somebody else's, with cubic (RFC 9438) and no slow start after the first loss.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cubic {
    pub(super) window: f64,
    pub(super) under_way: f64,
    most: f64,
    since: f64,
    slow_start: bool,
}

impl Cubic {
    pub(super) fn new() -> Self {
        Self {
            window: 10.0,
            under_way: 0.0,
            most: 0.0,
            since: 0.0,
            slow_start: true,
        }
    }

    pub(super) fn acknowledged(&mut self, now: f64) {
        self.under_way -= 1.0;
        if self.slow_start {
            self.window += 1.0;
            return;
        }
        let k = (self.most * 0.3 / 0.4).cbrt();
        let target = 0.4 * (now - self.since - k).powi(3) + self.most;
        let growth = ((target - self.window) / self.window).clamp(0.01 / self.window, 0.5);
        self.window += growth;
    }

    pub(super) fn lost(&mut self, now: f64, rtt: f64) {
        self.under_way -= 1.0;
        // Once a round trip.
        if now - self.since > rtt || self.slow_start {
            self.slow_start = false;
            self.most = self.window;
            self.window = (self.window * 0.7).max(2.0);
            self.since = now;
        }
    }
}
