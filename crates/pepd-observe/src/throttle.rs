//! A throttle for log lines that a peer can trigger: a flood must not fill the disk.

use std::sync::Mutex;
use std::time::{Duration, Instant};

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
    /// A throttle that lets one line through per `interval`.
    pub const fn new(interval: Duration) -> Self {
        Self {
            interval,
            state: Mutex::new(State {
                last: None,
                held_back: 0,
            }),
        }
    }

    /// Whether a line may be written at `now`: then how many were held back since the last.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        // A panic while the lock is held cannot leave the two fields in disagreement.
        let mut state = self
            .state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        match state.last {
            Some(last) if now.saturating_duration_since(last) < self.interval => {
                state.held_back += 1;
                None
            }
            _ => {
                state.last = Some(now);
                Some(std::mem::take(&mut state.held_back))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_interval_and_the_rest_is_counted() {
        let throttle = Throttle::new(Duration::from_secs(1));
        let start = Instant::now();
        assert_eq!(throttle.admit(start), Some(0));
        assert_eq!(throttle.admit(start + Duration::from_millis(10)), None);
        assert_eq!(throttle.admit(start + Duration::from_millis(999)), None);
        assert_eq!(throttle.admit(start + Duration::from_secs(1)), Some(2));
    }
}
