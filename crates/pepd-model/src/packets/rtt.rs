//! What a sender knows of its round trip, and how long it waits (RFC 6298, with Linux's least).

/// The least that is added to the round trip before a timeout, seconds (Linux, `tcp_rto_min`).
const LEAST: f64 = 0.2;

/// The most that is waited, seconds (Linux, `TCP_RTO_MAX`).
const MOST: f64 = 120.0;

/// A sender's estimates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rtt {
    smoothed: f64,
    deviation: f64,
    least: f64,
    /// By how much a timeout is longer for those before it.
    backoff: f64,
}

impl Rtt {
    /// Begins with what the handshake has shown.
    pub(super) fn new(first: f64) -> Self {
        Self {
            smoothed: first,
            deviation: first / 2.0,
            least: first,
            backoff: 1.0,
        }
    }

    pub(super) fn sample(&mut self, rtt: f64) {
        self.deviation += 0.25 * ((rtt - self.smoothed).abs() - self.deviation);
        self.smoothed += 0.125 * (rtt - self.smoothed);
        self.least = self.least.min(rtt);
        self.backoff = 1.0;
    }

    pub(super) fn smoothed(&self) -> f64 {
        self.smoothed
    }

    /// How long what was sent before something that has arrived is waited for.
    pub(super) fn reordering(&self) -> f64 {
        self.least / 4.0
    }

    pub(super) fn timeout(&self) -> f64 {
        let plain = self.smoothed + (4.0 * self.deviation).max(LEAST);
        (plain * self.backoff).min(MOST)
    }

    /// How long an acknowledgement is waited for before a probe is sent (Linux, `tcp_schedule_loss_probe`).
    pub(super) fn probe(&self, alone: bool) -> f64 {
        let delayed = if alone { LEAST } else { 0.002 };
        (2.0 * self.smoothed + delayed).min(self.timeout())
    }

    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff * 2.0).min(MOST);
    }
}
