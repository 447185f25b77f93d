//! Whether splitting pays between two campuses, found out and followed.
//!
//! For a while many connections are measured, as many split as not, until it can be told whether splitting
//! pays. Then all go that way but for a few of each kind, which tell when the path has become another: that
//! is when the times of those that go the way of most are others than they were, or they have a size of which
//! little is known. It is found out anew then, and once an hour in any case.
//!
//! What counts is how long whole transfers take, of each size of which there are many: splitting pays where it makes those
//! of one size faster and none of another slower, and does not where it does so for none; where that cannot be told for
//! long, those decide of which there are most. A tenth is not worth a split connection.
//!
//! No client has more of a say than a quarter more than an equal share ([`crate::sample`]): it is waited until there are
//! enough connections of others. One that is alone decides, and it is found out anew when others come.

mod counted;
mod lookout;

use std::time::{Duration, Instant};

use self::counted::{Counted, Transfer};
use self::lookout::{Lookout, OTHER, RECENT};
use crate::figures::{Arms, Quantity};
use crate::gain::{FEWEST, Gain};
use crate::sample::{Client, Sample};
use crate::watcher::{Arm, Ended};

/// The connections of each kind after which it is decided in any case.
const ENOUGH: usize = 100;

/// The gain below which splitting is not worth it.
const LEAST: f64 = 1.1;

/// What splitting may gain at most for it to be said early that it is not worth it.
const MOST: f64 = 1.2;

/// As many times what transfers take, in the median, an exploration lasts at least.
const LASTS: f64 = 3.0;

/// Of which size there are so many times fewer than of the most common one has no say.
const RARE: usize = 5;

/// The time after which it is found out anew.
const AGAIN: Duration = Duration::from_secs(3600);

/// The time after which it may be found out anew because the path seems to be another one: noise must not have
/// half of all connections measured for good.
const REST: Duration = Duration::from_secs(30);

/// The connections of each kind that are kept: of each size of whole transfers as many as can be compared in a
/// moment.
const KEPT: usize = 4 * 2 * ENOUGH;

/// The time in which others have come, if there are any: who has been alone for as long is the only client.
const ALONE: Duration = Duration::from_secs(10);

/// The interval between two looks at what was measured, each of which takes up to a millisecond: connections that end in
/// a flood must not cost more.
const LOOK: Duration = Duration::from_millis(50);

/// The time for which it is waited until there are enough connections of others, where one client has most: then all
/// count.
const PATIENCE: Duration = Duration::from_secs(600);

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Whether most connections are split from now on.
    pub splits: bool,
    /// Whether that is another way than before.
    pub is_change: bool,
    /// What transfers it was decided on.
    pub quantity: Quantity,
    /// What splitting is worth.
    pub gain: Gain,
    /// How many connections of each kind were compared.
    pub compared: Arms<usize>,
}

/// Why it is found out anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Nothing is known yet.
    New,
    /// The times of transfers are others than they were.
    OtherPath,
    /// It was decided by what the only client had, and others have come.
    OtherClients,
    /// An hour has passed.
    Hour,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Exploring,
    Settled,
}

/// What was decided when it has changed last.
#[derive(Clone, Copy, Debug)]
struct Decided {
    at: Instant,
    quantity: Quantity,
    gain: Gain,
}

/// Whether splitting pays between two campuses.
#[derive(Clone, Debug)]
pub struct Choice {
    splits: bool,
    stage: Stage,
    since: Instant,
    why: Why,
    /// When it has changed last, or was decided first, and what splitting was worth since.
    decided: Option<Decided>,
    /// What was measured since this exploration began.
    measured: Arms<Sample<Transfer>>,
    /// When that was looked at last.
    looked: Option<Instant>,
    /// Whether those that go the way of most are as they were.
    lookout: Lookout,
    /// By whose connections alone it was decided, and how many of others were measured since.
    alone: Option<(Client, usize)>,
}

impl Choice {
    /// Begins, at `now`, with splitting, and finds out.
    pub fn new(now: Instant) -> Self {
        Self {
            splits: true,
            stage: Stage::Exploring,
            since: now,
            why: Why::New,
            decided: None,
            measured: Arms::default(),
            looked: None,
            lookout: Lookout::default(),
            alone: None,
        }
    }

    /// Returns whether most connections are split.
    pub fn splits(&self) -> bool {
        self.splits
    }

    /// Returns why it is being found out, if it is.
    pub fn explores(&self) -> Option<Why> {
        (self.stage == Stage::Exploring).then_some(self.why)
    }

    /// Takes a connection that was measured; returns what is decided because of it.
    pub fn add(&mut self, ended: &Ended, now: Instant) -> Option<Decision> {
        let client = Client::of(ended.client);
        let (quantity, time) = Quantity::of_whole(ended);
        let transfer = Transfer {
            quantity,
            time,
            seconds: ended.whole.as_secs_f64(),
        };
        self.measured.of(ended.arm).add(client, transfer, KEPT);
        self.lookout.meet(client, now);
        if self.stage == Stage::Exploring {
            return self.explore(now);
        }
        let is_of_most = (ended.arm == Arm::Split) == self.splits;
        let is_other_path = is_of_most && self.lookout.is_other_path(client, &transfer, now);
        let are_others = self.are_others(client);
        if now.saturating_duration_since(self.since) >= REST {
            if are_others {
                self.begin(Why::OtherClients, now);
            } else if is_other_path {
                self.begin(Why::OtherPath, now);
            }
        }
        None
    }

    /// Finds out anew if it is time to.
    pub fn tick(&mut self, now: Instant) {
        let is_settled = self.stage == Stage::Settled;
        if is_settled && now.saturating_duration_since(self.since) >= AGAIN {
            self.begin(Why::Hour, now);
        }
    }

    /// Returns whether by now others have come than the one by whose connections it was decided.
    fn are_others(&mut self, client: Client) -> bool {
        let Some((alone, others)) = &mut self.alone else {
            return false;
        };
        *others += usize::from(client != *alone);
        *others >= RECENT
    }

    fn begin(&mut self, why: Why, now: Instant) {
        let counted = Counted::of(&self.measured.counted(), false);
        if let Some(decided) = &mut self.decided
            && let Some(arms) = counted.times(decided.quantity)
        {
            // When that was decided, the slow ones had not ended; the last ones may be of another path already.
            let [unsplit, split] = [&arms.unsplit, &arms.split]
                .map(|times| times.split_at(times.len().saturating_sub(RECENT)).0);
            decided.gain = Gain::of(unsplit, split).unwrap_or(decided.gain);
        }
        self.stage = Stage::Exploring;
        self.since = now;
        self.why = why;
        self.measured = Arms::default();
    }

    fn explore(&mut self, now: Instant) -> Option<Decision> {
        let counted = self.counted(now)?;
        // At first only the quick ones have ended, and of the slow kind more are missing.
        if self.lasts(now).as_secs_f64() < LASTS * counted.slower_median() {
            return None;
        }
        let (splits, quantity, gain) = counted.found()?;
        let arms = counted.times(quantity)?;
        let compared = Arms {
            split: arms.split.len(),
            unsplit: arms.unsplit.len(),
        };
        let splits = match self.is_too_soon(gain, now) {
            true => self.splits,
            false => splits,
        };
        let is_change = splits != self.splits;
        if is_change || self.decided.is_none() {
            self.decided = Some(Decided {
                at: now,
                quantity,
                gain,
            });
        }
        let decision = Decision {
            splits,
            is_change,
            quantity,
            gain,
            compared,
        };
        self.settle(splits, now);
        Some(decision)
    }

    /// Gives what counts of what was measured; none as long as that is too little.
    fn counted(&mut self, now: Instant) -> Option<Counted> {
        let is_soon = |looked: Instant| now.saturating_duration_since(looked) < LOOK;
        let Arms { split, unsplit } = &self.measured;
        if split.len().min(unsplit.len()) < FEWEST || self.looked.is_some_and(is_soon) {
            return None;
        }
        self.looked = Some(now);
        if self.measured.is_of_one() && self.lasts(now) < ALONE {
            return None;
        }
        Some(match self.lasts(now) < PATIENCE {
            true => Counted::of(&self.measured.counted(), !self.measured.is_of_one()),
            false => Counted::of(&self.measured.all(), false),
        })
    }

    fn lasts(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Returns whether it has changed less than an hour ago, and what splitting is worth is about what it was then, and
    /// may be the same: that is noise, and no other path. What the only client had is not held against others.
    fn is_too_soon(&self, gain: Gain, now: Instant) -> bool {
        let before = self.decided.filter(|_| self.why != Why::OtherClients);
        before.is_some_and(|before| {
            let ratio = gain.factor / before.gain.factor;
            let may_be_same = gain.low <= before.gain.high && before.gain.low <= gain.high;
            let is_alike = may_be_same && (1.0 / OTHER..OTHER).contains(&ratio);
            now.saturating_duration_since(before.at) < AGAIN && is_alike
        })
    }

    fn settle(&mut self, splits: bool, now: Instant) {
        self.splits = splits;
        self.stage = Stage::Settled;
        self.since = now;
        self.alone = self.measured.only_client().map(|client| (client, 0));
        let most = if splits { Arm::Split } else { Arm::Unsplit };
        self.lookout.begin(self.measured.of(most));
    }
}

#[cfg(test)]
mod tests;
