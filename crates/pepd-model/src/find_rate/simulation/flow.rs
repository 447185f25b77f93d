//! A connection of a leg.

use super::super::{LegDelay, OwnPath, PACKET};
use super::link::OwnLink;

/// The least time beyond a round trip after which a sender takes what is under way for lost, in seconds
/// (`TCP_RTO_MIN`, include/net/tcp.h).
const PATIENCE: f64 = 0.2;

/// For how long a connection may have sent less than its cap to send more for it, in seconds.
const BURST: f64 = 0.01;

/// The first packets that a receiver acknowledges one by one (`TCP_MAX_QUICKACKS`, include/net/tcp.h).
const QUICK: u64 = 16;

/// What may wait to be sent, in bytes.
const MOST: f64 = 1e6;

/// A connection, with the timer of its sender (RFC 6298).
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// The least round trip, in seconds; infinite before the first.
    least: f64,
    /// That of the handshake, but for what it is farther.
    first: f64,
    /// The packets of which it was told nothing yet because acknowledgements were lost: epoch, and when they
    /// were sent.
    pub(super) untold: Vec<(u64, f64)>,
    /// The epoch in which it has sent what is not booked yet.
    pub(super) unbooked: Option<u64>,
    /// What it has to send, in bytes.
    wanted: f64,
    /// When the last packet was sent.
    sent: f64,
    /// When its timer runs out, if something is under way; and for how long it waits then.
    timer: f64,
    timeout: f64,
    /// Whether its timer has run out, and nothing was acknowledged since.
    is_stalled: bool,
    /// Whether its least round trip is sure to be one without a queue.
    is_sure: bool,
    /// How many packets have come to its receiver, whether it waits for another one before it acknowledges the last, and until
    /// when one is missing there.
    came: u64,
    waits: bool,
    missing_until: f64,
    /// A link of its own behind the leg.
    pub(super) own_link: Option<OwnLink>,
    /// What is known of that, where it is asked for, and when it may send again by its cap.
    pub(super) own_path: Option<OwnPath>,
    capped_until: f64,
    /// By how much its round trips are longer than the leg's least, in seconds.
    pub(super) farther: f64,
}

impl Flow {
    /// Makes one whose handshake took a round trip of so many seconds.
    pub(super) fn new(rtt: f64) -> Self {
        Self {
            least: f64::INFINITY,
            first: rtt,
            untold: Vec::new(),
            unbooked: None,
            wanted: 0.0,
            sent: 0.0,
            timer: f64::INFINITY,
            timeout: PATIENCE + rtt,
            is_stalled: false,
            is_sure: false,
            came: 0,
            waits: false,
            missing_until: 0.0,
            own_link: None,
            own_path: None,
            capped_until: 0.0,
            farther: 0.0,
        }
    }

    /// Returns the least round trip, that of the handshake before the first, in seconds.
    pub(super) fn least_or_first(&self) -> f64 {
        if self.least.is_finite() {
            self.least
        } else {
            self.first + self.farther
        }
    }

    /// Takes that its path has become longer, by so many seconds.
    pub(super) fn becomes_longer(&mut self, seconds: f64) {
        self.least += seconds;
        self.is_sure &= seconds <= 0.0;
    }

    /// Returns the least round trip, in seconds; infinite before the first.
    pub(super) fn least(&self) -> f64 {
        self.least
    }

    /// Returns whether it is kept to what its own path carries.
    pub(super) fn is_capped(&self) -> bool {
        self.cap().is_some()
    }

    /// Returns how much of a delay is that of its own path, in seconds.
    pub(super) fn own(&self, delay: f64, leg: &LegDelay) -> f64 {
        self.own_path.map_or(0.0, |path| path.own(delay, leg))
    }

    /// Returns whether its least round trip is sure to be one without a queue.
    pub(super) fn is_sure(&self) -> bool {
        self.is_sure
    }

    /// Has a packet missing at its receiver until such a time.
    pub(super) fn misses_until(&mut self, time: f64) {
        self.missing_until = self.missing_until.max(time);
    }

    /// Takes that a packet has come to its receiver; none if it is acknowledged at once, or how many have come if it waits for
    /// another one, for so many seconds.
    pub(super) fn comes(&mut self, now: f64, delayed: f64) -> Option<u64> {
        self.came += 1;
        let is_first = !std::mem::replace(&mut self.waits, false);
        let waits = delayed > 0.0 && is_first && now >= self.missing_until && self.came > QUICK;
        self.waits = waits;
        waits.then_some(self.came)
    }

    /// Returns whether its receiver still waits as it did when so many had come, and has it wait no longer.
    pub(super) fn waits_since(&mut self, came: u64) -> bool {
        self.came == came && std::mem::replace(&mut self.waits, false)
    }

    /// Takes a round trip when there should be no queue, for all but so many seconds.
    pub(super) fn verify(&mut self, rtt: f64, slack: f64) {
        self.is_sure |= rtt <= self.least + slack;
    }

    fn cap(&self) -> Option<f64> {
        self.own_path.and_then(|path| path.cap())
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
        self.wanted >= PACKET && !waits && now >= self.capped_until
    }

    /// Sends a packet.
    pub(super) fn send(&mut self, now: f64) {
        self.wanted -= PACKET;
        self.sent = now;
        if let Some(path) = &mut self.own_path {
            path.sent(PACKET);
        }
        let since = self.capped_until.max(now - BURST);
        self.capped_until = self.cap().map_or(0.0, |cap| since + PACKET / cap);
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
