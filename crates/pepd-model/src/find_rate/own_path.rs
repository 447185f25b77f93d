//! Whether a connection's own path is narrower than its share: a host behind the leg that has a slow link
//! itself. What is sent beyond what that carries waits or is lost there, and others could have had it.
//!
//! Loss does not tell, since the leg may lose as much, whatever is sent; but what waits before a link of its
//! own makes a connection's round trips longer than those of the leg's others, and stays while it is sent at
//! its share. So who has had a queue of its own all the time for a while gets a cap: what arrived meanwhile, less what
//! empties that queue. Without one the cap is raised little by little. A queue that does not become shorter is none: the
//! connection's path has become longer. Of who is sent less than he is let nothing is concluded.
//!
//! What pepd does is done in the kernel, with integers: `crates/pepd-bpf/src/bpf/own_path.h`, which has the same names and
//! values.

use std::collections::VecDeque;

/// How long a queue of its own is that is worth a cap, in seconds, and as a part of the least round trip:
/// beyond what an acknowledgement that was lost, or is delayed, makes of a round trip.
const LONG: [f64; 2] = [0.03, 0.25];

/// For how long it is looked at a connection before anything is concluded: in seconds, in round trips, and in
/// acknowledgements. The least of its delays in that time is what counts.
const LOOK: [f64; 2] = [0.5, 4.0];
const ACKNOWLEDGED: u32 = 31;

/// By how much a cap is raised after a look without a queue, at first and when that went well so often.
const RAISED: [f64; 2] = [1.0 / 32.0, 1.0 / 8.0];
const STEADY: u32 = 8;

/// The least part of what arrived that a cap is, while a queue is emptied.
const LEAST: f64 = 0.5;

/// A cap of so many shares is none.
const ENOUGH: f64 = 2.0;

/// No cap is less than such a part of a share: what is dropped of less is hardly missed by others, and the cap has not
/// far to go where it was wrong.
const LEAST_SHARE: f64 = 1.0 / 256.0;

/// Who has sent less than such a part of what it was let shows nothing.
const DRIVEN: f64 = 0.5;

/// So many looks empty any queue; what is there then is a longer path.
const EMPTIED: u32 = 8;

/// A queue that is no longer than such a part of what it was at the last look is being emptied.
const SHORTER: f64 = 0.95;

/// What is known of the path of one connection.
#[derive(Clone, Copy, Debug)]
pub struct OwnPath {
    cap: Option<f64>,
    /// When the look began, in seconds; what was sent since and what was delivered, in bytes, in so many
    /// acknowledgements, and by how much its least delay of a round was more than the leg's, at the least.
    began: f64,
    sent: f64,
    delivered: f64,
    count: u32,
    least: f64,
    /// The round that its last round trip was in, and its least delay in that.
    round: usize,
    delay: f64,
    /// Whether it was looked at once: until then its least round trip may be one with a queue, as while the leg's rate is
    /// looked for, and what is longer than that says little.
    is_known: bool,
    /// The looks in a row without a queue, while there is a cap, and with one.
    well: u32,
    queued: u32,
    /// How long the queue was at first and at the last look, in seconds.
    first: f64,
    last: f64,
    /// What arrived while there was one, in bytes a second.
    carries: f64,
}

/// An acknowledgement, and what is known of the leg then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heard {
    /// What is acknowledged, in bytes.
    pub bytes: f64,
    /// By how much its round trip was longer than the connection's least, in seconds.
    pub delay: f64,
    /// The connection's least round trip, in seconds.
    pub rtt: f64,
    /// What it is sent at without a cap, in bytes a second.
    pub share: f64,
}

impl OwnPath {
    /// Begins with a connection that is established at a time in seconds.
    pub fn new(now: f64) -> Self {
        Self {
            cap: None,
            began: now,
            sent: 0.0,
            delivered: 0.0,
            count: 0,
            least: f64::INFINITY,
            round: 0,
            delay: f64::INFINITY,
            is_known: false,
            well: 0,
            queued: 0,
            first: 0.0,
            last: 0.0,
            carries: 0.0,
        }
    }

    /// Returns the most that it is to be sent at, in bytes a second; none where nothing speaks for one.
    pub fn cap(&self) -> Option<f64> {
        self.cap
    }

    /// Returns how much of a delay is its own, in seconds, where it has a cap: the leg's queue is not longer for that, and
    /// what arrives so much later has not taken the leg's link longer.
    pub fn own(&self, delay: f64, leg: &LegDelay) -> f64 {
        let others = self.cap.and_then(|_| leg.before(1));
        others.map_or(0.0, |others| (delay - others).max(0.0))
    }

    /// Takes so many bytes that are sent to it.
    pub fn sent(&mut self, bytes: f64) {
        self.sent += bytes;
    }

    /// Takes an acknowledgement at a time in seconds, and compares its delay with those of the leg's others; gives by how much its
    /// path turns out to have become longer, in seconds.
    pub fn acknowledged(&mut self, now: f64, heard: &Heard, leg: &mut LegDelay) -> f64 {
        let Heard { rtt, share, .. } = *heard;
        self.delivered += heard.bytes;
        self.count += 1;
        if self.is_known {
            self.compare(heard.delay, leg);
        }
        let [seconds, trips] = LOOK;
        let passed = now - self.began;
        if passed < seconds.max(trips * rtt) || self.count < ACKNOWLEDGED {
            return 0.0;
        }
        let mut longer = 0.0;
        let most = self.cap.map_or(share, |cap| cap.min(share));
        if self.least.is_finite() && self.sent >= DRIVEN * most * passed {
            let [least, part] = LONG;
            if self.least > least.max(part * rtt) {
                longer = self.has_queue(self.least, passed, share);
            } else {
                self.has_none(share);
            }
        }
        self.is_known = true;
        self.began = now;
        self.sent = 0.0;
        self.delivered = 0.0;
        self.count = 0;
        self.least = f64::INFINITY;
        longer
    }

    /// Compares a delay with those of the leg's others in the same round.
    fn compare(&mut self, delay: f64, leg: &mut LegDelay) {
        let round = leg.heard(delay);
        let passed = round - self.round;
        if passed > 0 {
            let others = leg.before(passed);
            if let Some(others) = others.filter(|_| self.delay.is_finite()) {
                self.least = self.least.min((self.delay - others).max(0.0));
            }
            self.delay = f64::INFINITY;
            self.round = round;
        }
        self.delay = self.delay.min(delay);
    }

    fn has_queue(&mut self, queue: f64, passed: f64, share: f64) -> f64 {
        let is_again = self.queued > 0;
        self.well = 0;
        if self.queued == EMPTIED && queue > 0.7 * self.first {
            self.forget();
            return queue;
        }
        if !is_again || self.queued == EMPTIED {
            self.first = queue;
            self.queued = 0;
        }
        self.queued += 1;
        // What arrives while there is a queue is what its own link carries.
        self.carries = self.delivered / passed;
        let last = std::mem::replace(&mut self.last, queue);
        let part = (1.0 - queue / (2.0 * passed)).clamp(LEAST, 1.0 - RAISED[0]);
        let cap = match self.cap {
            None => part * self.carries,
            // It is being emptied.
            Some(_) if is_again && queue < SHORTER * last => return 0.0,
            Some(cap) => part * cap,
        };
        self.cap = Some(cap.max(LEAST_SHARE * share));
        0.0
    }

    fn has_none(&mut self, share: f64) {
        let was_queued = std::mem::replace(&mut self.queued, 0) > 0;
        let Some(cap) = self.cap else { return };
        if was_queued {
            // It is empty now.
            self.cap = Some(cap.max((1.0 - RAISED[0]) * self.carries));
            return;
        }
        let [first, later] = RAISED;
        let raised = if self.well < STEADY { first } else { later };
        self.well += 1;
        let cap = cap * (1.0 + raised);
        self.cap = Some(cap).filter(|cap| *cap < ENOUGH * share);
    }

    fn forget(&mut self) {
        self.cap = None;
        self.queued = 0;
        self.well = 0;
    }
}

/// By how much round trips are longer than the least of their connections, at the least of some: what all have in common,
/// which is the leg's queue. Of a connection alone it is all that its own are longer by: its link is the leg's narrow place
/// then, and there is nobody who could have had more.
#[derive(Clone, Debug, Default)]
pub struct LegDelay {
    heard: usize,
    /// Of each round, in seconds.
    least: VecDeque<f64>,
}

impl LegDelay {
    /// So many round trips make a round, and of so many rounds the least delay is kept. They are enough for some of a
    /// connection's own and some of others', and few enough that not each has all connections in it: one of many whose least
    /// round trip was not seen yet does not make the others' seem long.
    const ROUND: usize = 32;
    const ROUNDS: usize = 64;

    /// Takes by how much another round trip is longer, in seconds, and returns the number of its round.
    pub(super) fn heard(&mut self, delay: f64) -> usize {
        let round = self.heard / Self::ROUND;
        if self.heard.is_multiple_of(Self::ROUND) {
            self.least.push_front(delay);
            self.least.truncate(Self::ROUNDS);
        }
        self.heard += 1;
        if let Some(least) = self.least.front_mut() {
            *least = least.min(delay);
        }
        round
    }

    /// Returns the least of a round that is so many rounds ago, if that is still kept.
    pub(super) fn before(&self, rounds: usize) -> Option<f64> {
        self.least.get(rounds).copied()
    }
}
