//! Without a queue: whether there is room for more.

use super::super::tally::Tally;
use super::super::{Epoch, PACKET};
use super::Controller;
use super::seen::Seen;
use super::trial::{DOUBTED, Trial, Verdict};

/// By how much a round trip more is sent where there is room, at first and at most.
const GROWTH: [f64; 2] = [0.01, 0.25];

/// The rate that is kept where too much would be dropped, and the same that is known to be safe, of what the
/// link carries.
pub(super) const KEPT: f64 = 0.98;
pub(super) const SAFE: f64 = 0.99;

/// The seconds for which a rate is kept once too much was dropped: twice as long each time, at most the
/// second.
pub(super) const PATIENCE: [f64; 2] = [1.0, 8.0];

/// For so many seconds after a queue it is not in doubt what is usual.
const QUEUED: f64 = 5.0;

/// What is usual is in doubt where there was no queue for so long: in seconds, less of them where there never was one, in
/// round trips, and in times of what a trial takes; and where no more than such a share arrives.
const WITHOUT_QUEUE: f64 = 10.0;
const NEVER_QUEUED: f64 = 3.0;
const WITHOUT_QUEUE_TRIPS: f64 = 40.0;
const WITHOUT_QUEUE_TRIALS: f64 = 20.0;
const DOUBTFUL: f64 = 0.97;

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

/// What is sent beyond so many times the rate was not let.
const BEYOND: f64 = 1.25;

impl Controller {
    /// Takes what its link drops for losses of the path: so much would be carried, in bytes a second, and such a share
    /// arrive.
    #[cfg(test)]
    pub(in crate::find_rate) fn deceived(capacity: f64, share: f64) -> Self {
        let mut it = Self::new(f64::INFINITY);
        it.path.add(&Epoch {
            sent: 1500.0 * PACKET,
            near: 1500.0 * PACKET,
            delivered: share * 1500.0 * PACKET,
            ..Epoch::default()
        });
        it.least_rtt.add(0.0, 0.05);
        it.capacity = capacity;
        it.starting = false;
        it
    }

    /// Without a queue there is room for more, or what is too much is dropped at once.
    pub(super) fn without_queue(&mut self, seen: Seen<'_>) {
        let Seen { epoch, now, .. } = seen;
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
        let one = seen.short > (5.0 * self.deviation(epoch.near)).max(0.1);
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
        if self.is_doubtful(now) {
            let before = (self.capacity, self.starting);
            self.trial = Some(Trial::new(now, before, *epoch, usual).checking(usual));
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

    /// Returns whether there surely was a queue lately.
    pub(super) fn was_queued(&self, now: f64) -> bool {
        self.told.queued().is_some_and(|it| now - it <= QUEUED)
    }

    /// Returns whether there was no queue for so long that what is usual may be drops.
    fn is_doubtful(&mut self, now: f64) -> bool {
        let queued = self.told.queued();
        let seconds = queued.map_or(NEVER_QUEUED, |_| WITHOUT_QUEUE);
        let trial = DOUBTED * PACKET / (self.path.share() * self.capacity);
        let long = seconds
            .max(WITHOUT_QUEUE_TRIPS * self.rtt())
            .max(WITHOUT_QUEUE_TRIALS * trial);
        let checked = *self.checked.get_or_insert(now);
        let since = queued.map_or(checked, |queued| queued.max(checked));
        self.path.share() < DOUBTFUL && now - since > long
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
        let mut trial = Trial::new(now, before, *epoch, share);
        if !self.was_queued(now) {
            trial = trial.doubting(self.path.share());
        }
        self.trial = Some(trial);
        // Of many that begin much more is sent than is let, since what they send first is not paced.
        let sent = epoch.sent / epoch.length();
        let sent = if sent > BEYOND * epoch.rate {
            sent
        } else {
            epoch.rate
        };
        let through = sent * share / self.path.share();
        let carried = seen.carried.unwrap_or(through).min(through);
        let least = if self.starting { 0.25 } else { 0.5 };
        self.capacity = carried.max(least * sent).min(self.capacity);
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
            Verdict::Chance(rate) => {
                self.path.add(&trial.noticed);
                self.restore(&trial, now);
                self.capacity = rate;
            }
            Verdict::Drops(delivered) => self.keep(delivered / usual, now),
            Verdict::Mistaken(tally) => {
                let carried = self.capacity * usual / tally.share();
                self.path.begin_from(tally);
                self.shallow.is_one = false;
                self.keep(carried, now);
            }
        }
    }

    /// What was sent before says nothing new then.
    fn end_trial(&mut self, now: f64) {
        self.trial = None;
        self.judged = now;
        self.checked = Some(now);
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
