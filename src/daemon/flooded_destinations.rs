//! The destinations that are flooded with SYNs, whose connections the kernel routes by itself: so
//! many, and for so long.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The destinations that the kernel has been told, as far as it has not forgotten them.
#[derive(Debug)]
pub struct FloodedDestinations {
    until: HashMap<IpAddr, Instant>,
    room: usize,
    ttl: Duration,
}

impl FloodedDestinations {
    /// Knows `room` destinations at most, each for `ttl`.
    pub fn new(room: usize, ttl: Duration) -> Self {
        Self {
            until: HashMap::new(),
            room,
            ttl,
        }
    }

    /// Takes destinations that were found flooded; gives those that the kernel is to be told. Where
    /// there is no room, those that are known stay.
    pub fn learn(&mut self, found: impl IntoIterator<Item = IpAddr>, now: Instant) -> Vec<IpAddr> {
        self.until.retain(|_, until| *until > now);
        let mut told = Vec::new();
        for destination in found {
            let is_known = self.until.contains_key(&destination);
            if !is_known && self.until.len() < self.room {
                self.until.insert(destination, now + self.ttl);
                told.push(destination);
            }
        }
        told
    }

    /// Forgets all: the kernel's table is new and empty.
    pub fn clear(&mut self) {
        self.until.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(host: u8) -> IpAddr {
        [10, 2, 0, host].into()
    }

    #[test]
    fn each_is_told_once_and_no_more_than_there_is_room_for() {
        const TTL: Duration = Duration::from_secs(10);
        let mut flooded = FloodedDestinations::new(2, TTL);
        let now = Instant::now();
        assert_eq!(flooded.learn([1, 1].map(ip), now), [ip(1)]);
        assert_eq!(flooded.learn([1, 2, 3].map(ip), now), [ip(2)]);
        assert_eq!(flooded.learn([3, 1].map(ip), now + TTL), [ip(3), ip(1)]);
        flooded.clear();
        assert_eq!(flooded.learn([1].map(ip), now + TTL), [ip(1)]);
    }
}
