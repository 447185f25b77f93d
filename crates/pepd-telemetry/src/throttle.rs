//! Throttles for log lines that a peer can trigger: a flood must not fill the disk.

use std::num::NonZeroU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The lines that were held back since the last one that was written; none where there was none, and
/// then a log line has no such field.
pub type HeldBack = Option<NonZeroU64>;

/// Lets one line through per interval and counts those it held back.
#[derive(Debug)]
pub struct Throttle {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    held_back: u64,
}

impl Throttle {
    /// Creates a throttle that lets one line through per `interval`.
    pub const fn new(interval: Duration) -> Self {
        Self {
            interval,
            state: Mutex::new(State {
                last: None,
                held_back: 0,
            }),
        }
    }

    /// Returns, if a line may be written at `now`, how many were held back since the last.
    pub fn admit(&self, now: Instant) -> Option<HeldBack> {
        // A panic while the lock is held cannot leave the two fields in disagreement.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.last {
            Some(last) if now.saturating_duration_since(last) < self.interval => {
                state.held_back += 1;
                None
            }
            _ => {
                state.last = Some(now);
                Some(NonZeroU64::new(std::mem::take(&mut state.held_back)))
            }
        }
    }
}

/// Lets so many lines through per second, as many at once after a quiet second, and counts
/// those it held back: for lines that are wanted one by one.
#[derive(Debug)]
pub struct LineBudget(Mutex<Budget>);

#[derive(Debug)]
struct Budget {
    per_second: u32,
    /// Lines that may be written now.
    tokens: f64,
    counted: Instant,
    held_back: u64,
}

impl LineBudget {
    /// Creates a budget of `per_second` lines, all of them there at `now`; with 0 there are none.
    pub fn new(per_second: u32, now: Instant) -> Self {
        Self(Mutex::new(Budget {
            per_second,
            tokens: per_second.into(),
            counted: now,
            held_back: 0,
        }))
    }

    /// Sets another number of lines per second.
    pub fn set(&self, per_second: u32) {
        self.lock().per_second = per_second;
    }

    /// Returns, if a line may be written at `now`, how many were held back since the last.
    pub fn admit(&self, now: Instant) -> Option<HeldBack> {
        let mut budget = self.lock();
        if budget.per_second == 0 {
            return None;
        }
        budget.refill(now);
        if budget.tokens < 1.0 {
            budget.held_back += 1;
            return None;
        }
        budget.tokens -= 1.0;
        Some(NonZeroU64::new(std::mem::take(&mut budget.held_back)))
    }

    /// Returns how many lines were held back, where that has not been reported and no line has been
    /// wanted for a second.
    pub fn held_back(&self, now: Instant) -> Option<u64> {
        let mut budget = self.lock();
        budget.refill(now);
        let quiet = budget.tokens >= f64::from(budget.per_second);
        (quiet && budget.held_back > 0).then(|| std::mem::take(&mut budget.held_back))
    }

    fn lock(&self) -> MutexGuard<'_, Budget> {
        // A panic while the lock is held leaves at worst a line too many.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Budget {
    fn refill(&mut self, now: Instant) {
        let rate = f64::from(self.per_second);
        let time = now.saturating_duration_since(self.counted).as_secs_f64();
        self.tokens = (self.tokens + time * rate).min(rate);
        self.counted = self.counted.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_lines_a_second_and_the_rest_is_said() {
        let start = Instant::now();
        let budget = LineBudget::new(10, start);
        let admitted = |milliseconds: std::ops::Range<u64>| {
            milliseconds
                .filter_map(|ms| budget.admit(start + Duration::from_millis(ms)))
                .collect::<Vec<_>>()
        };
        assert_eq!(admitted(0..50), [None; 10], "at once");
        assert_eq!(budget.held_back(start + Duration::from_millis(60)), None);
        assert_eq!(
            admitted(110..160),
            [NonZeroU64::new(40)],
            "one comes every tenth of a second"
        );
        let quiet = start + Duration::from_secs(3);
        assert_eq!(budget.held_back(quiet), Some(49));
        assert_eq!(budget.held_back(quiet), None, "it has been said");
        budget.set(0);
        assert_eq!(budget.admit(quiet), None);
    }

    #[test]
    fn one_line_per_interval_and_the_rest_is_counted() {
        let throttle = Throttle::new(Duration::from_secs(1));
        let start = Instant::now();
        assert_eq!(throttle.admit(start), Some(None));
        assert_eq!(throttle.admit(start + Duration::from_millis(10)), None);
        assert_eq!(throttle.admit(start + Duration::from_millis(999)), None);
        assert_eq!(
            throttle.admit(start + Duration::from_secs(1)),
            Some(NonZeroU64::new(2))
        );
    }
}
