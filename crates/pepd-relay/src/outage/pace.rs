//! How fast the connections of a leg begin again. No clock: the time is passed in.

use std::time::{Duration, Instant};

/// The least rate, in bytes a second, for a leg of which no rate is known.
const LEAST: u64 = 64 << 10;

/// The segments that may be sent at once: as many as a new connection begins with (RFC 6928).
const AT_ONCE: u64 = 10;

/// A segment's headers, with the usual options (RFC 791 or 8200, RFC 9293, RFC 7323).
const HEADERS: u64 = 72;

/// As often the rate it is at most.
const MOST_TIMES: u64 = 1 << 10;

/// Returns the time in which a segment is answered where no queue has grown.
fn in_time(trip: Duration) -> Duration {
    trip * 5 / 4
}

/// When the next connection of a leg may send a segment again.
#[derive(Debug)]
pub(super) struct Pace {
    /// Bytes a second, before it was doubled.
    rate: u64,
    /// As often it is that now.
    times: u64,
    /// The segments that may still be sent without waiting.
    at_once: u64,
    next: Instant,
    /// When it may be twice as fast; none where the rate is that of the link.
    doubling: Option<Doubling>,
}

/// Doublings of a rate.
#[derive(Debug)]
struct Doubling {
    /// A round trip.
    trip: Duration,
    /// When it is looked next at whether what was sent is answered.
    at: Instant,
}

impl Pace {
    /// Begins at `now`, for connections of which each goes on with more at once.
    pub(super) fn of_open_windows(now: Instant) -> Self {
        Self {
            at_once: 0,
            ..Self::new(now)
        }
    }

    /// Begins at `now`.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            rate: LEAST,
            times: 1,
            at_once: AT_ONCE,
            next: now,
            doubling: None,
        }
    }

    /// Goes on at so many bytes a second, and as many times that as it has been doubled.
    pub(super) fn set_rate(&mut self, rate: u64) {
        self.rate = rate.max(LEAST);
    }

    /// Returns the bytes a second.
    pub(super) fn rate(&self) -> u64 {
        self.rate.saturating_mul(self.times)
    }

    /// May be twice as fast after each round `trip`, as a new connection is (RFC 5681, section 3.1), from `now` on: the rate is
    /// what the leg carried, which may be what there was to carry and not what it can.
    pub(super) fn doubling(self, trip: Duration, now: Instant) -> Self {
        let doubling = Doubling {
            trip,
            at: now + in_time(trip),
        };
        Self {
            doubling: Some(doubling),
            ..self
        }
    }

    /// Doubles the rate where it is time for that, and most of those are answered by now that have begun a round trip ago and
    /// more: `answered` gives of those that began by that time how many are, and how many they are.
    pub(super) fn double(
        &mut self,
        now: Instant,
        answered: impl FnOnce(Instant) -> (usize, usize),
    ) {
        let Some(doubling) = &mut self.doubling else {
            return;
        };
        if self.times >= MOST_TIMES || now < doubling.at {
            return;
        }
        doubling.at = now + doubling.trip;
        let Some(begun) = now.checked_sub(in_time(doubling.trip)) else {
            return;
        };
        let (answered, all) = answered(begun);
        if answered * 4 >= all * 3 && all > 0 {
            self.times *= 2;
        }
    }

    /// Returns when a segment of so many bytes may be sent, and reserves its time.
    pub(super) fn next(&mut self, bytes: u32, now: Instant) -> Instant {
        if let Some(left) = self.at_once.checked_sub(1) {
            self.at_once = left;
            return now;
        }
        let at = self.next.max(now);
        let nanoseconds = (u64::from(bytes) + HEADERS) * 1_000_000_000 / self.rate();
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
        let mut pace = Pace::new(start);
        pace.set_rate(1_000_000);
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
    fn it_is_faster_where_what_was_sent_is_answered_in_time() {
        let start = Instant::now();
        let trip = Duration::from_millis(100);
        let pace = || {
            let mut pace = Pace::of_open_windows(start).doubling(trip, start);
            pace.set_rate(100_000);
            pace
        };
        let at = |trips: u32| start + trip * trips / 4;
        let mut answered = pace();
        answered.double(at(4), |_| (1, 1));
        assert_eq!(answered.rate(), 100_000, "nothing can be yet");
        answered.double(at(5), |begun| {
            assert_eq!(begun, start);
            (3, 4)
        });
        answered.double(at(8), |_| (9, 9));
        assert_eq!(answered.rate(), 200_000, "once in a round trip");
        answered.double(at(9), |_| (9, 9));
        assert_eq!(answered.rate(), 400_000);
        for others in [(2, 4), (0, 0)] {
            let mut pace = pace();
            pace.double(at(5), |_| others);
            assert_eq!(pace.rate(), 100_000);
        }
        let mut link = Pace::new(start);
        link.double(at(5), |_| (1, 1));
        assert_eq!(link.rate(), LEAST, "what the link is said to carry");
        let mut long = pace();
        (1..100).for_each(|trips| long.double(at(5 * trips), |_| (1, 1)));
        assert_eq!(long.rate(), 100_000 * MOST_TIMES);
    }

    #[test]
    fn a_rate_that_nobody_knows_is_a_small_one() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        pace.set_rate(0);
        (0..=AT_ONCE).for_each(|_| _ = pace.next(1448, start));
        assert!(pace.next(1448, start) < start + Duration::from_millis(30));
    }
}
