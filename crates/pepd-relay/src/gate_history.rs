//! What the relay knows of the capture's gate: whether any SYN may have been routed since a
//! given time.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The gate as it was last told to be, for the workers.
#[derive(Debug, Default)]
pub struct GateWatch(Mutex<Option<Opening>>);

/// A time in which the gate was open without a break.
#[derive(Clone, Copy, Debug)]
struct Opening {
    since: Instant,
    until: Instant,
}

impl GateWatch {
    /// Notes that the gate was told, at `asked` or later, to stay open for `ttl`; and it is for
    /// everyone.
    pub fn renewed(&self, asked: Instant, ttl: Duration) {
        self.renewed_by(asked, ttl, Instant::now());
    }

    fn renewed_by(&self, asked: Instant, ttl: Duration, now: Instant) {
        let mut opening = self.lock();
        let since = match *opening {
            Some(Opening { since, until }) if now < until => since,
            _ => now,
        };
        let until = asked + ttl;
        *opening = Some(Opening { since, until });
    }

    /// Notes that the gate is closed, or closed to some, or that nobody knows.
    pub fn shut(&self) {
        *self.lock() = None;
    }

    /// Returns whether a SYN may have been routed by the gate at `then` or later.
    pub(crate) fn may_have_been_shut_since(&self, then: Instant, now: Instant) -> bool {
        self.lock()
            .is_none_or(|Opening { since, until }| since > then || now >= until)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Opening>> {
        // The value is whole at any time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(5);

    #[test]
    fn a_gate_that_is_renewed_in_time_is_open_all_the_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let gate = GateWatch::default();
        assert!(gate.may_have_been_shut_since(start, start), "nobody knows");
        for second in 0..9 {
            gate.renewed_by(at(second), TTL, at(second));
        }
        assert!(!gate.may_have_been_shut_since(at(0), at(12)));
        assert!(
            gate.may_have_been_shut_since(at(9), at(13)),
            "it has expired"
        );
        gate.renewed_by(at(14), TTL, at(14));
        assert!(gate.may_have_been_shut_since(at(12), at(15)));
        assert!(!gate.may_have_been_shut_since(at(14), at(15)));
    }

    #[test]
    fn a_renewal_that_took_long_counts_from_when_it_was_asked_for() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let gate = GateWatch::default();
        gate.renewed_by(at(0), TTL, at(0));
        gate.renewed_by(at(4), TTL, at(6));
        assert!(
            gate.may_have_been_shut_since(at(5), at(7)),
            "open from 6 on"
        );
        assert!(gate.may_have_been_shut_since(at(6), at(9)), "until 9");
        assert!(!gate.may_have_been_shut_since(at(6), at(8)));
    }

    #[test]
    fn a_gate_that_is_shut_has_no_past() {
        let start = Instant::now();
        let gate = GateWatch::default();
        gate.renewed_by(start, TTL, start);
        gate.shut();
        assert!(gate.may_have_been_shut_since(start, start));
        gate.renewed_by(start + TTL, TTL, start + TTL);
        assert!(gate.may_have_been_shut_since(start, start + TTL));
        assert!(!gate.may_have_been_shut_since(start + TTL, start + TTL));
    }
}
