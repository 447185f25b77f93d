//! The choice.

use std::time::{Duration, Instant};

use super::evidence::{Losses, Queue, Seen};

/// The time after a choice in which there is no other: as long as what is seen reaches back.
pub const REST: Duration = Duration::from_secs(300);

/// The time for which nothing is tried again that was tried in vain, the first time; each time after that it is
/// twice as long. Also that for which others are remembered that were seen, and for which cubic stays where another
/// one was not needed for so long.
pub const BARRED: Duration = Duration::from_secs(3600);

/// The longest time.
const BARRED_MOST: Duration = Duration::from_secs(24 * 3600);

/// What a control that is tried has to deliver at least, times what the one before it did.
const WORTH: f64 = 1.2;

/// A control that is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Chosen {
    /// The kernel's cubic, for which a loss is congestion.
    #[default]
    Cubic,
    /// The kernel's bbr, which goes by what is delivered.
    Bbr,
    /// pepd's own, which finds the leg's rate.
    FindRate,
}

impl Chosen {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Cubic, Self::Bbr, Self::FindRate];

    /// Its name, as in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
            Self::FindRate => "find-rate",
        }
    }
}

/// What there is to choose from beside cubic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    /// Whether the kernel has bbr.
    pub bbr: bool,
    /// Whether find-rate can be had, and the link is the operator's own.
    pub find_rate: bool,
}

/// The reason of a choice. Shares are from 0 to 1, times in seconds, rates in bits a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Why {
    /// Nothing is known yet.
    New,
    /// It was so before, when another process chose.
    Known,
    /// Hardly anything is lost.
    Clean {
        /// The share that is.
        loss: f64,
    },
    /// Losses come with a queue: they are congestion.
    Queue {
        /// The share that is lost.
        loss: f64,
        /// What the queue adds to round trips.
        added: f64,
    },
    /// Losses come without a queue: they are not congestion.
    NoQueue {
        /// The share that is lost.
        loss: f64,
        /// What is added to round trips all the same.
        added: f64,
    },
    /// Others send over the link that was taken for one's own.
    Others,
    /// What was tried delivers no more.
    NoBetter {
        /// What was tried.
        tried: Chosen,
        /// What was delivered before.
        before: f64,
        /// What was delivered with it.
        after: f64,
    },
    /// What was chosen can be had no longer.
    Gone {
        /// What that was.
        chosen: Chosen,
    },
}

impl Why {
    /// Its name, as in the API and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Known => "known",
            Self::Clean { .. } => "clean",
            Self::Queue { .. } => "queue",
            Self::NoQueue { .. } => "no_queue",
            Self::Others => "others",
            Self::NoBetter { .. } => "no_better",
            Self::Gone { .. } => "gone",
        }
    }
}

/// Another control than before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// What it was.
    pub from: Chosen,
    /// What it is.
    pub to: Chosen,
    /// Why.
    pub why: Why,
}

/// A control that is on trial.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Trial {
    /// What was delivered before, bits a second.
    before: f64,
}

/// The choice of a leg's congestion control.
///
/// ```text
///                 losses without a queue
///      cubic ───────────────────────────────▶ find-rate   where it can be had, and no others were seen
///      ▲   │                                     │    │
///      │   └──────────────────────────▶ bbr ◀────┘    │
///      │                                 │  others    │
///      └─────────────────────────────────┴────────────┘
///        hardly any losses, or on trial and no better
/// ```
///
/// Each arrow once in [`REST`] at most. Cubic is kept for [`BARRED`] where another one was no better, or was needed for
/// less than that; find-rate is not come back to for as long where others were seen.
#[derive(Clone, Debug)]
pub struct Choice {
    chosen: Chosen,
    why: Why,
    since: Instant,
    changes: u64,
    candidates: Candidates,
    trial: Option<Trial>,
    /// Until when cubic stays.
    kept: Option<Instant>,
    /// For how long that was, the last time that another one was no better.
    barred: Option<Duration>,
    /// Until when the link is taken for one that is shared.
    shared: Option<Instant>,
}

impl Choice {
    /// Begins, at `now`, with cubic.
    #[must_use]
    pub fn new(candidates: Candidates, now: Instant) -> Self {
        Self {
            chosen: Chosen::Cubic,
            why: Why::New,
            since: now,
            changes: 0,
            candidates,
            trial: None,
            kept: None,
            barred: None,
            shared: None,
        }
    }

    /// The same with what was chosen `before`, as by a process that has ended; if that can be had no longer, with cubic.
    /// What is seen may have it changed at once.
    #[must_use]
    pub fn resume(candidates: Candidates, before: Chosen, now: Instant) -> Self {
        let new = Self::new(candidates, now);
        match new.can_have(before) {
            true => Self {
                chosen: before,
                why: Why::Known,
                ..new
            },
            false => new,
        }
    }

    /// Returns what new connections have.
    #[must_use]
    pub fn chosen(&self) -> Chosen {
        self.chosen
    }

    /// Returns why.
    #[must_use]
    pub fn why(&self) -> Why {
        self.why
    }

    /// Returns since when it has been so.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Returns how often it has changed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns whether it is on trial.
    #[must_use]
    pub fn is_on_trial(&self) -> bool {
        self.trial.is_some()
    }

    /// Chooses from something else from now on.
    pub fn choose_from(&mut self, candidates: Candidates, now: Instant) -> Option<Change> {
        self.candidates = candidates;
        let chosen = self.chosen;
        match self.can_have(chosen) {
            true => None,
            false => Some(self.change(Chosen::Cubic, Why::Gone { chosen }, None, now)),
        }
    }

    /// Takes what was seen since the last choice; returns what is chosen because of it, if that is another one.
    pub fn look(&mut self, seen: &Seen, now: Instant) -> Option<Change> {
        let is_resting = now.saturating_duration_since(self.since) < REST;
        // The first choice need not wait: there is nothing else in what is seen.
        if is_resting && self.changes > 0 {
            return None;
        }
        let loss = seen.loss();
        let added = seen.added.unwrap_or(0.0);
        match (self.chosen, seen.losses(), seen.queue()) {
            (Chosen::FindRate, losses, _) if seen.others => {
                self.shared = Some(now + BARRED);
                let to = match losses {
                    Losses::Hardly => Chosen::Cubic,
                    Losses::Lossy | Losses::Unclear => self.for_losses(now),
                };
                Some(self.change(to, Why::Others, None, now))
            }
            (Chosen::Cubic, Losses::Hardly, _) => {
                self.why = Why::Clean { loss };
                None
            }
            (Chosen::Bbr | Chosen::FindRate, Losses::Hardly, _) => {
                if now.saturating_duration_since(self.since) < BARRED {
                    self.kept = Some(now + BARRED);
                }
                Some(self.change(Chosen::Cubic, Why::Clean { loss }, None, now))
            }
            (Chosen::Cubic, Losses::Lossy, Queue::Long) => {
                self.why = Why::Queue { loss, added };
                None
            }
            (Chosen::Cubic, Losses::Lossy, Queue::Short) if !is_on(self.kept, now) => {
                let before = seen.known_goodput()?;
                let to = self.for_losses(now);
                let why = Why::NoQueue { loss, added };
                (to != Chosen::Cubic).then(|| self.change(to, why, Some(Trial { before }), now))
            }
            (Chosen::Bbr | Chosen::FindRate, Losses::Lossy | Losses::Unclear, _) => {
                self.judge_trial(seen, now)
            }
            (Chosen::Cubic, Losses::Lossy | Losses::Unclear, _) => None,
        }
    }

    /// Ends a trial that can be judged.
    fn judge_trial(&mut self, seen: &Seen, now: Instant) -> Option<Change> {
        let before = self.trial?.before;
        let after = seen.known_goodput()?;
        self.trial = None;
        if after >= WORTH * before {
            self.barred = None;
            return None;
        }
        let twice = |last: Duration| (2 * last).min(BARRED_MOST);
        let time = self.barred.map_or(BARRED, twice);
        self.barred = Some(time);
        self.kept = Some(now + time);
        let why = Why::NoBetter {
            tried: self.chosen,
            before,
            after,
        };
        Some(self.change(Chosen::Cubic, why, None, now))
    }

    /// Returns what is for a path that loses without a queue, of what there is.
    fn for_losses(&self, now: Instant) -> Chosen {
        match self.candidates {
            Candidates {
                find_rate: true, ..
            } if !is_on(self.shared, now) => Chosen::FindRate,
            Candidates { bbr: true, .. } => Chosen::Bbr,
            Candidates { .. } => Chosen::Cubic,
        }
    }

    fn can_have(&self, chosen: Chosen) -> bool {
        match chosen {
            Chosen::Cubic => true,
            Chosen::Bbr => self.candidates.bbr,
            Chosen::FindRate => self.candidates.find_rate,
        }
    }

    fn change(&mut self, to: Chosen, why: Why, trial: Option<Trial>, now: Instant) -> Change {
        let from = std::mem::replace(&mut self.chosen, to);
        self.why = why;
        self.since = now;
        self.changes += 1;
        self.trial = trial;
        Change { from, to, why }
    }
}

/// Returns whether something that is so until then is so.
fn is_on(until: Option<Instant>, now: Instant) -> bool {
    until.is_some_and(|until| now < until)
}
