//! The pairs of addresses that are routed because their answers take another way: so many, and for
//! so long.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A source and a destination.
pub type AddressPair = (IpAddr, IpAddr);

/// The pairs that the kernel has been told, as far as it has not forgotten them.
#[derive(Debug)]
pub struct AsymmetricPairs {
    /// The oldest first, each with the time at which it is forgotten.
    by_age: VecDeque<(AddressPair, Instant)>,
    known: HashSet<AddressPair>,
    room: usize,
    ttl: Duration,
}

/// The changes that new pairs come to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PairChanges {
    /// The pairs that are new.
    pub added: Vec<AddressPair>,
    /// The pairs that make room for them. The path may have been mended, and where it has not the
    /// next connection finds that out again.
    pub dropped: Vec<AddressPair>,
}

impl AsymmetricPairs {
    /// Knows `room` pairs at most, each for `ttl`.
    pub fn new(room: usize, ttl: Duration) -> Self {
        Self {
            by_age: VecDeque::new(),
            known: HashSet::new(),
            room,
            ttl,
        }
    }

    /// Takes pairs that were found; the oldest make room where there is none.
    pub fn learn(
        &mut self,
        pairs: impl IntoIterator<Item = AddressPair>,
        now: Instant,
    ) -> PairChanges {
        while let Some((pair, _)) = self.by_age.pop_front_if(|(_, until)| *until <= now) {
            self.known.remove(&pair);
        }
        let mut changes = PairChanges::default();
        for pair in pairs.into_iter().take(self.room) {
            if !self.known.insert(pair) {
                continue;
            }
            if self.by_age.len() >= self.room
                && let Some((oldest, _)) = self.by_age.pop_front()
            {
                self.known.remove(&oldest);
                changes.dropped.push(oldest);
            }
            self.by_age.push_back((pair, now + self.ttl));
            changes.added.push(pair);
        }
        changes
    }

    /// Forgets all: the kernel's table is new and empty.
    pub fn clear(&mut self) {
        self.by_age.clear();
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(600);

    fn pair(host: u8) -> AddressPair {
        ([10, 1, 0, host].into(), [10, 2, 0, 2].into())
    }

    #[test]
    fn the_oldest_make_room() {
        let mut pairs = AsymmetricPairs::new(3, TTL);
        let now = Instant::now();
        assert_eq!(pairs.learn([1, 2, 3].map(pair), now).dropped, []);
        let changes = pairs.learn([3, 4].map(pair), now);
        assert_eq!(
            (changes.added, changes.dropped),
            (vec![pair(4)], vec![pair(1)])
        );
        for host in 5..=255 {
            pairs.learn([pair(host)], now);
            assert!(pairs.by_age.len() == 3 && pairs.known.len() == 3);
        }
    }

    #[test]
    fn what_has_had_its_time_is_new_again() {
        let mut pairs = AsymmetricPairs::new(3, TTL);
        let now = Instant::now();
        pairs.learn([pair(1)], now);
        assert_eq!(pairs.learn([pair(1)], now + TTL / 2).added, []);
        assert_eq!(pairs.learn([pair(1)], now + TTL).added, [pair(1)]);
        pairs.clear();
        assert_eq!(pairs.learn([pair(1)], now + TTL).added, [pair(1)]);
    }

    #[test]
    fn more_than_there_is_room_for_at_once_is_no_more_than_that() {
        let mut pairs = AsymmetricPairs::new(3, TTL);
        let changes = pairs.learn((0..=255).map(pair), Instant::now());
        assert_eq!((changes.added.len(), changes.dropped.len()), (3, 0));
    }
}
