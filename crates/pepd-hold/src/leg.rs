//! A link that is away, or has just come back.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pepd_packet::{FourTuple, Rate};

/// What is heard of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It will be gone in a moment, and back after this time from now, where that is known.
    GoingDown(Option<Duration>),
    /// It is gone, and will be back after this time from now, where that is known.
    Gone(Option<Duration>),
    /// It is there, and carries so much, where that is known.
    Up(Option<Rate>),
}

/// For how long a link may be about to go: then it goes on as if nothing had been said, since a sender's
/// patience is not to be spent on nothing.
pub(crate) const MOMENT: Duration = Duration::from_secs(2);

/// The time after which whoever is heard by a link that is gone proves that it carries what is his.
pub(crate) const PROOF: Duration = Duration::from_secs(5);

/// The time over which what was held goes on where no rate is known.
pub(crate) const SPREAD: Duration = Duration::from_millis(200);

/// How far the outage has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// ACKs are held.
    GoingDown,
    /// It should be gone by now: ACKs pass.
    Late,
    /// ACKs are held, and packets kept.
    Gone,
    /// What was held goes on.
    Back,
}

/// A link that is not up, or was not until just now.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) phase: Phase,
    /// When it is expected to be back.
    pub(crate) until: Option<Instant>,
    /// When it should be gone.
    pub(crate) moment: Option<Instant>,
    /// When its state was last another.
    pub(crate) since: Instant,
    /// The connections of which something is kept, in turn.
    pub(crate) turns: VecDeque<FourTuple>,
    /// The bytes that are kept.
    pub(crate) kept: usize,
    /// Those of them that were kept when it came back and have not gone on: they go on at a pace. What
    /// comes later is as much as its sender sends at once, and follows them as it would have come.
    owed: usize,
    /// The bytes a second at which it goes on, once it is back.
    pub(crate) pace: f64,
    /// When the next packet does.
    pub(crate) next: Instant,
}

impl Leg {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            phase: Phase::GoingDown,
            until: None,
            moment: None,
            since: now,
            turns: VecDeque::new(),
            kept: 0,
            owed: 0,
            pace: 0.0,
            next: now,
        }
    }

    /// Takes what was heard.
    pub(crate) fn hear(&mut self, report: Report, now: Instant) {
        let before = self.phase;
        let moment = self.moment.take();
        match report {
            Report::GoingDown(time) => {
                self.phase = Phase::GoingDown;
                self.until = time.map(|time| now + time);
                // Said again, it is no later for that.
                self.moment = Some(moment.unwrap_or(now + MOMENT));
            }
            Report::Gone(time) => {
                // What was expected beforehand still is.
                self.until = time.map(|time| now + time).or(self.until);
                self.phase = Phase::Gone;
            }
            Report::Up(rate) => {
                self.phase = Phase::Back;
                self.until = None;
                self.next = now;
                self.owed = self.kept;
                let given = rate.map(|rate| bytes(rate.bytes_per_second()));
                let spread = self.kept as f64 / SPREAD.as_secs_f64();
                self.pace = given.unwrap_or(spread).max(1.0);
            }
        }
        if self.phase != before {
            self.since = now;
        }
    }

    /// Returns whether it has been gone for so long that nothing more can be under way.
    pub(crate) fn has_long_gone(&self, now: Instant) -> bool {
        self.phase == Phase::Gone && now.saturating_duration_since(self.since) >= PROOF
    }

    /// Returns whether the ACKs that come are held.
    pub(crate) fn holds(&self) -> bool {
        matches!(self.phase, Phase::GoingDown | Phase::Gone)
    }

    /// Returns when something is to be done, apart from the ACKs.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let next = self.goes_on().then_some(self.next);
        next.into_iter().chain(self.moment).min()
    }

    /// Returns whether something that is kept may go on: what was left of an outage before, too.
    pub(crate) fn goes_on(&self) -> bool {
        self.phase != Phase::Gone && !self.turns.is_empty()
    }

    /// Notes that so many bytes have gone on.
    pub(crate) fn sent(&mut self, length: usize) {
        self.kept = self.kept.saturating_sub(length);
        self.owed = self.owed.saturating_sub(length);
        if self.owed > 0 {
            self.next += Duration::from_secs_f64((length as f64 / self.pace).min(1.0));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "no link is so fast")]
fn bytes(bytes: u64) -> f64 {
    bytes as f64
}
