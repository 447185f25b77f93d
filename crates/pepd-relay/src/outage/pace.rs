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

/// Returns the time in which a segment is answered where no queue has grown.
fn in_time(trip: Duration) -> Duration {
    trip * 5 / 4
}

/// When the next connection of a leg may send a segment again.
#[derive(Debug)]
pub(super) struct Pace {
    /// Bytes a second.
    rate: u64,
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
    /// Those that are left.
    left: u32,
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
            doubling: None,
        }
    }

    /// May be twice as fast after each round `trip`, as a new connection is (RFC 5681, section 3.1), from `now` on: the rate is
    /// what the leg carried, which may be what there was to carry and not what it can.
    pub(super) fn doubling(self, trip: Duration, now: Instant) -> Self {
        let doubling = Doubling {
            trip,
            at: now + in_time(trip),
            left: MOST_DOUBLINGS,
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
        if doubling.left == 0 || now < doubling.at {
            return;
        }
        doubling.at = now + doubling.trip;
        let Some(begun) = now.checked_sub(in_time(doubling.trip)) else {
            return;
        };
        let (answered, all) = answered(begun);
        if answered * 4 >= all * 3 && all > 0 {
            doubling.left -= 1;
            self.rate = self.rate.saturating_mul(2);
        }
    }

    /// Returns when a segment of so many bytes may be sent, and reserves its time.
    pub(super) fn next(&mut self, bytes: u32, now: Instant) -> Instant {
        if let Some(left) = self.at_once.checked_sub(1) {
            self.at_once = left;
            return now;
        }
        let at = self.next.max(now);
        let nanoseconds = (u64::from(bytes) + HEADERS) * 1_000_000_000 / self.rate;
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
    fn it_is_faster_where_what_was_sent_is_answered_in_time() {
        let start = Instant::now();
        let trip = Duration::from_millis(100);
        let pace = || Pace::of_open_windows(100_000, start).doubling(trip, start);
        let at = |trips: u32| start + trip * trips / 4;
        let mut answered = pace();
        answered.double(at(4), |_| (1, 1));
        assert_eq!(answered.rate, 100_000, "nothing can be yet");
        answered.double(at(5), |begun| {
            assert_eq!(begun, start);
            (3, 4)
        });
        answered.double(at(8), |_| (9, 9));
        assert_eq!(answered.rate, 200_000, "once in a round trip");
        answered.double(at(9), |_| (9, 9));
        assert_eq!(answered.rate, 400_000);
        for others in [(2, 4), (0, 0)] {
            let mut pace = pace();
            pace.double(at(5), |_| others);
            assert_eq!(pace.rate, 100_000);
        }
        let mut link = Pace::new(100_000, start);
        link.double(at(5), |_| (1, 1));
        assert_eq!(link.rate, 100_000, "what the link is said to carry");
        let mut long = pace();
        (1..100).for_each(|trips| long.double(at(5 * trips), |_| (1, 1)));
        assert_eq!(long.rate, 100_000 << MOST_DOUBLINGS);
    }

    #[test]
    fn a_rate_that_nobody_knows_is_a_small_one() {
        let start = Instant::now();
        let mut pace = Pace::new(0, start);
        (0..=AT_ONCE).for_each(|_| _ = pace.next(1448, start));
        assert!(pace.next(1448, start) < start + Duration::from_millis(30));
    }
}
