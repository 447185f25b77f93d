//! The asymmetric routes that were found, as many as the capture is to hear of.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A source and a destination between which no connection can be split: the destination's answers
/// take another way than by this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsymmetricRoute {
    /// The address that the connections come from.
    pub source: IpAddr,
    /// The address that they lead to.
    pub destination: IpAddr,
}

/// Asymmetric routes that are kept for the capture; more are found again.
const ASYMMETRIC_ROUTES: usize = 1024;

/// Those that one address, as a source or as a destination, may have in a period. What is beyond is
/// found again by each connection, which is routed a round trip later.
const ROUTES_PER_ADDRESS: u32 = 64;

/// The period: as long as the capture keeps them.
const NOTED_FOR: Duration = Duration::from_secs(600);

/// Addresses that are counted in a period.
const COUNTED_ADDRESSES: usize = 4096;

/// Those that have been found and not been asked for yet.
#[derive(Debug)]
pub(crate) struct AsymmetricRoutes {
    found: Vec<AsymmetricRoute>,
    /// The number of them that each address has had lately.
    noted: Noted,
}

impl AsymmetricRoutes {
    pub(crate) fn new(now: Instant) -> Self {
        let noted = Noted {
            since: now,
            of: HashMap::new(),
        };
        Self {
            found: Vec::new(),
            noted,
        }
    }

    /// Notes one, unless there are too many of them.
    pub(crate) fn note(&mut self, route: AsymmetricRoute, now: Instant) {
        if self.found.len() < ASYMMETRIC_ROUTES && self.noted.admit(route, now) {
            self.found.push(route);
        }
    }

    /// Returns those that were found since the last call.
    pub(crate) fn take(&mut self) -> Vec<AsymmetricRoute> {
        std::mem::take(&mut self.found)
    }
}

/// The number of asymmetric routes that addresses have had since a period began.
#[derive(Debug)]
struct Noted {
    since: Instant,
    of: HashMap<IpAddr, u32>,
}

impl Noted {
    /// Returns whether a route may be noted, and counts it then.
    fn admit(&mut self, route: AsymmetricRoute, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= NOTED_FOR {
            self.of.clear();
            self.since = now;
        }
        let ends = [route.source, route.destination];
        let noted = |address: &IpAddr| self.of.get(address).copied().unwrap_or(0);
        let new = ends.iter().filter(|end| noted(end) == 0).count();
        let admitted = ends.iter().all(|end| noted(end) < ROUTES_PER_ADDRESS)
            && self.of.len() + new <= COUNTED_ADDRESSES;
        if admitted {
            for end in ends {
                *self.of.entry(end).or_default() += 1;
            }
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_share() {
        let now = Instant::now();
        let mut routes = AsymmetricRoutes::new(now);
        let ip = |last| IpAddr::from([10, 1, 0, last]);
        let mut note = |source, last, now| {
            let route = AsymmetricRoute {
                source,
                destination: [10, 2, 0, last].into(),
            };
            routes.note(route, now);
            routes.take().len()
        };
        let mut noted = |now| {
            (1..=200)
                .map(|last| note(ip(200), last, now))
                .sum::<usize>()
        };
        assert_eq!(noted(now), 64);
        assert_eq!(noted(now + NOTED_FOR), 64);
        assert_eq!(note(ip(1), 1, now + NOTED_FOR), 1, "another");
    }
}
