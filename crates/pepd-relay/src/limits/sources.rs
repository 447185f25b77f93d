//! How many connections each source has, and how many more are about to come.
//!
//! A connection counts from the end of its client's handshake on: before that anybody may have sent
//! its SYN in that source's name. So that of many that come at once those beyond the limit are routed,
//! and not reset when they have come, a SYN has its turn only while those that had theirs, and have
//! not come yet, leave room for it. What was forged never comes: where waiting has once been in vain,
//! nobody of that source waits for a while.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_packet::{Source, SourcePrefix};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// The time for which nobody waits for his turn after somebody has waited in vain.
const DOUBT: Duration = Duration::from_secs(30);

/// The connections of all sources, and the sources that have as many as they may.
#[derive(Debug, Default)]
pub(super) struct Sources {
    counts: HashMap<Source, Count>,
    full: HashSet<Source>,
}

/// The connections of one source.
#[derive(Debug, Default)]
struct Count {
    /// Those that there are.
    live: u32,
    /// Those whose SYN has had its turn, and whose client has not come yet.
    coming: u32,
    /// Wakes those that wait for their turn; none where nobody ever did.
    waiting: Option<Arc<Notify>>,
    /// Until then nobody waits: what had its turn does not come.
    doubted_until: Option<Instant>,
}

/// What a SYN that asks for its turn is told.
#[derive(Debug)]
pub(super) enum Turn {
    /// It has its turn, and counts as one that comes until [`Sources::has_come`].
    Now,
    /// Its source has as many as it may.
    Never,
    /// To ask again when this ends.
    Later(OwnedNotified),
}

impl Sources {
    /// Asks for the turn of one whose source is `source`.
    pub(super) fn ask(&mut self, source: Source, limit: u32, now: Instant) -> Turn {
        let count = self.counts.entry(source).or_default();
        if count.live >= limit {
            self.forget_if_gone(source);
            return Turn::Never;
        }
        let is_doubted = count.doubted_until.is_some_and(|until| now < until);
        if is_doubted || count.has_room(limit) {
            count.coming = count.coming.saturating_add(1);
            return Turn::Now;
        }
        let waiting = count.waiting.get_or_insert_default();
        Turn::Later(Arc::clone(waiting).notified_owned())
    }

    /// Notes that one has waited in vain for its turn.
    pub(super) fn doubt(&mut self, source: Source, now: Instant) {
        if let Some(count) = self.counts.get_mut(&source) {
            count.doubted_until = Some(now + DOUBT);
        }
    }

    /// Takes back what [`Sources::ask`] has counted: the client has come, or never will.
    pub(super) fn has_come(&mut self, source: Source, limit: u32) {
        if let Some(count) = self.counts.get_mut(&source) {
            count.coming = count.coming.saturating_sub(1);
            count.wake(limit);
        }
        self.forget_if_gone(source);
    }

    /// Returns whether the source has as many as it may.
    pub(super) fn is_full(&self, source: Source, limit: u32) -> bool {
        limit <= self.counts.get(&source).map_or(0, |count| count.live)
    }

    /// Counts one that has come, and returns whether the source has reached its limit with it.
    pub(super) fn enter(&mut self, source: Source, limit: u32) -> bool {
        let count = self.counts.entry(source).or_default();
        count.live += 1;
        count.wake(limit);
        count.live == limit && self.full.insert(source)
    }

    /// Counts one that has gone, and returns whether the source, which counts as full down to
    /// `reopening`, is so no longer.
    pub(super) fn leave(&mut self, source: Source, limit: u32, reopening: u32) -> bool {
        let mut left = 0;
        if let Some(count) = self.counts.get_mut(&source) {
            count.live = count.live.saturating_sub(1);
            count.wake(limit);
            left = count.live;
        }
        self.forget_if_gone(source);
        left < reopening && self.full.remove(&source)
    }

    /// Finds anew who is full. The capture knows sources by one prefix.
    pub(super) fn judge(&mut self, limit: u32, prefix: SourcePrefix) {
        self.counts.values().for_each(|count| count.wake(limit));
        self.full = self
            .counts
            .iter()
            .filter(|(_, count)| count.live >= limit)
            .map(|(source, _)| *source)
            .filter(|source| prefix.source_of(source.network()) == *source)
            .collect();
    }

    /// Returns the sources that have as many as they may.
    pub(super) fn full(&self) -> Vec<Source> {
        self.full.iter().copied().collect()
    }

    /// Returns the number of sources that have any.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    fn forget_if_gone(&mut self, source: Source) {
        let is_gone = |count: &Count| count.live == 0 && count.coming == 0;
        if self.counts.get(&source).is_some_and(is_gone) {
            self.counts.remove(&source);
        }
    }
}

impl Count {
    fn has_room(&self, limit: u32) -> bool {
        self.live.saturating_add(self.coming) < limit
    }

    /// Has those that wait ask again: one where there is room, all where there will be none.
    fn wake(&self, limit: u32) {
        let Some(waiting) = &self.waiting else {
            return;
        };
        if self.live >= limit {
            waiting.notify_waiters();
        } else if self.has_room(limit) {
            waiting.notify_one();
        }
    }
}
