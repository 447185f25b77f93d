//! A connection of a leg.

use super::super::PACKET;

/// The least time beyond a round trip after which a sender takes what is under way for lost, in seconds
/// (`TCP_RTO_MIN`, include/net/tcp.h).
const PATIENCE: f64 = 0.2;

/// What may wait to be sent, in bytes.
const MOST: f64 = 1e6;

/// A connection, with the timer of its sender (RFC 6298).
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// The least round trip, in seconds; infinite before the first.
    least: f64,
    /// The packets of which it was told nothing yet because acknowledgements were lost: epoch, and when they
    /// were sent.
    pub(super) untold: Vec<(u64, f64)>,
    /// What it has to send, in bytes.
    wanted: f64,
    /// When the last packet was sent.
    sent: f64,
    /// When its timer runs out, if something is under way; and for how long it waits then.
    timer: f64,
    timeout: f64,
    /// Whether its timer has run out, and nothing was acknowledged since.
    is_stalled: bool,
}

impl Flow {
    /// Makes one whose handshake took a round trip of so many seconds.
    pub(super) fn new(rtt: f64) -> Self {
        Self {
            least: f64::INFINITY,
            untold: Vec::new(),
            wanted: 0.0,
            sent: 0.0,
            timer: f64::INFINITY,
            timeout: PATIENCE + rtt,
            is_stalled: false,
        }
    }

    /// Has more to send, at so many bytes a second for so many seconds.
    pub(super) fn want(&mut self, demand: f64, passed: f64) {
        self.wanted = if demand.is_finite() {
            (self.wanted + demand * passed).min(MOST)
        } else {
            PACKET
        };
    }

    /// Tells whether it sends a packet now, if it is let.
    pub(super) fn may_send(&self, now: f64) -> bool {
        let waits = self.is_stalled && now < self.timer;
        self.wanted >= PACKET && !waits
    }

    /// Sends a packet.
    pub(super) fn send(&mut self, now: f64) {
        self.wanted -= PACKET;
        self.sent = now;
        if now >= self.timer {
            self.is_stalled = true;
            self.timeout *= 2.0;
            self.timer = now + self.timeout;
        } else if self.timer.is_infinite() {
            self.timer = now + self.timeout;
        }
    }

    /// Takes an acknowledgement of a packet and what went before it, and returns its queueing delay. The first
    /// round trip has the leg's queue in it.
    pub(super) fn acknowledged(&mut self, now: f64, sent: f64, queue: f64) -> f64 {
        let rtt = now - sent;
        let least = if self.least.is_infinite() {
            rtt - queue
        } else {
            rtt
        };
        self.least = self.least.min(least);
        self.is_stalled = false;
        self.timeout = PATIENCE + rtt;
        self.timer = if sent < self.sent {
            now + self.timeout
        } else {
            f64::INFINITY
        };
        rtt - self.least
    }
}
