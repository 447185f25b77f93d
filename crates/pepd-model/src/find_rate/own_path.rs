//! Whether a connection's own path is narrower than its share: a host behind the leg that has a slow link
//! itself. What is sent beyond what that carries waits or is lost there, and others could have had it.
//!
//! Loss does not tell, since the leg may lose as much, whatever is sent; but what waits before a link of its
//! own makes a connection's round trips longer than those of the leg's others, and stays while it is sent at
//! its share. So who has had a queue of its own all the time for a while gets a cap: what arrived meanwhile, less what
//! empties that queue. Without one the cap is raised little by little. A queue that does not become shorter is none: the
//! connection's path has become longer.

/// How long a queue of its own is that is worth a cap, in seconds, and as a part of the least round trip:
/// beyond what an acknowledgement that was lost, or is delayed, makes of a round trip.
const LONG: [f64; 2] = [0.03, 0.25];

/// For how long it is looked at a connection before anything is concluded: in seconds, in round trips, and in
/// acknowledgements. The least of its delays in that time is what counts.
const LOOK: [f64; 2] = [0.5, 4.0];
const ACKNOWLEDGED: u32 = 32;

/// By how much a cap is raised after a look without a queue, at first and when that went well so often.
const RAISED: [f64; 2] = [1.0 / 32.0, 1.0 / 8.0];
const STEADY: u32 = 8;

/// The least part of what arrived that a cap is, while a queue is emptied.
const LEAST: f64 = 0.5;

/// A cap of so many shares is none.
const ENOUGH: f64 = 2.0;

/// So many looks empty any queue; what is there then is a longer path.
const EMPTIED: u32 = 8;

/// A queue that is no longer than such a part of what it was at the last look is being emptied.
const SHORTER: f64 = 0.95;

/// What is known of the path of one connection.
#[derive(Clone, Copy, Debug)]
pub struct OwnPath {
    cap: Option<f64>,
    /// When the look began, in seconds; what was delivered since, in bytes, in so many acknowledgements, and
    /// the least delay beyond the leg's.
    began: f64,
    delivered: f64,
    count: u32,
    least: f64,
    /// The looks in a row without a queue, while there is a cap, and with one.
    well: u32,
    queued: u32,
    /// How long the queue was at first and at the last look, in seconds, and by how much the path has become
    /// longer.
    first: f64,
    last: f64,
    /// What arrived while there was one, in bytes a second.
    carries: f64,
    shift: f64,
}

/// An acknowledgement, and what is known of the leg then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heard {
    /// What is acknowledged, in bytes.
    pub bytes: f64,
    /// By how much its round trip was longer than the connection's least, in seconds.
    pub delay: f64,
    /// By how much those of the leg's other connections are longer than their least, at the least.
    pub leg_delay: f64,
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
            delivered: 0.0,
            count: 0,
            least: f64::INFINITY,
            well: 0,
            queued: 0,
            first: 0.0,
            last: 0.0,
            carries: 0.0,
            shift: 0.0,
        }
    }

    /// Returns the most that it is to be sent at, in bytes a second; none where nothing speaks for one.
    pub fn cap(&self) -> Option<f64> {
        self.cap
    }

    /// Takes an acknowledgement at a time in seconds.
    pub fn acknowledged(&mut self, now: f64, heard: &Heard) {
        let Heard { rtt, share, .. } = *heard;
        self.delivered += heard.bytes;
        self.count += 1;
        self.least = self.least.min((heard.delay - heard.leg_delay).max(0.0));
        let [seconds, trips] = LOOK;
        let passed = now - self.began;
        if passed < seconds.max(trips * rtt) || self.count < ACKNOWLEDGED {
            return;
        }
        self.shift = self.shift.min(self.least);
        let queue = self.least - self.shift;
        let [least, part] = LONG;
        if queue > least.max(part * rtt) {
            self.has_queue(queue, passed);
        } else {
            self.has_none(passed, share);
        }
        self.began = now;
        self.delivered = 0.0;
        self.count = 0;
        self.least = f64::INFINITY;
    }

    fn has_queue(&mut self, queue: f64, passed: f64) {
        self.well = 0;
        if self.queued == 0 {
            self.first = queue;
        }
        self.queued += 1;
        if self.queued > EMPTIED && queue > 0.7 * self.first {
            self.shift += queue;
            self.forget();
            return;
        }
        // What arrives while there is a queue is what its own link carries.
        self.carries = self.delivered / passed;
        let last = std::mem::replace(&mut self.last, queue);
        let part = (1.0 - queue / (2.0 * passed)).clamp(LEAST, 1.0 - RAISED[0]);
        self.cap = Some(match self.cap {
            None => part * self.carries,
            // It is being emptied.
            Some(cap) if self.queued > 1 && queue < SHORTER * last => cap,
            Some(cap) => part * cap,
        });
    }

    fn has_none(&mut self, passed: f64, share: f64) {
        let was_queued = std::mem::replace(&mut self.queued, 0) > 0;
        let Some(cap) = self.cap else { return };
        if was_queued {
            // It is empty now.
            self.cap = Some(cap.max((1.0 - RAISED[0]) * self.carries));
            return;
        }
        // Who has less to send does not try it.
        if self.delivered / passed < 0.5 * cap {
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
