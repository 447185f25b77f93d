//! How much a flood may make the box send.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The most upstream legs that are tried in vain in a second, however much room there is: a try
/// costs the CPU so much that many more would leave nothing for others.
const MOST: usize = 4096;

/// The same for one destination. Clients who come, but later than the second, count until then: a
/// destination may have as many new ones at once.
const MOST_OF_ONE: usize = 1024;

/// The number of upstream legs that may be tried without a client that comes for them: as many at
/// once and per second as the table has room for, three quarters of them at one destination. Those
/// of clients that do come cost nothing, so that this bounds what a flood makes the box send, and
/// nothing else.
#[derive(Debug)]
pub(super) struct ConnectBudget {
    size: usize,
    left: usize,
    /// What has been taken of it since it was filled, for each destination.
    taken: HashMap<IpAddr, usize>,
    filled: Instant,
}

impl ConnectBudget {
    pub(super) fn new(size: usize, now: Instant) -> Self {
        let size = size.min(MOST);
        Self {
            size,
            left: size,
            taken: HashMap::new(),
            filled: now,
        }
    }

    pub(super) fn set_size(&mut self, size: usize) {
        self.size = size.min(MOST);
    }

    /// Returns whether one more may be tried at this destination.
    pub(super) fn has_any(&self, destination: IpAddr, now: Instant) -> bool {
        if self.is_due(now) {
            return self.size > 0;
        }
        let share = (self.size * 3).div_ceil(4).min(MOST_OF_ONE);
        let taken = self.taken.get(&destination).copied().unwrap_or(0);
        self.left > 0 && taken < share
    }

    /// Notes that one more is tried.
    pub(super) fn take(&mut self, destination: IpAddr, now: Instant) {
        if self.is_due(now) {
            self.left = self.size;
            self.taken.clear();
            self.filled = now;
        }
        self.left = self.left.saturating_sub(1);
        *self.taken.entry(destination).or_default() += 1;
    }

    /// Notes that one that was tried was not in vain.
    pub(super) fn give_back(&mut self, destination: IpAddr) {
        self.left = (self.left + 1).min(self.size);
        if let Some(taken) = self.taken.get_mut(&destination) {
            *taken = taken.saturating_sub(1);
        }
    }

    /// Returns whether it is to be filled again.
    fn is_due(&self, now: Instant) -> bool {
        const EVERY: Duration = Duration::from_secs(1);
        now.saturating_duration_since(self.filled) >= EVERY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(host: u8) -> IpAddr {
        [10, 2, 0, host].into()
    }

    /// Returns how many are tried at a destination where more would be.
    fn tried(budget: &mut ConnectBudget, destination: IpAddr, now: Instant) -> usize {
        let mut tried = 0;
        while budget.has_any(destination, now) {
            budget.take(destination, now);
            tried += 1;
        }
        tried
    }

    #[test]
    fn a_destination_leaves_some_for_others() {
        let now = Instant::now();
        let mut budget = ConnectBudget::new(8, now);
        assert_eq!(tried(&mut budget, ip(1), now), 6);
        assert_eq!(tried(&mut budget, ip(2), now), 2);
        budget.give_back(ip(1));
        assert_eq!(tried(&mut budget, ip(1), now), 1, "who comes costs nothing");
        let next = now + Duration::from_secs(1);
        assert_eq!(tried(&mut budget, ip(1), next), 6);
    }

    #[test]
    fn it_is_bounded_however_much_room_there_is() {
        let now = Instant::now();
        let mut budget = ConnectBudget::new(65_535, now);
        assert_eq!(tried(&mut budget, ip(1), now), MOST_OF_ONE);
        let others = (2..=255).map(|host| tried(&mut budget, ip(host), now));
        assert_eq!(others.sum::<usize>(), MOST - MOST_OF_ONE);
        assert!(budget.taken.len() <= MOST);
    }

    #[test]
    fn the_only_one_may_be_tried_anywhere() {
        let now = Instant::now();
        let mut budget = ConnectBudget::new(1, now);
        assert_eq!(tried(&mut budget, ip(1), now), 1);
    }
}
