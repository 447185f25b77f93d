//! How many connections each source has, and for how many more it has a place.

use std::collections::{HashMap, HashSet};

use pepd_packet::{Source, SourcePrefix};

/// The connections of all sources, and the sources that have as many as they may.
#[derive(Debug, Default)]
pub(super) struct Sources {
    counts: HashMap<Source, Count>,
    full: HashSet<Source>,
}

/// The connections of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    /// Those that there are.
    live: u32,
    /// Those whose SYN is held, or whose upstream leg waits for its client.
    expected: u32,
}

impl Sources {
    /// Counts one that is expected, if the source may have one more.
    pub(super) fn expect(&mut self, source: Source, limit: u32) -> bool {
        let count = self.counts.entry(source).or_default();
        let has_room = count.live.saturating_add(count.expected) < limit;
        if has_room {
            count.expected += 1;
        }
        has_room
    }

    /// Takes back what [`Sources::expect`] has counted.
    pub(super) fn expect_no_more(&mut self, source: Source) {
        if let Some(count) = self.counts.get_mut(&source) {
            count.expected = count.expected.saturating_sub(1);
        }
        self.forget_if_gone(source);
    }

    /// Counts one that has come, and returns whether the source has reached its limit with it.
    pub(super) fn enter(&mut self, source: Source, limit: u32) -> bool {
        let count = self.counts.entry(source).or_default();
        count.live += 1;
        count.live == limit && self.full.insert(source)
    }

    /// Counts one that has gone, and returns whether the source, which counts as full down to
    /// `reopening`, is so no longer.
    pub(super) fn leave(&mut self, source: Source, reopening: u32) -> bool {
        let mut left = 0;
        if let Some(count) = self.counts.get_mut(&source) {
            count.live = count.live.saturating_sub(1);
            left = count.live;
        }
        self.forget_if_gone(source);
        left < reopening && self.full.remove(&source)
    }

    /// Finds anew who is full. The capture knows sources by one prefix.
    pub(super) fn judge(&mut self, limit: u32, prefix: SourcePrefix) {
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
        if self.counts.get(&source) == Some(&Count::default()) {
            self.counts.remove(&source);
        }
    }
}
