//! Whether one thing that the box needs is there, so that what comes and goes does not have the box come
//! and go. No I/O and no clock: the time is passed in.
//!
//! ```text
//!                ill                   still ill after a moment
//!          ┌───────────▶ Doubtful ──────────────────────────────┐
//!          │                │                                   ▼
//!        Well ◀─────────────┘ well                             Ill ◀───┐
//!          ▲                                                    │      │
//!          │   well for as long as it has to be                 │ well │ ill
//!          └──────────────────────────────────── Recovering ◀───┘      │
//!                                                     └────────────────┘
//! ```
//!
//! How long it has to be well doubles with each time that it has become ill within ten minutes. What is not
//! known changes nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time for which it has to be well again the first time.
const FIRST_HOLD: Duration = Duration::from_secs(10);
/// The longest such time.
const LONGEST_HOLD: Duration = Duration::from_secs(160);
/// The time for which it is remembered that it has become ill.
const MEMORY: Duration = Duration::from_secs(600);
/// More of these are not remembered: the hold is the longest by then.
const REMEMBERED: usize = 8;

/// What is seen of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It is as it should be.
    Well,
    /// It is not, and why.
    Ill(String),
    /// Nobody knows.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Well,
    Doubtful { since: Instant },
    Ill,
    Recovering { since: Instant },
}

/// One thing that the box needs.
#[derive(Debug)]
pub struct Damper {
    state: State,
    /// How long it may be ill until that counts.
    grace: Duration,
    /// Why it is ill, or was when it was last.
    why: String,
    falls: VecDeque<Instant>,
    /// Nothing has ever been known of it: what is first seen counts at once.
    is_new: bool,
}

impl Damper {
    /// Begins with one that is well.
    pub fn well(grace: Duration) -> Self {
        Self {
            state: State::Well,
            grace,
            why: String::new(),
            falls: VecDeque::new(),
            is_new: false,
        }
    }

    /// Begins with one that is ill, for this reason, until it has been well for as long as any other has
    /// to be.
    pub fn ill(grace: Duration, why: String) -> Self {
        Self {
            state: State::Ill,
            why,
            ..Self::well(grace)
        }
    }

    /// Begins with one of which nothing is known, which counts as ill.
    pub fn unknown(grace: Duration, why: String) -> Self {
        Self {
            is_new: true,
            ..Self::ill(grace, why)
        }
    }

    /// Returns why it is ill, if it counts as that.
    pub fn illness(&self) -> Option<&str> {
        match self.state {
            State::Well | State::Doubtful { .. } => None,
            State::Ill | State::Recovering { .. } => Some(&self.why),
        }
    }

    /// Takes what is seen now.
    pub fn see(&mut self, seen: Seen, now: Instant) {
        let hold = self.hold(now);
        let passed = |since: Instant| now.saturating_duration_since(since);
        self.state = match (self.state, seen) {
            (state, Seen::Unknown) => state,
            (State::Ill, Seen::Well) if self.is_new => State::Well,
            (State::Well | State::Doubtful { .. }, Seen::Well) => State::Well,
            (State::Ill, Seen::Well) => {
                let seconds = hold.as_secs();
                self.why += &format!(" (not any more, which is believed after {seconds} s)");
                State::Recovering { since: now }
            }
            (State::Recovering { since }, Seen::Well) if passed(since) >= hold => State::Well,
            (State::Recovering { since }, Seen::Well) => State::Recovering { since },
            (State::Well, Seen::Ill(why)) if self.grace.is_zero() => self.fall(why, now),
            (State::Well, Seen::Ill(_)) => State::Doubtful { since: now },
            (State::Doubtful { since }, Seen::Ill(why)) if passed(since) >= self.grace => {
                self.fall(why, now)
            }
            (State::Doubtful { since }, Seen::Ill(_)) => State::Doubtful { since },
            (State::Recovering { .. }, Seen::Ill(why)) => self.fall(why, now),
            (State::Ill, Seen::Ill(why)) => {
                self.why = why;
                State::Ill
            }
        };
        self.is_new &= self.state == State::Ill;
    }

    fn fall(&mut self, why: String, now: Instant) -> State {
        self.why = why;
        if self.falls.len() == REMEMBERED {
            self.falls.pop_front();
        }
        self.falls.push_back(now);
        State::Ill
    }

    /// Returns for how long it has to be well.
    fn hold(&self, now: Instant) -> Duration {
        let is_late = |at: &&Instant| now.saturating_duration_since(**at) < MEMORY;
        let before = self.falls.iter().filter(is_late).count().saturating_sub(1);
        let doubled = u32::try_from(before).unwrap_or(u32::MAX).min(8);
        (FIRST_HOLD * (1 << doubled)).min(LONGEST_HOLD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const GRACE: Duration = Duration::from_secs(3);

    fn ill() -> Seen {
        Seen::Ill("it is silent".to_owned())
    }

    #[test]
    fn a_moment_does_not_count_and_what_lasts_does() {
        let start = Instant::now();
        let mut damper = Damper::well(GRACE);
        damper.see(ill(), start);
        damper.see(ill(), start + 2 * SECOND);
        assert_eq!(damper.illness(), None);
        damper.see(Seen::Well, start + 3 * SECOND);
        damper.see(ill(), start + 4 * SECOND);
        damper.see(ill(), start + 6 * SECOND);
        assert_eq!(damper.illness(), None, "its moment begins anew");
        damper.see(ill(), start + 7 * SECOND);
        assert_eq!(damper.illness(), Some("it is silent"));
    }

    #[test]
    fn without_grace_it_counts_at_once() {
        let mut damper = Damper::well(Duration::ZERO);
        damper.see(ill(), Instant::now());
        assert!(damper.illness().is_some());
    }

    #[test]
    fn what_was_never_known_is_believed_at_once_and_counts_as_ill_until_then() {
        let now = Instant::now();
        let mut damper = Damper::unknown(GRACE, "it has not answered yet".to_owned());
        damper.see(Seen::Unknown, now);
        assert_eq!(damper.illness(), Some("it has not answered yet"));
        damper.see(ill(), now);
        assert_eq!(damper.illness(), Some("it is silent"));
        damper.see(Seen::Well, now);
        assert_eq!(damper.illness(), None);
        // From then on it is as any other.
        damper.see(ill(), now);
        damper.see(ill(), now + GRACE);
        damper.see(Seen::Well, now + GRACE);
        let said = "it is silent (not any more, which is believed after 10 s)";
        assert_eq!(damper.illness(), Some(said));
    }

    #[test]
    fn what_is_not_known_changes_nothing() {
        let now = Instant::now();
        let mut damper = Damper::well(Duration::ZERO);
        damper.see(Seen::Unknown, now);
        assert_eq!(damper.illness(), None);
        damper.see(ill(), now);
        damper.see(Seen::Unknown, now + 1000 * SECOND);
        assert!(damper.illness().is_some());
    }

    #[test]
    fn what_flaps_has_to_be_well_for_longer_and_longer() {
        let mut now = Instant::now();
        let mut damper = Damper::well(Duration::ZERO);
        let mut holds = Vec::new();
        for _ in 0..6 {
            damper.see(ill(), now);
            let begun = now;
            damper.see(Seen::Well, now);
            while damper.illness().is_some() {
                now += SECOND;
                damper.see(Seen::Well, now);
            }
            holds.push((now - begun).as_secs());
        }
        assert_eq!(holds, [10, 20, 40, 80, 160, 160]);
        // It is forgotten after a while.
        now += MEMORY;
        damper.see(ill(), now);
        damper.see(Seen::Well, now);
        damper.see(Seen::Well, now + FIRST_HOLD);
        assert_eq!(damper.illness(), None);
    }

    #[test]
    fn falling_ill_again_while_it_recovers_begins_anew() {
        let now = Instant::now();
        let mut damper = Damper::well(Duration::ZERO);
        damper.see(ill(), now);
        damper.see(Seen::Well, now);
        damper.see(ill(), now + 9 * SECOND);
        damper.see(Seen::Well, now + 10 * SECOND);
        damper.see(Seen::Well, now + 21 * SECOND);
        assert!(damper.illness().is_some(), "twice ten seconds now");
        damper.see(Seen::Well, now + 30 * SECOND);
        assert_eq!(damper.illness(), None);
    }
}
