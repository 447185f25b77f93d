//! What is known of the link under one leg. No I/O and no clock: the time is passed in.
//!
//! ```text
//!                    heard: going down                heard: gone
//!          ┌────────────────────────────▶ GoingDown ──────────────┐
//!          │                                  │                   ▼
//!         Up ◀── its time is over, or heard: up ┤                Gone
//!          │           (and nothing else for as  │               ▲ │
//!          │            long as a link that      │               │ │
//!          │            flaps has to be up)      └───────────────┼─┘
//!          └───────────────────── heard: gone ───────────────────┘
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The outages within [`MEMORY`] after which a link flaps.
const FEW: usize = 4;
/// The time for which an outage is remembered.
const MEMORY: Duration = Duration::from_secs(60);
/// The time for which a link that begins to flap has to be up until that is believed; each outage
/// more doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(200);
/// The longest such time.
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// Whether the link is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// It is.
    Up,
    /// It is, and will not be in a moment.
    GoingDown,
    /// It is not.
    Gone,
}

/// What is heard of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It is there.
    Up,
    /// It is not.
    Gone,
    /// It will be gone in a moment, and back after this time, where that is known.
    GoingDown(Option<Duration>),
}

/// The record of one link.
#[derive(Debug)]
pub struct Record {
    state: State,
    outages: VecDeque<Instant>,
    /// When it is taken for up if nothing else is heard.
    up_at: Option<Instant>,
    /// Whether that is because it is up, and flaps.
    flaps: bool,
}

impl Record {
    /// Makes the record of a link of which nothing bad is known.
    pub fn new() -> Self {
        Self {
            state: State::Up,
            outages: VecDeque::new(),
            up_at: None,
            flaps: false,
        }
    }

    /// Makes the record of a link that was in this state, until that time if nothing else is heard.
    pub fn found(state: State, up_at: Option<Instant>) -> Self {
        Self {
            state,
            up_at,
            ..Self::new()
        }
    }

    /// Returns whether the link is there, as far as is known.
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns when [`Record::tick`] is to be called.
    pub fn deadline(&self) -> Option<Instant> {
        self.up_at
    }

    /// Returns whether the link is said to be up, and has to be for some time more until that is believed.
    pub fn flaps(&self) -> bool {
        self.flaps && self.up_at.is_some()
    }

    /// Takes what was heard; returns the new state if it is another.
    pub fn hear(&mut self, heard: Heard, now: Instant) -> Option<State> {
        match (heard, self.state) {
            (Heard::Up, State::Up) => None,
            (Heard::Up, State::GoingDown | State::Gone) => match self.delay(now) {
                Duration::ZERO => self.enter(State::Up),
                delay => {
                    let at = now + delay;
                    // Said again, it is no later for that.
                    if self.up_at.is_none_or(|expected| at < expected) {
                        self.up_at = Some(at);
                        self.flaps = true;
                    }
                    None
                }
            },
            (Heard::Gone, State::Gone) => {
                if self.up_at.take().is_some() {
                    self.note_outage(now);
                }
                self.flaps = false;
                None
            }
            // That it would go has been noted.
            (Heard::Gone, State::GoingDown) if !self.flaps => self.enter(State::Gone),
            (Heard::Gone, _) => {
                self.note_outage(now);
                self.enter(State::Gone)
            }
            // Whoever knows how long it takes knows more than that it is gone.
            (Heard::GoingDown(time), State::Gone) => {
                self.expect(time, now);
                None
            }
            (Heard::GoingDown(time), _) => {
                if self.state == State::Up || self.flaps {
                    self.note_outage(now);
                }
                let changed = self.enter(State::GoingDown);
                self.expect(time, now);
                changed
            }
        }
    }

    /// Takes it for up after this time, where that is known: one that flaps not before that would be believed.
    fn expect(&mut self, time: Option<Duration>, now: Instant) {
        self.up_at = time.map(|time| now + time.max(self.delay(now)));
        self.flaps = false;
    }

    /// Takes note of the time; returns the new state if it is another.
    pub fn tick(&mut self, now: Instant) -> Option<State> {
        self.up_at.filter(|at| *at <= now)?;
        self.enter(State::Up)
    }

    fn enter(&mut self, state: State) -> Option<State> {
        self.up_at = None;
        self.flaps = false;
        let changed = self.state != state;
        self.state = state;
        changed.then_some(state)
    }

    fn note_outage(&mut self, now: Instant) {
        let is_old = |at: &Instant| now.saturating_duration_since(*at) >= MEMORY;
        while self.outages.front().is_some_and(is_old) || self.outages.len() > 2 * FEW {
            self.outages.pop_front();
        }
        self.outages.push_back(now);
    }

    /// Returns for how long the link has to be up until that is believed.
    fn delay(&self, now: Instant) -> Duration {
        let is_late = |at: &&Instant| now.saturating_duration_since(**at) < MEMORY;
        let outages = self.outages.iter().filter(is_late).count();
        match outages.checked_sub(FEW + 1) {
            None => Duration::ZERO,
            Some(beyond) => {
                let doubled = u32::try_from(beyond).unwrap_or(u32::MAX).min(16);
                (FIRST_DELAY * (1 << doubled)).min(LONGEST_DELAY)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_outage_is_believed_at_once_and_so_is_its_end() {
        let now = Instant::now();
        let mut record = Record::new();
        assert_eq!(record.hear(Heard::Up, now), None);
        assert_eq!(record.hear(Heard::Gone, now), Some(State::Gone));
        assert_eq!(record.hear(Heard::Gone, now + SECOND), None);
        assert_eq!(record.hear(Heard::Up, now + SECOND), Some(State::Up));
        assert_eq!(record.deadline(), None);
    }

    #[test]
    fn what_is_told_beforehand_ends_by_itself_if_its_time_is_known() {
        let now = Instant::now();
        let mut record = Record::new();
        let known = Heard::GoingDown(Some(10 * SECOND));
        assert_eq!(record.hear(known, now), Some(State::GoingDown));
        assert_eq!(record.deadline(), Some(now + 10 * SECOND));
        assert_eq!(record.tick(now + 9 * SECOND), None);
        assert_eq!(record.tick(now + 10 * SECOND), Some(State::Up));
        let unknown = Heard::GoingDown(None);
        assert_eq!(record.hear(unknown, now), Some(State::GoingDown));
        assert_eq!(record.deadline(), None);
        assert_eq!(record.hear(Heard::Gone, now), Some(State::Gone));
        assert_eq!(record.hear(known, now), None);
        assert_eq!(record.tick(now + 10 * SECOND), Some(State::Up));
    }

    #[test]
    fn a_link_that_flaps_has_to_be_up_for_longer_and_longer() {
        let mut now = Instant::now();
        let mut record = Record::new();
        let mut delays = Vec::new();
        for _ in 0..12 {
            record.hear(Heard::Gone, now);
            now += SECOND / 10;
            delays.push(match record.hear(Heard::Up, now) {
                Some(_) => Duration::ZERO,
                None => record.deadline().unwrap() - now,
            });
            now += SECOND / 10;
        }
        assert_eq!(delays[..4], [Duration::ZERO; 4]);
        assert_eq!(delays[4], FIRST_DELAY);
        assert!(
            delays[4..].is_sorted() && delays[11] <= LONGEST_DELAY,
            "{delays:?}"
        );
        // It stays gone until then, and does not for ever.
        assert_eq!(record.state(), State::Gone);
        assert_eq!(record.tick(now + LONGEST_DELAY), Some(State::Up));
        // It is forgotten after a while.
        now += MEMORY + LONGEST_DELAY;
        assert_eq!(record.hear(Heard::Gone, now), Some(State::Gone));
        assert_eq!(record.hear(Heard::Up, now), Some(State::Up));
    }

    /// Has a link change so often as whoever tells of it likes; gives how often it was another.
    fn changes(tell: impl Fn(&mut Record, Instant) -> [Option<State>; 3]) -> usize {
        let (mut now, mut record) = (Instant::now(), Record::new());
        (0..10_000)
            .map(|_| {
                now += Duration::from_millis(1);
                tell(&mut record, now).iter().flatten().count()
            })
            .sum()
    }

    #[test]
    fn however_it_flaps_it_does_not_change_for_ever() {
        let going = |time| Heard::GoingDown(time);
        let most = 50;
        for heard in [
            going(None),
            going(Some(SECOND)),
            going(Some(Duration::ZERO)),
        ] {
            let of =
                changes(|it, now| [it.hear(heard, now), it.hear(Heard::Up, now), it.tick(now)]);
            assert!(of < most, "{heard:?}, up: {of}");
            let of =
                changes(|it, now| [it.hear(Heard::Gone, now), it.hear(heard, now), it.tick(now)]);
            assert!(of < most, "gone, {heard:?}: {of}");
        }
        let of = changes(|it, now| {
            [
                it.hear(Heard::Gone, now),
                it.hear(Heard::Up, now),
                it.tick(now),
            ]
        });
        assert!(of < most, "gone, up: {of}");
    }

    #[test]
    fn one_outage_is_counted_once_though_it_was_told_beforehand() {
        let (mut now, mut record) = (Instant::now(), Record::new());
        for _ in 0..FEW {
            assert_eq!(
                record.hear(Heard::GoingDown(None), now),
                Some(State::GoingDown)
            );
            assert_eq!(record.hear(Heard::Gone, now), Some(State::Gone));
            assert_eq!(record.hear(Heard::Up, now), Some(State::Up));
            now += SECOND;
        }
    }

    #[test]
    fn who_says_that_it_is_up_is_believed_long_before_an_outage_was_to_end() {
        let (mut now, mut record) = (Instant::now(), Record::new());
        for _ in 0..9 {
            record.hear(Heard::Gone, now);
            record.hear(Heard::Up, now);
            now += SECOND / 10;
        }
        record.hear(Heard::Gone, now);
        record.hear(Heard::GoingDown(Some(3600 * SECOND)), now);
        assert_eq!(record.hear(Heard::Up, now), None);
        let believed = record.deadline();
        assert!(believed <= Some(now + LONGEST_DELAY) && record.flaps());
        record.hear(Heard::Up, now + SECOND / 10);
        assert_eq!(
            record.deadline(),
            believed,
            "it is no later for being said again"
        );
        assert_eq!(record.tick(now + LONGEST_DELAY), Some(State::Up));
    }
}
