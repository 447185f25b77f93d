//! SYNs that are read from the queue only to be routed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::limits::Flood;

/// The period in which they are counted.
const PERIOD: Duration = Duration::from_secs(1);

/// The number from which on a destination is flooded.
const OF_ONE: u32 = 256;

/// The same for all destinations together, each of which is not.
const OF_ALL: u32 = 2048;

/// Destinations that are counted in a period. What leads to others counts for all of them.
const DESTINATIONS: usize = 4096;

/// SYNs turned away that a client makes up for who comes: honest clients, of whom so many come at
/// once that there is no place for all, are no flood.
const PER_CLIENT: u32 = 4;

/// Counts the SYNs for which there is no place or budget.
///
/// Each of them takes its time in the queue, and those of other clients wait behind it. Where they
/// are many and hardly a client comes, the kernel had better route them by itself: nothing else
/// becomes of them, since only what finds no place is counted.
#[derive(Debug)]
pub(super) struct TurnedAway {
    since: Instant,
    of: HashMap<IpAddr, u32>,
    of_others: u32,
}

impl TurnedAway {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            of: HashMap::new(),
            of_others: 0,
        }
    }

    /// Counts one more; gives what is flooded, once in a period.
    pub(super) fn note(&mut self, destination: IpAddr, now: Instant) -> Option<Flood> {
        if now.saturating_duration_since(self.since) >= PERIOD {
            self.of.clear();
            self.of_others = 0;
            self.since = now;
        }
        if self.of.len() < DESTINATIONS || self.of.contains_key(&destination) {
            let count = self.of.entry(destination).or_default();
            *count += 1;
            if *count >= OF_ONE {
                // What was in the queue already says nothing about other destinations.
                return (*count == OF_ONE).then_some(Flood::Of(destination));
            }
        }
        self.of_others += 1;
        (self.of_others == OF_ALL).then_some(Flood::Everywhere)
    }

    /// Notes that a client has come whose SYN had found a place. What is flooded stays so for the
    /// period.
    pub(super) fn came(&mut self, destination: IpAddr) {
        let make_up = |count: &mut u32, flood| {
            if *count < flood {
                *count = count.saturating_sub(PER_CLIENT);
            }
        };
        if let Some(count) = self.of.get_mut(&destination) {
            make_up(count, OF_ONE);
        }
        make_up(&mut self.of_others, OF_ALL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(host: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(0x0a02_0000 + host).into()
    }

    fn floods(turned_away: &mut TurnedAway, of: impl Iterator<Item = u32>) -> Vec<Flood> {
        let now = turned_away.since;
        of.filter_map(|host| turned_away.note(ip(host), now))
            .collect()
    }

    #[test]
    fn a_flood_of_one_destination_is_told_once_and_says_nothing_of_others() {
        let mut turned_away = TurnedAway::new(Instant::now());
        let told = floods(&mut turned_away, std::iter::repeat_n(1, 100_000));
        assert_eq!(told, [Flood::Of(ip(1))]);
        assert_eq!(floods(&mut turned_away, std::iter::repeat_n(2, 255)), []);
        turned_away.since -= PERIOD;
        let again = turned_away.note(ip(1), turned_away.since + PERIOD);
        assert_eq!((again, turned_away.of.len()), (None, 1));
    }

    #[test]
    fn a_crowd_of_clients_who_come_is_no_flood() {
        let mut turned_away = TurnedAway::new(Instant::now());
        for _ in 0..10_000 {
            assert_eq!(floods(&mut turned_away, std::iter::repeat_n(1, 4)), []);
            turned_away.came(ip(1));
        }
        assert_eq!(
            floods(&mut turned_away, std::iter::repeat_n(1, 1000)),
            [Flood::Of(ip(1))]
        );
        turned_away.came(ip(1));
        assert_eq!(floods(&mut turned_away, [1].into_iter()), [], "told once");
    }

    #[test]
    fn one_that_is_spread_is_everywhere() {
        let mut turned_away = TurnedAway::new(Instant::now());
        let told = floods(&mut turned_away, 0..1_000_000);
        assert_eq!(told, [Flood::Everywhere]);
        assert_eq!(turned_away.of.len(), DESTINATIONS);
    }
}
