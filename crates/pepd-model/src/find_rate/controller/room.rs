//! Without a queue: whether there is room for more.

use super::super::Epoch;
use super::super::tally::Tally;
use super::trial::{Trial, Verdict};
use super::{Controller, Seen};

/// By how much a round trip more is sent where there is room, at first and at most.
const GROWTH: [f64; 2] = [0.01, 0.25];

/// The rate that is kept where too much would be dropped, and the same that is known to be safe, of what the
/// link carries.
pub(super) const KEPT: f64 = 0.98;
pub(super) const SAFE: f64 = 0.99;

/// The seconds for which a rate is kept once too much was dropped: twice as long each time, at most the
/// second.
pub(super) const PATIENCE: [f64; 2] = [1.0, 8.0];

/// A link that drops at once what is too much.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shallow {
    /// Whether it is one.
    pub(super) is_one: bool,
    /// The rate at which nothing is dropped.
    pub(super) safe: f64,
    /// For how long the rate is kept, and until when.
    pub(super) patience: f64,
    pub(super) until: f64,
}

impl Controller {
    /// Without a queue there is room for more, or what is too much is dropped at once.
    pub(super) fn without_queue(&mut self, seen: Seen<'_>) {
        let epoch = seen.epoch;
        if let Some(trial) = self.trial {
            self.go_on(trial, seen);
            return;
        }
        if epoch.began < self.judged {
            return;
        }
        let is_beyond = !self.shallow.is_one || epoch.rate > self.shallow.safe;
        if is_beyond {
            self.beyond.add(epoch);
        }
        let usual = self.path.share();
        let one = seen.short > (5.0 * self.deviation(epoch.sent)).max(0.1);
        let doubt = 4.0 * self.deviation(self.beyond.bytes());
        let all = self.beyond.packets() > 150.0 && usual - self.beyond.share() > doubt.max(0.03);
        if self.path.is_known() && (one || all) {
            let share = if one {
                epoch.share()
            } else {
                self.beyond.share()
            };
            self.notice(seen, share);
            return;
        }
        if self.beyond.packets() > 1500.0 {
            self.beyond = Tally::default();
            self.shallow.safe = self.shallow.safe.max(epoch.rate);
        }
        if !self.shallow.is_one || !is_beyond {
            self.path.add(epoch);
        }
        if epoch.ended >= self.shallow.until {
            self.grow(epoch);
        }
    }

    fn grow(&mut self, epoch: &Epoch) {
        self.capacity = self.capacity.max(epoch.rate.min(1.25 * self.capacity));
        let [least, mut most] = GROWTH;
        if self.shallow.is_one {
            // The further it has gone well, the less reason to be careful.
            most = (epoch.rate / self.shallow.safe - 1.0).clamp(0.05, most);
        }
        let length = epoch.length();
        let trips = length / (self.rtt() + length);
        self.growth = (self.growth.max(least) * 2_f64.powf(trips)).min(most);
    }

    /// Begins to find out why less was let through, such a share.
    pub(super) fn notice(&mut self, seen: Seen<'_>, share: f64) {
        let Seen { epoch, now, .. } = seen;
        let before = (self.capacity, self.starting);
        self.trial = Some(Trial::new(now, before, *epoch, share));
        let through = epoch.rate * share / self.path.share();
        let carried = seen.carried.unwrap_or(through).min(through);
        let least = if self.starting { 0.25 } else { 0.5 };
        self.capacity = carried.max(least * epoch.rate).min(self.capacity);
        self.growth = 0.0;
        self.starting = false;
    }

    /// Goes on to find out.
    fn go_on(&mut self, mut trial: Trial, seen: Seen<'_>) {
        let Seen { epoch, now, .. } = seen;
        let usual = self.path.share();
        let carries = (self.capacity, self.ceiling);
        let verdict = trial.take(now, epoch, usual, |bytes| self.deviation(bytes), carries);
        self.trial = Some(trial);
        match verdict {
            Verdict::None => {}
            Verdict::Lost(tally) => {
                self.path.begin_from(tally);
                self.restore(&trial, now);
            }
            Verdict::Chance => {
                self.path.add(&trial.noticed);
                self.restore(&trial, now);
            }
            Verdict::Drops(delivered) => self.keep(delivered / usual, now),
        }
    }

    /// What was sent before says nothing new then.
    fn end_trial(&mut self, now: f64) {
        self.trial = None;
        self.judged = now;
        self.beyond = Tally::default();
    }

    /// It was a chance: goes on as before.
    pub(super) fn restore(&mut self, trial: &Trial, now: f64) {
        self.end_trial(now);
        self.capacity = trial.before;
        self.starting = trial.starting;
    }

    /// What is too much is dropped: stays below that.
    fn keep(&mut self, carried: f64, now: f64) {
        self.end_trial(now);
        self.capacity = carried;
        let [least, most] = PATIENCE;
        let patience = match self.shallow.is_one {
            true => (2.0 * self.shallow.patience).min(most),
            false => least,
        };
        self.shallow = Shallow {
            is_one: true,
            safe: SAFE * self.capacity,
            patience,
            until: now + patience + 2.0 * self.rtt(),
        };
    }
}
