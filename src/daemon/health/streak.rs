//! How one passage fares: what enters it and what leaves it, sample by sample.

use std::time::{Duration, Instant};

use pepd_net::{Family, Passage, Tally};

/// The packets of late of which most must pass, where something was found that may stop them.
const MANY: u64 = 32;
/// The share of them that must pass: one of so many.
const SHARE: u64 = 8;

/// The SYNs of upstream legs whose answers may still come. An answer beyond them is forged, or one
/// more of the same.
const AWAITED: u64 = 64;

/// The time after which a lost packet no longer counts with those that follow.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// What was counted at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// What the kernel counted.
    pub tally: Tally,
    /// The connections that the relay has accepted.
    pub accepted: u64,
}

/// What happened in a passage between two samples.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Change {
    entered: u64,
    left: u64,
    /// Of what entered, packets for whose loss there is an innocent reason.
    excused: u64,
    /// What was asked for, where only that can come: no more than it can be lost.
    asked: Option<u64>,
}

impl Sample {
    /// Tells what happened since `before`; none if a counter has begun anew.
    pub(super) fn since(
        &self,
        before: &Self,
        passage: Passage,
        family: Option<Family>,
    ) -> Option<Change> {
        let grown = |of: fn(&Self) -> u64| of(self).checked_sub(of(before));
        let change = |entered, left| Change {
            entered,
            left,
            ..Change::default()
        };
        match (passage, family) {
            (Passage::Completion, _) => Some(change(
                grown(|sample| sample.tally.completing)?,
                grown(|sample| sample.accepted)?,
            )),
            (Passage::Listener, _) => {
                let overflows = grown(|sample| sample.tally.overflows)?;
                // Other programs' listeners have queues, too.
                let ours = overflows.min(grown(|sample| sample.tally.delivered())?);
                Some(change(ours, grown(|sample| sample.tally.answering())?))
            }
            (_, family) => {
                let family = family.unwrap_or(Family::V4);
                let (now, then) = (
                    self.tally.of(passage, family),
                    before.tally.of(passage, family),
                );
                let change = change(now.0.checked_sub(then.0)?, now.1.checked_sub(then.1)?);
                let martians = match (passage, family) {
                    (Passage::Input | Passage::Returns, Family::V4) => {
                        grown(|sample| sample.tally.martians)?
                    }
                    _ => 0,
                };
                let dialed = |sample: &Self| sample.tally.of(Passage::Dials, family).1;
                let asked = match passage {
                    Passage::Returns => Some(dialed(self).checked_sub(dialed(before))?),
                    _ => None,
                };
                Some(Change {
                    excused: martians,
                    asked,
                    ..change
                })
            }
        }
    }
}

/// How one passage fares.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Streak {
    /// Packets that entered since one last left.
    pub(super) lost: u64,
    /// Of these, those that may be forged: the reverse-path check drops such.
    pub(super) excused: u64,
    /// Samples since the first of them.
    pub(super) samples: u32,
    last: Option<Instant>,
    /// What was asked for and has not come, as far as it counts.
    awaited: u64,
    /// Packets of late that entered and that left; halved now and then.
    recent: (u64, u64),
    /// Whether any has left since the streaks were begun anew.
    pub(super) has_passed: bool,
}

impl Streak {
    /// Takes what has happened since the last sample.
    pub(super) fn add(&mut self, change: Change, now: Instant) {
        let Change {
            entered,
            left,
            excused,
            asked,
        } = change;
        let entered = match asked {
            Some(asked) => {
                self.awaited = (self.awaited + asked).min(AWAITED.max(asked));
                let entered = entered.min(self.awaited);
                self.awaited -= entered;
                entered
            }
            None => entered,
        };
        self.recent = (self.recent.0 + entered, self.recent.1 + left);
        if self.recent.0 > 4 * MANY {
            self.recent = (self.recent.0 / 2, self.recent.1 / 2);
        }
        if left > 0 {
            self.has_passed = true;
            (self.lost, self.excused, self.samples) = (0, 0, 0);
            return;
        }
        let is_old = |last: Instant| now.saturating_duration_since(last) > FORGOTTEN;
        if self.last.is_some_and(is_old) {
            (self.lost, self.excused, self.samples, self.recent) = (0, 0, 0, (0, 0));
        }
        if entered > 0 {
            self.last = Some(now);
            self.lost += entered;
            self.excused += excused;
        }
        self.samples += u32::from(self.lost > 0);
    }

    /// Returns whether of many packets of late few have left.
    pub(super) fn mostly_lost(&self) -> bool {
        let (entered, left) = self.recent;
        entered >= MANY && left * SHARE < entered
    }
}
