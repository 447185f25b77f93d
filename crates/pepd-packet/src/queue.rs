//! The numbers of NFQUEUEs, and of the groups of NFLOG.

use std::fmt;

/// The number of an NFQUEUE (`struct nfgenmsg`'s `res_id`,
/// include/uapi/linux/netfilter/nfnetlink.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueNumber(pub u16);

impl QueueNumber {
    /// Returns the last of `count` consecutive queues that begin with this one, at most 65535.
    pub fn last_of(self, count: u16) -> Self {
        Self(self.0.saturating_add(count.saturating_sub(1)))
    }

    /// Lists this queue and all that follow it.
    pub fn and_following(self) -> impl Iterator<Item = Self> {
        (self.0..=u16::MAX).map(Self)
    }
}

impl fmt::Display for QueueNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a group of NFLOG (`struct nfgenmsg`'s `res_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogGroup(pub u16);

impl fmt::Display for LogGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_queue_is_within_the_numbers_that_there_are() {
        assert_eq!(QueueNumber(7300).last_of(4), QueueNumber(7303));
        assert_eq!(QueueNumber(7300).last_of(1), QueueNumber(7300));
        assert_eq!(QueueNumber(7300).last_of(0), QueueNumber(7300));
        assert_eq!(QueueNumber(65_535).last_of(2), QueueNumber(65_535));
        assert_eq!(QueueNumber(65_534).and_following().count(), 2);
    }
}
