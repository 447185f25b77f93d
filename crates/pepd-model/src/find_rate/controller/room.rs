//! Without a queue: whether there is room for more.

use super::super::Epoch;
use super::super::tally::Tally;
use super::{Controller, Seen};

/// By how much a round trip more is sent where there is room, at first and at most.
const GROWTH: [f64; 2] = [0.01, 0.25];

/// The rate while it is found out whether less is lost then, the rate that is kept where too much would be
/// dropped, and the same that is known to be safe, of what the link carries.
pub(super) const ON_TRIAL: f64 = 0.9;
pub(super) const KEPT: f64 = 0.98;
pub(super) const SAFE: f64 = 0.99;

/// The packets after which a trial ends, however it stands.
const TRIAL: f64 = 1000.0;

/// The seconds for which a rate is kept once too much was dropped: twice as long each time, at most the
/// second.
pub(super) const PATIENCE: [f64; 2] = [1.0, 8.0];

/// Less was let through than usual, without a queue: by sending less it is found out whether it was too
/// much.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    since: f64,
    /// What the link was taken to carry before.
    capacity: f64,
    /// The share that was let through.
    low: f64,
    tally: Tally,
}

impl Trial {
    /// Returns what the link was taken to carry before, in bytes a second.
    pub(super) fn capacity(&self) -> f64 {
        self.capacity
    }
}

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
        let Seen { epoch, now, .. } = seen;
        if let Some(trial) = self.trial {
            self.try_less(trial, seen);
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
            self.trial = Some(Trial {
                since: now,
                capacity: self.capacity,
                low: share,
                tally: Tally::default(),
            });
            let carried = seen.carried.unwrap_or(self.capacity);
            self.capacity = carried.clamp(0.5 * self.capacity, self.capacity);
            self.growth = 0.0;
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

    /// Finds out whether more is let through of less.
    fn try_less(&mut self, mut trial: Trial, seen: Seen<'_>) {
        let Seen { epoch, now, .. } = seen;
        if epoch.began < trial.since {
            return;
        }
        trial.tally.add(epoch);
        let middle = (self.path.share() + trial.low) / 2.0;
        let share = trial.tally.share();
        let doubt = 3.0 * self.deviation(trial.tally.bytes());
        if trial.tally.packets() < TRIAL && (share - middle).abs() < doubt {
            self.trial = Some(trial);
            return;
        }
        self.trial = None;
        self.beyond = Tally::default();
        if share <= middle {
            // It is lost, whatever is sent.
            self.path.begin_from(trial.tally);
            self.capacity = trial.capacity;
            return;
        }
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
