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

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::figures::{Arms, Quantity};
use crate::gain::{FEWEST, Gain, differ};
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

/// The last connections that are compared with those before them to notice that the path is another one.
const RECENT: usize = 8;

/// Those before them.
const REFERENCE: usize = 64;

/// By what factor the times are others then, at least.
const OTHER: f64 = 1.5;

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
    /// Of each size, what was measured since this exploration began.
    times: [Arms<Vec<f64>>; Quantity::ALL.len()],
    /// How long all took that have ended in this exploration, in seconds.
    lengths: Arms<Vec<f64>>,
    /// The last times of those that go the way of most, of each size.
    last: [VecDeque<f64>; Quantity::ALL.len()],
    /// Of which size the last of them were of which too few had been before to compare them with, in a row.
    unknown: Option<(Quantity, usize)>,
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
            times: Default::default(),
            lengths: Arms::default(),
            last: Default::default(),
            unknown: None,
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
        let (quantity, time) = Quantity::of_whole(ended);
        match self.stage {
            Stage::Exploring => {
                note(self.lengths.of(ended.arm), ended.whole.as_secs_f64());
                self.explore(quantity, ended.arm, time, now)
            }
            Stage::Settled => {
                note(self.times.get_mut(quantity as usize)?.of(ended.arm), time);
                let is_of_most = (ended.arm == Arm::Split) == self.splits;
                if is_of_most && self.is_other_path(quantity, time, now) {
                    self.begin(Why::OtherPath, now);
                }
                None
            }
        }
    }

    /// Finds out anew if it is time to.
    pub fn tick(&mut self, now: Instant) {
        let is_settled = self.stage == Stage::Settled;
        if is_settled && now.saturating_duration_since(self.since) >= AGAIN {
            self.begin(Why::Hour, now);
        }
    }

    fn begin(&mut self, why: Why, now: Instant) {
        if let Some(decided) = &mut self.decided
            && let Some(arms) = self.times.get(decided.quantity as usize)
        {
            // When that was decided, the slow ones had not ended; the last ones may be of another path already.
            let [unsplit, split] = [&arms.unsplit, &arms.split]
                .map(|times| times.split_at(times.len().saturating_sub(RECENT)).0);
            decided.gain = Gain::of(unsplit, split).unwrap_or(decided.gain);
        }
        self.stage = Stage::Exploring;
        self.since = now;
        self.why = why;
        self.times = Default::default();
        self.lengths = Arms::default();
    }

    fn explore(
        &mut self,
        quantity: Quantity,
        arm: Arm,
        time: f64,
        now: Instant,
    ) -> Option<Decision> {
        note(self.times.get_mut(quantity as usize)?.of(arm), time);
        if !self.has_lasted(now) {
            return None;
        }
        let (splits, quantity, gain) = self.found()?;
        let arms = self.times.get(quantity as usize)?;
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

    /// Returns whether splitting pays, by which transfers, and how much; none as long as that cannot be told.
    fn found(&self) -> Option<(bool, Quantity, Gain)> {
        let count = |quantity: Quantity| {
            let arms = self.times.get(quantity as usize);
            arms.map_or(0, |arms| arms.split.len() + arms.unsplit.len())
        };
        let most = Quantity::ALL.into_iter().max_by_key(|it| count(*it))?;
        let common = Quantity::ALL
            .into_iter()
            .filter(|it| count(*it) * RARE > count(most));
        let gains: Vec<_> = common
            .map(|quantity| {
                let arms = self.times.get(quantity as usize);
                let gain = arms.and_then(|arms| Gain::of(&arms.unsplit, &arms.split));
                (quantity, gain)
            })
            .collect();
        let known = gains.iter().filter_map(|(of, gain)| Some((*of, (*gain)?)));
        let pays = |gain: Gain| gain.low > 1.0 && gain.factor >= LEAST;
        let harms = |gain: Gain| gain.high < 1.0 && gain.factor <= 1.0 / LEAST;
        let is_idle = |gain: Gain| gain.high < MOST && gain.factor < LEAST;
        let best = known.clone().find(|(_, gain)| pays(*gain));
        let any_harmed = known.clone().any(|(_, gain)| harms(gain));
        if let Some((quantity, gain)) = best
            && !any_harmed
        {
            return Some((true, quantity, gain));
        }
        let (_, of_most) = gains.iter().find(|(quantity, _)| *quantity == most)?;
        let of_most = (*of_most)?;
        let all_idle = gains.iter().all(|(_, gain)| gain.is_some_and(is_idle));
        let arms = self.times.get(most as usize)?;
        let is_enough = arms.split.len().min(arms.unsplit.len()) >= ENOUGH;
        // Where one size gains and another loses, those decide of which there are most.
        let is_told =
            all_idle || is_enough || (best.is_some() && (pays(of_most) || harms(of_most)));
        is_told.then_some((of_most.factor >= LEAST, most, of_most))
    }

    /// Returns whether the exploration has lasted for some times what half of either kind take: at first only the
    /// quick ones have ended, and of the slow kind more are missing.
    fn has_lasted(&self, now: Instant) -> bool {
        let Arms { split, unsplit } = &self.lengths;
        let slower = median(split).max(median(unsplit));
        now.saturating_duration_since(self.since).as_secs_f64() >= LASTS * slower
    }

    /// Returns whether it has changed less than an hour ago, and what splitting is worth is about what it was then, and
    /// may be the same: that is noise, and no other path.
    fn is_too_soon(&self, gain: Gain, now: Instant) -> bool {
        self.decided.is_some_and(|before| {
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
        self.unknown = None;
        let most = if splits { Arm::Split } else { Arm::Unsplit };
        for (last, arms) in self.last.iter_mut().zip(&mut self.times) {
            let times = arms.of(most);
            let first = times.len().saturating_sub(REFERENCE);
            *last = times.iter().skip(first).copied().collect();
        }
    }

    /// Notes how long one took that went the way of most; returns whether the last of them took another time than
    /// those before.
    fn is_other_path(&mut self, quantity: Quantity, time: f64, now: Instant) -> bool {
        let Some(last) = self.last.get_mut(quantity as usize) else {
            return false;
        };
        last.push_back(time);
        if last.len() > REFERENCE + RECENT {
            last.pop_front();
        }
        let before = last.len().saturating_sub(RECENT);
        let (before, recent) = last.make_contiguous().split_at(before);
        let is_other = if before.len() >= FEWEST {
            self.unknown = None;
            differ(recent, before, OTHER)
        } else {
            let count = match self.unknown {
                Some((unknown, count)) if unknown == quantity => count + 1,
                _ => 1,
            };
            self.unknown = Some((quantity, count));
            count >= RECENT
        };
        is_other && now.saturating_duration_since(self.since) >= REST
    }
}

/// Adds a value to the last ones, which are as many as can be compared in a moment.
fn note(values: &mut Vec<f64>, value: f64) {
    if values.len() >= 2 * ENOUGH {
        values.remove(0);
    }
    values.push(value);
}

/// Returns the median; 0 where there is nothing.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests;
