//! Whether what is lost is lost because it was too much.

use super::super::Epoch;
use super::super::tally::Tally;

/// The rate while it is found out whether less is lost then, and the rate at which it is found out afterwards
/// whether as much is lost again, of what the link would seem to carry.
pub(super) const LESS: f64 = 0.9;
pub(super) const AGAIN: f64 = 1.25;

/// The packets after which it is plain that no less is lost of less, or not.
const MOST: f64 = 1000.0;

/// The packets of less after which what was taken for the path's losses would have been seen to be drops.
pub(super) const DOUBTED: f64 = 300.0;

/// By how much more than usual arrives at least then.
const BETTER: f64 = 0.02;

/// What comes first at the higher rate does not count: a policer or a buffer lets that through that has gathered
/// while less was sent, and it holds something in any case; in seconds at the rate that it lets through.
const BUCKET: f64 = 0.02;

/// The packets at least of a sample at the higher rate, for all that is counted on the wrong side of its ends.
const SAMPLE: f64 = 40.0;

/// Of so many samples at the higher rate all are short where it is too much, or of one more all but one. Where a
/// burst of losses was to blame each of them is by a chance of one in three or so, and then of a thousand trials
/// hardly a handful deceives.
const SAMPLES: u8 = 6;

/// Less was let through than usual, without a queue. Was that too much, or a burst of losses that has nothing to
/// do with the rate? What is lost because it was too much is not where less is sent, and is lost all the time
/// where more is sent again; a burst is over by then, and comes back at times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// What the link was taken to carry before, and whether nothing had been found yet.
    pub(super) before: f64,
    pub(super) starting: bool,
    /// When less was let through.
    pub(super) noticed: Epoch,
    /// The share that was.
    low: f64,
    part: Part,
    about: About,
    /// Only what was sent since then counts, a time in seconds.
    since: f64,
    /// What was sent in this part, or since its last sample, and all that was in it, in how many seconds.
    last: Tally,
    all: Tally,
    seconds: f64,
    /// How many of the bytes of all connections arrived in these.
    arrived: f64,
}

/// What is found out.
#[derive(Clone, Copy, Debug, PartialEq)]
enum About {
    /// Why less was let through than usual.
    Short,
    /// The same, and whether as much as is usual, such a share, would be lost of less.
    ShortAndUsual(f64),
    /// That alone.
    Usual(f64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    /// Less is sent.
    Less,
    /// As much as was too much is sent again, such a rate; so many samples were short, and so many not.
    Again { rate: f64, counted: [u8; 2] },
}

/// What a trial says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    /// Nothing yet.
    None,
    /// As much is lost of less.
    Lost(Tally),
    /// It was a chance: so much is not too much, in bytes a second.
    Chance(f64),
    /// What is more than that is dropped, in delivered bytes a second.
    Drops(f64),
    /// What was taken for the path's losses was dropped.
    Mistaken(Tally),
}

impl Trial {
    /// Begins one at a time in seconds: `low` is the share that was let through.
    pub(super) fn new(now: f64, (before, starting): (f64, bool), noticed: Epoch, low: f64) -> Self {
        Self {
            before,
            starting,
            noticed,
            low,
            part: Part::Less,
            about: About::Short,
            since: now,
            last: Tally::default(),
            all: Tally::default(),
            seconds: 0.0,
            arrived: 0.0,
        }
    }

    /// The same where what is usual is in doubt: no more is sent than arrives, such a share.
    #[must_use]
    pub(super) fn doubting(self, usual: f64) -> Self {
        Self {
            about: About::ShortAndUsual(usual),
            ..self
        }
    }

    /// The same where nothing else is.
    #[must_use]
    pub(super) fn checking(self, usual: f64) -> Self {
        Self {
            about: About::Usual(usual),
            ..self
        }
    }

    /// Returns the most that is sent while less is, of what the link would seem to carry.
    pub(super) fn less(&self) -> f64 {
        match self.about {
            About::Short => LESS,
            About::ShortAndUsual(usual) | About::Usual(usual) => LESS * usual,
        }
    }

    /// Returns what to send at, in bytes a second, where that much and no less is wanted.
    pub(super) fn rate(&self) -> Option<f64> {
        match self.part {
            Part::Less => None,
            Part::Again { rate, .. } => Some(rate),
        }
    }

    /// Takes an epoch; `usual` is the share that is let through otherwise, `deviation` that of the share of so
    /// many bytes, `capacity` what the link would seem to carry, and `ceiling` the most that may be sent.
    pub(super) fn take(
        &mut self,
        now: f64,
        epoch: &Epoch,
        usual: f64,
        deviation: impl Fn(f64) -> f64,
        (capacity, ceiling): (f64, f64),
    ) -> Verdict {
        if epoch.began < self.since {
            return Verdict::None;
        }
        self.last.add(epoch);
        self.all.add(epoch);
        self.seconds += epoch.length();
        self.arrived += epoch.arrived();
        match self.part {
            Part::Less if self.about != About::Short && self.all.packets() < DOUBTED => {
                let better = self.all.share() - usual;
                let is_sure = better > BETTER + 4.0 * deviation(self.all.bytes());
                if is_sure && self.all.packets() > SAMPLE {
                    Verdict::Mistaken(self.all)
                } else {
                    Verdict::None
                }
            }
            Part::Less if matches!(self.about, About::Usual(_)) => Verdict::Chance(self.before),
            Part::Less => {
                let off = self.all.share() - (usual + self.low) / 2.0;
                if self.all.packets() < MOST && off.abs() < 3.0 * deviation(self.all.bytes()) {
                    return Verdict::None;
                }
                if off <= 0.0 {
                    return Verdict::Lost(self.all);
                }
                self.begin_again(now, (AGAIN * capacity).min(ceiling));
                Verdict::None
            }
            Part::Again { rate, counted } => {
                let half = usual * (1.0 - (capacity / rate).min(1.0)) / 2.0;
                // Twice the deviation of a share of so many is half of what would be missing.
                let needed = 4.0 * usual * (1.0 - usual) / (half * half);
                if self.last.packets() < needed.clamp(SAMPLE, MOST) {
                    return Verdict::None;
                }
                let is_short = self.last.share() < usual - half;
                self.last = Tally::default();
                self.count(rate, counted, is_short)
            }
        }
    }

    fn count(&mut self, rate: f64, [mut short, mut not]: [u8; 2], is_short: bool) -> Verdict {
        if is_short {
            short += 1;
        } else {
            not += 1;
        }
        let counted = [short, not];
        self.part = Part::Again { rate, counted };
        if not > 1 {
            Verdict::Chance(self.before.min(AGAIN * rate))
        } else if short >= SAMPLES + not {
            Verdict::Drops(self.arrived / self.seconds)
        } else {
            Verdict::None
        }
    }

    fn begin_again(&mut self, now: f64, rate: f64) {
        let first = (BUCKET / (AGAIN - 1.0)).max((now - self.since) / 2.0);
        self.since = now + first;
        self.part = Part::Again {
            rate,
            counted: [0, 0],
        };
        self.last = Tally::default();
        self.all = Tally::default();
        self.seconds = 0.0;
        self.arrived = 0.0;
    }
}
