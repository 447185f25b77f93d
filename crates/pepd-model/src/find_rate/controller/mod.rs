//! The controller.

mod emptying;
mod known;
mod limits;
mod others;
mod room;
mod seen;
mod start;
mod trial;
mod under_way;
mod wanted;

use std::collections::VecDeque;

use self::emptying::Emptying;
pub use self::known::Known;
pub use self::limits::LimitedBy;
use self::limits::Told;
use self::others::Others;
use self::room::{KEPT, Shallow};
use self::seen::Seen;
use self::trial::Trial;
use super::elasticity::Elasticity;
use super::least::Least;
use super::near::MARGIN;
use super::standing::Standing;
use super::tally::{Tally, Yield};
use super::{Epoch, PACKET};

/// What to send at until the next plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Bytes of IP packets a second.
    pub rate: f64,
    /// Seconds.
    pub length: f64,
    /// Whether there should be no queue: a round trip of then is what it is without one.
    pub is_empty: bool,
}

/// The least and the most that a leg is ever sent at, in bytes a second: a packet in a fifth of a second,
/// so that something is learned; and what no interface carries.
const LEAST: f64 = 5.0 * PACKET;
const MOST: f64 = 125e9;

/// Ten packets in a round trip at first: the initial window of today (RFC 6928); and on long paths as many as
/// on usual ones.
const AT_FIRST: f64 = 10.0 * PACKET;

/// A shorter round trip than this, in seconds, is no reason to begin faster.
const SHORTEST: f64 = 0.005;

/// The round trip of a path of which none is known, in seconds.
const UNKNOWN_RTT: f64 = 0.1;

/// By how many packets it is not known when a connection sent what is acknowledged, where two are together.
const OFF: f64 = 0.5;

/// By how much more and less is sent at times, so that it is seen what comes of it, and the queue of which
/// nobody was sure is emptied.
const PULSE: f64 = 0.2;

/// In an epoch that is no longer, in seconds; in longer ones it is less, down to half of it, and not so often.
const PULSE_LENGTH: f64 = 0.03;

/// What a link carries has changed at once, if it is off by more than such a part of it.
const FAR: f64 = 0.2;

/// A queue that is as long as this part of the longest lately may be full, and what is lost then dropped.
const FULL: f64 = 0.7;

/// The least round trip is that of so many seconds: long enough that a queue has been empty once, and short against the time
/// for which a path stays as it is (bbr's is the same, tcp_bbr.c).
const LATELY: f64 = 10.0;

/// No queue is longer than a round trip is beyond the least one of so many seconds (the kernel's memory is as long,
/// net.ipv4.tcp_min_rtt_wlen).
const LONG_AGO: f64 = 300.0;

/// So much of what is wanted is let, however much is sent without that.
const LET: f64 = 0.4;

/// What arrived of one epoch may have been acknowledged together with what came before; of so many it is plain.
const PLAIN: usize = 3;

/// Finds a leg's rate.
#[derive(Clone, Debug)]
pub struct Controller {
    ceiling: f64,
    /// What was known before, until the first round trip tells whether it is the same path.
    known: Option<Known>,
    /// What the link carries, in bytes a second.
    capacity: f64,
    /// By how much more is sent, where there may be room.
    growth: f64,
    /// Whether nothing has been found yet.
    starting: bool,
    path: Yield,
    /// The same of what was sent beyond what is known to be safe.
    beyond: Tally,
    least_rtt: Least,
    /// The least round trip for long.
    floor: Least,
    /// The least round trip of the farthest connection whose answers are waited for, in seconds; 0 before the first.
    farthest: f64,
    /// The epoch that was finished last, and what of it has gone through the link, in bytes.
    last: Option<(Epoch, f64)>,
    /// The connections that had more to send than they were let.
    flows: f64,
    /// Those that are kept to what their own path carries.
    kept: u64,
    /// The last queueing delay that is known, and the longest lately, in seconds.
    queue: f64,
    longest: f64,
    standing: Standing,
    elasticity: Elasticity,
    others: Others,
    trial: Option<Trial>,
    /// When the last trial ended, in seconds.
    judged: f64,
    /// When it was found out last whether what is usual is, in seconds; none before anything was seen without a queue.
    checked: Option<f64>,
    shallow: Shallow,
    /// What arrived lately: when, and as what the link would have carried for it, in bytes a second.
    arrived: VecDeque<(f64, f64)>,
    /// What the link carried when the last epoch was, where that can be said.
    carried: Option<f64>,
    pulse: Pulse,
    next_pulse: f64,
    /// The rate before a pulse, as a part of what the link carries.
    steady: f64,
    told: Told,
    emptying: Emptying,
}

/// More and then less is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pulse {
    None,
    Up(u8),
    Down(u8),
}

/// The epochs of a pulse in either direction: what is carried is seen between the middles of two.
const PULSE_EPOCHS: u8 = 2;

impl Controller {
    /// Makes one that knows nothing but the most that it may send, in bytes a second.
    pub fn new(ceiling: f64) -> Self {
        let ceiling = ceiling.min(MOST);
        Self {
            ceiling,
            known: None,
            capacity: (AT_FIRST / UNKNOWN_RTT).min(ceiling),
            growth: 0.0,
            starting: true,
            path: Yield::new(),
            beyond: Tally::default(),
            least_rtt: Least::of(LATELY),
            floor: Least::of(LONG_AGO),
            farthest: 0.0,
            last: None,
            flows: 1.0,
            kept: 0,
            queue: 0.0,
            longest: 0.0,
            standing: Standing::default(),
            elasticity: Elasticity::default(),
            others: Others::default(),
            trial: None,
            judged: 0.0,
            checked: None,
            shallow: Shallow::default(),
            arrived: VecDeque::new(),
            carried: None,
            pulse: Pulse::None,
            next_pulse: 0.0,
            steady: 1.0,
            told: Told::default(),
            emptying: Emptying::default(),
        }
    }

    /// The same, of a leg of which something was known before: it begins with half of what that carried, once a round
    /// trip says that it may be the same path, and goes on from there as from any start (Careful Resume, RFC 9959).
    #[must_use]
    pub fn resume(ceiling: f64, known: Known) -> Self {
        Self {
            known: Some(known),
            ..Self::new(ceiling)
        }
    }

    /// Returns what the link is taken to carry, in bytes a second.
    pub fn capacity(&self) -> f64 {
        self.capacity
    }

    /// Returns the share of packets that the path lets through.
    pub fn path_share(&self) -> f64 {
        self.path.share()
    }

    /// Returns the queueing delay that is known, in seconds.
    pub fn queue(&self) -> f64 {
        self.queue
    }

    /// Returns whether nothing has been found yet.
    pub fn is_starting(&self) -> bool {
        self.starting
    }

    /// Returns the least round trip lately, in seconds; none before the first.
    pub fn least_rtt(&self) -> Option<f64> {
        self.least_rtt.get()
    }

    /// Returns the least round trip of the last five minutes of use, in seconds; none before the first.
    pub fn least_rtt_for_long(&self) -> Option<f64> {
        self.floor.get()
    }

    /// Never sends more than that from now on, in bytes a second.
    pub fn limit(&mut self, ceiling: f64) {
        self.ceiling = ceiling.min(MOST);
        self.capacity = self.capacity.min(self.ceiling);
    }

    /// Returns the time after which what is sent is acknowledged where there is no queue, or what it is taken for, in seconds.
    pub(super) fn rtt(&self) -> f64 {
        let least = self.least_rtt.get().unwrap_or(UNKNOWN_RTT);
        if self.farthest > MARGIN * least {
            self.farthest
        } else {
            least
        }
    }

    /// Returns the standard deviation of the share that is let through of so many bytes in one piece: of each
    /// connection a packet may be counted on the wrong side of either end.
    pub(super) fn deviation(&self, bytes: f64) -> f64 {
        let ends = OFF * self.flows.sqrt() * PACKET / bytes.max(PACKET);
        self.path.deviation(bytes).hypot(ends)
    }

    /// Returns whether less of an epoch has arrived than is usual.
    pub(super) fn is_short(&self, epoch: &Epoch) -> bool {
        let doubt = 3.0 * self.path.deviation(epoch.near);
        self.path.share() - epoch.share() >= doubt
    }

    /// The length of an epoch, in seconds: no more often than four times a round trip is anything learned,
    /// nor from a few packets.
    fn length(&self) -> f64 {
        let [least, packets]: [f64; 2] = if self.starting {
            [0.010, 15.0]
        } else {
            [0.025, 20.0]
        };
        // Of each connection a packet at least: with less of many some say nothing, and with more it is learned late.
        let enough = packets.max(self.flows) * PACKET / self.capacity;
        (self.rtt() / 4.0).max(least).max(enough).min(1.0)
    }

    /// Takes a round trip in seconds that was just seen.
    pub fn heard(&mut self, now: f64, rtt: f64) {
        self.least_rtt.add(now, rtt);
        self.floor.add(now, rtt);
        if self.starting && self.path.packets() == 0.0 && self.beyond.packets() == 0.0 {
            let known = self.known.take();
            let known = known.and_then(|known| Some((known.rtt, known.first(rtt)?)));
            if let Some((least, _)) = known {
                self.floor.add(now, least.min(rtt));
            }
            let first = (AT_FIRST / rtt.max(SHORTEST)).max(known.map_or(0.0, |it| it.1));
            self.capacity = self.capacity.max(first).min(self.ceiling);
        }
    }

    /// Takes an epoch of which nothing more will be acknowledged: something that was sent later is, and its
    /// own longest round trip has passed.
    pub fn finish(&mut self, now: f64, epoch: &Epoch) {
        let Some(seen) = self.see(now, epoch) else {
            return;
        };
        self.told.take(&seen, self.elasticity.of_others().is_some());
        self.watch_others(now);
        self.watch_emptying(&seen);
        if self.starting {
            self.start(seen);
        } else if seen.is_queued {
            self.with_queue(seen);
        } else if seen.is_rising {
            let carried = self.plainly(seen).unwrap_or(self.capacity);
            self.capacity = self.capacity.min(carried);
        } else if seen.is_limited {
            self.path.add(epoch);
        } else {
            self.without_queue(seen);
        }
        self.bound();
    }

    /// Leaves an epoch out that says nothing: the link was gone. What was being found out about it goes on
    /// from what was known before.
    pub(super) fn skip(&mut self, now: f64) {
        self.last = None;
        if let Some(trial) = self.trial {
            self.restore(&trial, now);
        }
    }

    /// Goes back to what was known before, but for what was heard since.
    pub(super) fn go_back(&mut self, before: &Self) {
        *self = Self {
            ceiling: self.ceiling,
            least_rtt: std::mem::take(&mut self.least_rtt),
            floor: std::mem::take(&mut self.floor),
            ..before.clone()
        };
    }

    /// With a queue all the time the link has carried what it can.
    fn with_queue(&mut self, seen: Seen<'_>) {
        let Seen { epoch, carried, .. } = seen;
        self.shallow.is_one = false;
        self.trial = None;
        self.beyond = Tally::default();
        self.growth = 0.0;
        let is_full = epoch.last_queue.max(epoch.first_queue) > FULL * self.longest;
        if !is_full {
            self.path.add(epoch);
        }
        let Some(carried) = carried.filter(|_| !seen.is_limited) else {
            return;
        };
        if let Some((sent, answered)) = seen.sent.zip(seen.answered) {
            let carried = [carried, answered];
            self.elasticity.compare(epoch.number, carried, sent);
        }
        let off = carried - self.capacity;
        let most = FAR * self.capacity;
        let plain = self.plainly(seen).map(|it| it - self.capacity);
        self.capacity += match plain.filter(|off| off.abs() > most) {
            Some(off) => off,
            None => off.clamp(-most, most) / 4.0,
        };
    }

    /// Returns what the link has carried in the last two epochs, the one that is nearer to what it is taken to
    /// carry: a burst of losses makes a single one wrong.
    fn plainly(&self, seen: Seen<'_>) -> Option<f64> {
        let (this, before) = seen.carried.zip(seen.carried_before)?;
        let [less, more] = [this.min(before), this.max(before)];
        Some(self.capacity.clamp(less, more))
    }

    /// Never more than a few times what arrived lately, whatever else is believed; nor less than half of the least.
    fn bound(&mut self) {
        let arrived = || self.arrived.iter().map(|it| it.1);
        let most = arrived().fold(0.0, f64::max);
        if self.arrived.len() >= PLAIN {
            let least = arrived().fold(f64::INFINITY, f64::min);
            self.capacity = self.capacity.max(0.5 * least);
        }
        if most > 0.0 {
            let times = if self.starting { 4.0 } else { 2.0 };
            self.capacity = self.capacity.min(times * most);
        }
        self.capacity = self.capacity.clamp(LEAST.min(self.ceiling), self.ceiling);
    }

    /// Plans what is sent from now on, a time in seconds; `waiting` are the epochs of which something is
    /// still under way.
    pub fn plan(&mut self, now: f64, waiting: &[Epoch]) -> Span {
        let length = self.length();
        if self.starting {
            let rate = self.plan_start(now, waiting);
            return Span {
                rate,
                length,
                is_empty: self.is_empty(),
            };
        }
        // What will be there once it is seen what is under way: so nothing is done about it twice.
        let queue = self.queue_then(now, waiting).max(0.0);
        let mut factor = self.factor(now, queue, length);
        let emptied = self.empty(now, queue);
        match self.pulse {
            Pulse::None if now >= self.next_pulse => {
                self.next_pulse = now + (20.0 * length).max(2.0 * self.rtt()).max(1.0);
                if self.trial.is_none() && !self.shallow.is_one && queue > 0.0 && emptied.is_none()
                {
                    self.pulse = Pulse::Up(PULSE_EPOCHS);
                }
            }
            Pulse::Up(1) => self.pulse = Pulse::Down(PULSE_EPOCHS),
            Pulse::Up(left) => self.pulse = Pulse::Up(left - 1),
            Pulse::None | Pulse::Down(1) => self.pulse = Pulse::None,
            Pulse::Down(left) => self.pulse = Pulse::Down(left - 1),
        }
        // The longer an epoch is, the longer the queue that comes of it.
        let pulse = (PULSE * PULSE_LENGTH / length).clamp(PULSE / 2.0, PULSE);
        match self.pulse {
            Pulse::None => {}
            Pulse::Up(_) => factor = self.steady * (1.0 + pulse),
            Pulse::Down(_) => factor = self.steady * (1.0 - pulse),
        }
        if self.pulse == Pulse::None {
            self.steady = factor.min(1.0);
        }
        if let Some(most) = emptied {
            factor = factor.min(most);
        }
        let least = LEAST.min(self.ceiling);
        let rate = self.capacity * factor;
        let rate = match self.trial {
            // What it asks is sent.
            Some(_) => rate,
            None => (rate - Epoch::unasked(waiting)).max(LET * rate),
        };
        Span {
            rate: rate.clamp(least, self.ceiling),
            length,
            is_empty: self.is_empty(),
        }
    }

    /// Returns the rate as a part of what the link carries, with such a queue.
    fn factor(&self, now: f64, queue: f64, length: f64) -> f64 {
        let horizon = self.rtt().max(3.0 * length);
        let mut factor = 1.0 + (self.wanted() - queue) / horizon + self.growth;
        factor = factor.clamp(0.5, 1.25);
        factor = self.beside_others(now, factor);
        if let Some(trial) = &self.trial {
            let again = trial.rate().map(|rate| rate / self.capacity);
            factor = again.unwrap_or(factor.min(trial.less()));
        } else if now < self.shallow.until {
            factor = factor.min(KEPT);
        }
        factor
    }
}
