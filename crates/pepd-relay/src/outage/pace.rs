//! How fast the connections of a leg begin again. No clock: the time is passed in.

use std::time::{Duration, Instant};

/// The least rate, in bytes a second, for a leg of which no rate is known.
const LEAST: u64 = 64 << 10;

/// The segments that may be sent at once: as many as a new connection begins with (RFC 6928).
const AT_ONCE: u64 = 10;

/// A segment's headers, with the usual options (RFC 791 or 8200, RFC 9293, RFC 7323).
const HEADERS: u64 = 72;

/// The doublings after which it is as fast as it gets.
const MOST_DOUBLINGS: u32 = 10;

/// When the next connection of a leg may send a segment again.
#[derive(Debug)]
pub(super) struct Pace {
    /// Bytes a second.
    rate: u64,
    /// The segments that may still be sent without waiting.
    at_once: u64,
    next: Instant,
    begun: Instant,
    /// The time after which it is twice as fast, again and again; none where the rate is that of the link.
    doubles: Option<Duration>,
}

impl Pace {
    /// Begins at `now`, at so many bytes a second, for connections of which each goes on with more at once.
    pub(super) fn of_open_windows(rate: u64, now: Instant) -> Self {
        Self {
            at_once: 0,
            ..Self::new(rate, now)
        }
    }

    /// Begins at `now`, at so many bytes a second.
    pub(super) fn new(rate: u64, now: Instant) -> Self {
        Self {
            rate: rate.max(LEAST),
            at_once: AT_ONCE,
            next: now,
            begun: now,
            doubles: None,
        }
    }

    /// Is twice as fast after each round `trip`, as a new connection is (RFC 5681, section 3.1): the rate is what the leg carried,
    /// which may be what there was to carry and not what it can.
    pub(super) fn doubling(self, trip: Duration) -> Self {
        Self {
            doubles: Some(trip),
            ..self
        }
    }

    /// Returns the bytes a second at this time.
    fn rate(&self, at: Instant) -> u64 {
        let Some(trip) = self.doubles else {
            return self.rate;
        };
        let trips = at.saturating_duration_since(self.begun).as_nanos() / trip.as_nanos().max(1);
        let times = u32::try_from(trips).map_or(MOST_DOUBLINGS, |trips| trips.min(MOST_DOUBLINGS));
        self.rate.saturating_mul(1 << times)
    }

    /// Returns when a segment of so many bytes may be sent, and reserves its time.
    pub(super) fn next(&mut self, bytes: u32, now: Instant) -> Instant {
        if let Some(left) = self.at_once.checked_sub(1) {
            self.at_once = left;
            return now;
        }
        let at = self.next.max(now);
        let nanoseconds = (u64::from(bytes) + HEADERS) * 1_000_000_000 / self.rate(at);
        self.next = at + Duration::from_nanos(nanoseconds);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_second_has_more_than_the_rate() {
        let start = Instant::now();
        let mut pace = Pace::new(1_000_000, start);
        assert!((0..AT_ONCE).all(|_| pace.next(1428, start) == start));
        let times: Vec<_> = (0..2000).map(|_| pace.next(1428, start)).collect();
        for second in times.windows(667) {
            assert!(second[666] - second[0] >= Duration::from_millis(999));
        }
        assert_eq!(times[0], start);
        // Time that has passed without one is no credit.
        let late = start + Duration::from_secs(60);
        assert_eq!(pace.next(1428, late), late);
        assert!(pace.next(1428, late) > late);
    }

    #[test]
    fn what_was_carried_is_where_it_begins() {
        let start = Instant::now();
        let trip = Duration::from_millis(100);
        let mut pace = Pace::of_open_windows(100_000, start).doubling(trip);
        let times: Vec<_> = (0..310).map(|_| pace.next(928, start)).collect();
        let within = |trips| {
            times
                .iter()
                .filter(|at| **at < start + trips * trip)
                .count()
        };
        assert_eq!([1, 2, 3, 4].map(within), [10, 30, 70, 150]);
        assert!(pace.next(928, start + Duration::from_secs(86_400)) > start);
        assert!(pace.rate(start + Duration::from_secs(86_400)) == 100_000 << MOST_DOUBLINGS);
    }

    #[test]
    fn a_rate_that_nobody_knows_is_a_small_one() {
        let start = Instant::now();
        let mut pace = Pace::new(0, start);
        (0..=AT_ONCE).for_each(|_| _ = pace.next(1448, start));
        assert!(pace.next(1448, start) < start + Duration::from_millis(30));
    }
}
