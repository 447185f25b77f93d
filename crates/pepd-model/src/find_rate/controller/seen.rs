//! What a finished epoch says.

use super::super::elasticity::Elasticity;
use super::super::ledger::FORGOTTEN;
use super::super::{Epoch, PACKET};
use super::Controller;

/// The packets of each connection in an epoch with which the last delays of it are not those of who is late.
const DENSE: f64 = 2.0;

/// What a finished epoch says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'e> {
    pub(super) epoch: &'e Epoch,
    pub(super) now: f64,
    /// What the link carried, in bytes a second, where that can be said.
    pub(super) carried: Option<f64>,
    /// The same of the epoch before.
    pub(super) carried_before: Option<f64>,
    /// What was sent for that, in bytes a second, if it was always the same.
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
        let last = self.last.replace((*epoch, through));
        let last = last.filter(|(last, _)| last.number + 1 == epoch.number);
        let passed = last.map_or(0.0, |(last, _)| epoch.acknowledged - last.acknowledged);
        let last = last.filter(|_| passed > 0.0);
        // Where much was lost or told late the middle of what arrived is not that of what was sent.
        let passed = passed.max(length / 4.0);
        // From the middle of the one to the middle of the other.
        let carried = last.map(|(_, before)| (before + through) / 2.0 / passed);
        let carried_before = std::mem::replace(&mut self.carried, carried);
        // Who has sent little, as after a timeout, has not tried what arrives.
        let is_limited = epoch.sent < 0.85 * epoch.rate * length;
        if let Some((last, _)) = last.filter(|_| !is_limited) {
            // Whatever is taken for usual, not less than six in ten arrive.
            let arrived = (last.arrived() + epoch.arrived()) / 2.0 / usual.max(0.6);
            self.arrive(epoch.acknowledged, arrived / passed);
        }
        let sent = (epoch.sent / length, length);
        let longer = self
            .standing
            .watch(queue, sent, self.capacity, (2.0 * target, self.rtt()));
        if let Some(before) = longer {
            self.capacity = self.capacity.max(before);
            self.elasticity = Elasticity::default();
        }
        let queue = self.queue_of(epoch);
        self.queue = queue;
        // What a link with hardly any room can hold, or acknowledgements look like that are taken late, is no queue where
        // such a link is there, or may be.
        let may_be_shallow = self.trial.is_some() || self.shallow.is_one;
        let least = if may_be_shallow { target } else { target / 2.0 };
        let risen = epoch.last_queue - epoch.first_queue;
        // Of connections that send little some are acknowledged late, and these are the last ones.
        let is_dense = epoch.sent >= DENSE * PACKET * self.flows;
        Some(Seen {
            epoch,
            now,
            carried,
            carried_before,
            sent: last
                .map(|(last, _)| (last.sent / last.length(), epoch.sent / length))
                .filter(|(last, this)| (last / this).ln().abs() < 0.07)
                .map(|(last, this)| (last + this) / 2.0),
            short,
            is_limited,
            is_queued: queue > least,
            is_surely_queued: queue > target,
            is_rising: is_dense && risen > target.max(0.25 * length) && queue > 0.0,
        })
    }

    /// Returns the queueing delay that an epoch shows, in seconds. What was taken off the first round trip of a connection may
    /// have been too much.
    fn queue_of(&mut self, epoch: &Epoch) -> f64 {
        let queue = self.standing.queue(epoch.least_queue);
        let floor = self.floor.get().unwrap_or_default();
        queue.min((epoch.least_rtt - floor).max(0.0))
    }

    fn arrive(&mut self, now: f64, rate: f64) {
        self.arrived.push_back((now, rate));
        let since = now - 2.0 * self.rtt() - 4.0 * self.length();
        while self.arrived.front().is_some_and(|first| first.0 < since) {
            self.arrived.pop_front();
        }
    }
}
