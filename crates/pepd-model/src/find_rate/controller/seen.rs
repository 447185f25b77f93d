//! What a finished epoch says.

use super::super::elasticity::Elasticity;
use super::super::ledger::FORGOTTEN;
use super::super::{DELAYED, Epoch, PACKET};
use super::Controller;

/// The packets of each connection in an epoch with which the last delays of it are not those of who is late.
const DENSE: f64 = 2.0;

/// Such a part of what the link is taken to carry it surely does, where each connection sends little.
const SURELY: f64 = 0.85;

/// Less than such a part of what the link is taken to carry does not try it.
const TRIED: f64 = 0.5;

/// Where so much of what is sent more is carried more the link is not full, or less than a fifth of it is this leg's.
const FREE: f64 = 0.8;

/// A leg's part of the link is not taken to be smaller than that.
const LEAST_PART: f64 = 0.1;

/// What the link carried from the middle of an epoch to that of the next one.
#[derive(Clone, Copy, Debug)]
struct Carried {
    /// The first of the two.
    last: Epoch,
    /// The seconds in between.
    passed: f64,
    /// In bytes a second, where that is plain; and by the times of the acknowledgements alone.
    rate: Option<f64>,
    answered: f64,
}

/// What a finished epoch says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'e> {
    pub(super) epoch: &'e Epoch,
    pub(super) now: f64,
    /// What the link carried, in bytes a second, where that can be said.
    pub(super) carried: Option<f64>,
    /// The same of the epoch before.
    pub(super) carried_before: Option<f64>,
    /// The same as `carried`, by the times of the acknowledgements alone.
    pub(super) answered: Option<f64>,
    /// What was to be sent for that, in bytes a second, if it was always the same. What is sent varies with what is acknowledged,
    /// where a connection has a packet or two in an epoch.
    pub(super) sent: Option<f64>,
    /// By how much less than usual was let through.
    pub(super) short: f64,
    /// The connections had less to send than they were let.
    pub(super) is_limited: bool,
    pub(super) is_queued: bool,
    /// There was more of a queue than a link with hardly any room can hold, or late acknowledgements look like.
    pub(super) is_surely_queued: bool,
    pub(super) is_rising: bool,
}

impl Controller {
    /// Sees what a finished epoch says; none if nothing.
    pub(super) fn see<'e>(&mut self, now: f64, epoch: &'e Epoch) -> Option<Seen<'e>> {
        if epoch.near <= 0.0 || epoch.delivered <= 0.0 {
            self.skip(now);
            return None;
        }
        let (length, target) = (epoch.length(), self.target());
        self.flows = epoch.flows.max(1.0);
        self.farthest = epoch.farthest.max(FORGOTTEN * self.farthest);
        let queue = self.queue_of(epoch);
        self.longest = (self.longest * (1.0 - 0.02 * length)).max(epoch.last_queue);
        let usual = self.path.share();
        let short = usual - epoch.share();
        // What was lost behind the link has taken its time there; what was dropped before it has not.
        let through = if self.is_short(epoch) {
            epoch.arrived() / usual
        } else {
            epoch.sent
        };
        let is_dense = Self::is_dense(epoch);
        let both = self.carried_by(epoch, through, is_dense);
        let carried = both.and_then(|it| it.rate);
        let carried_before = std::mem::replace(&mut self.carried, carried);
        // Who has sent little, as after a timeout, has not tried what arrives; nor has what is little tried what is carried.
        let is_limited = epoch.sent < 0.85 * epoch.rate * length;
        let is_much = epoch.sent > TRIED * self.capacity * length;
        if let Some(both) = both.filter(|_| is_much && !is_limited) {
            // Whatever is taken for usual, not less than six in ten arrive.
            let arrived = (both.last.arrived() + epoch.arrived()) / 2.0 / usual.max(0.6);
            self.arrive(epoch.acknowledged, arrived / both.passed);
        }
        self.doubt(epoch, queue, is_dense);
        let queue = self.queue_of(epoch);
        self.queue = queue;
        // What a link with hardly any room can hold, or acknowledgements look like that are taken late, is no queue where
        // such a link is there, or may be.
        let may_be_shallow = self.trial.is_some() || self.shallow.is_one;
        let least = if may_be_shallow { target } else { target / 2.0 };
        let risen = epoch.last_queue - epoch.first_queue;
        Some(Seen {
            epoch,
            now,
            carried,
            carried_before,
            answered: both.map(|it| it.answered),
            sent: both
                .map(|both| (both.last.rate, epoch.rate))
                .filter(|(last, this)| (last / this).ln().abs() < 0.07)
                .map(|(last, this)| (last + this) / 2.0),
            short,
            is_limited,
            is_queued: queue > least,
            is_surely_queued: queue > target,
            is_rising: is_dense && !is_limited && risen > target.max(0.25 * length) && queue > 0.0,
        })
    }

    /// Returns the queueing delay that an epoch shows, in seconds. What was taken off the first round trip of a connection may
    /// have been too much.
    fn queue_of(&mut self, epoch: &Epoch) -> f64 {
        let queue = self.standing.queue(epoch.least_queue);
        queue.min(self.beyond_floor(epoch))
    }

    /// Returns by how much the shortest round trip of an epoch is longer than the least for long, in seconds: no queue is longer.
    fn beyond_floor(&self, epoch: &Epoch) -> f64 {
        let floor = self.floor.get().unwrap_or_default();
        (epoch.least_rtt - floor).max(0.0)
    }

    /// Returns what the link carried since the epoch before, of which and of this one so much has gone through it, in bytes.
    fn carried_by(&mut self, epoch: &Epoch, through: f64, is_dense: bool) -> Option<Carried> {
        let (last, before) = self.last.replace((*epoch, through))?;
        let answered = epoch.acknowledged - last.acknowledged;
        let passed = if is_dense || self.starting {
            answered
        } else {
            self.passed(epoch) - self.passed(&last)
        };
        if last.number + 1 != epoch.number || passed <= 0.0 {
            return None;
        }
        let through = (before + through) / 2.0;
        // Where much was lost or told late the middle of what arrived is not that of what was sent.
        let least = epoch.length() / 4.0;
        let rate = through / passed.max(least);
        let is_plain = passed >= least || rate > self.capacity;
        Some(Carried {
            last,
            passed: passed.max(least),
            rate: is_plain.then_some(rate),
            answered: through / answered.max(least),
        })
    }

    /// Returns when the middle of an epoch was through the queue, in seconds, by how long that was: where some acknowledgements
    /// come late the mean of their times says it less well.
    fn passed(&self, epoch: &Epoch) -> f64 {
        // The least is that of its beginning or its end.
        let change = (epoch.sent / self.capacity - epoch.length()).abs();
        let queue = epoch.least_queue.min(self.beyond_floor(epoch));
        (epoch.began + epoch.ended + change) / 2.0 + queue
    }

    /// Returns for how long after a round trip something of an epoch may still be acknowledged, in seconds: where each connection
    /// sends little some receivers wait for a second packet.
    pub(in crate::find_rate) fn late(&self, epoch: &Epoch) -> f64 {
        if Self::is_dense(epoch) || self.starting {
            0.0
        } else {
            DELAYED
        }
    }

    /// Looks whether the path has become longer by what looks like such a queue.
    fn doubt(&mut self, epoch: &Epoch, queue: f64, is_dense: bool) {
        let (length, target) = (epoch.length(), self.target());
        let sent = (epoch.sent / length, length);
        // Of many it is not known so well what is carried.
        let surely = if is_dense { 1.0 } else { SURELY } * self.capacity;
        let others = self.elasticity.of_others();
        // Where all that is sent more is carried the link is not full, or hardly any of it is this leg's: what looks like a
        // queue need not be one.
        let least = if others.is_some_and(|it| it > FREE) {
            0.5
        } else {
            2.0
        } * target;
        // Of what others send nothing is saved: the queue becomes shorter by this leg's part only.
        let own = (1.0 - others.unwrap_or(0.0)).max(LEAST_PART);
        let bounds = (least, self.rtt());
        let longer = self.standing.watch(queue, (own, sent), surely, bounds);
        if let Some(before) = longer {
            self.capacity = self.capacity.max(before);
            self.elasticity = Elasticity::default();
        }
    }

    /// Returns whether each connection has sent some packets in an epoch. Of those that send little some are acknowledged late, and
    /// these are the last ones.
    fn is_dense(epoch: &Epoch) -> bool {
        epoch.sent >= DENSE * PACKET * epoch.flows.max(1.0)
    }

    fn arrive(&mut self, now: f64, rate: f64) {
        self.arrived.push_back((now, rate));
        let since = now - 2.0 * self.rtt() - 4.0 * self.length();
        while self.arrived.front().is_some_and(|first| first.0 < since) {
            self.arrived.pop_front();
        }
    }
}
