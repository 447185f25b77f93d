//! How long a direction spends in each of the three phases of Baccelli, Carofiglio and Foss,
//! *Proxy caching in split TCP* (2009), section 19.4.3.
//!
//! The buffer between the two legs is what pepd holds of a direction: the outgoing socket's
//! unsent bytes, the pipe, and what the incoming socket has received. Phases change at events
//! only; nothing is polled for them.

use std::time::{Duration, Instant};

use crate::{Phase, PhaseSeconds};

/// The activity of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It moves bytes, or waits for its turn to.
    Moving,
    /// It has moved all there was and waits for more.
    AwaitsSource {
        /// Bytes in the outgoing socket that have not been sent, when the wait began. While it
        /// lasts they can only become fewer.
        unsent: u64,
    },
    /// It has bytes that the outgoing socket has no room for, and does not read.
    AwaitsSink,
    /// It has ended.
    Ended,
}

impl Activity {
    /// Returns the phase that this is, as far as is known without asking the socket.
    fn phase(self) -> Option<Phase> {
        match self {
            Self::Moving | Self::AwaitsSource { unsent: 1.. } => Some(Phase::Free),
            Self::AwaitsSource { unsent: 0 } => Some(Phase::Starved),
            Self::AwaitsSink => Some(Phase::Backpressured),
            Self::Ended => None,
        }
    }
}

/// Time in each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTimes {
    /// The time in [`Phase::Free`].
    pub free: Duration,
    /// The time in [`Phase::Starved`].
    pub starved: Duration,
    /// The time in [`Phase::Backpressured`].
    pub backpressured: Duration,
}

impl PhaseTimes {
    fn in_phase(&mut self, phase: Phase) -> &mut Duration {
        match phase {
            Phase::Free => &mut self.free,
            Phase::Starved => &mut self.starved,
            Phase::Backpressured => &mut self.backpressured,
        }
    }

    /// Returns the time that has come since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            free: self.free.saturating_sub(before.free),
            starved: self.starved.saturating_sub(before.starved),
            backpressured: self.backpressured.saturating_sub(before.backpressured),
        }
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            free: self.free + other.free,
            starved: self.starved + other.starved,
            backpressured: self.backpressured + other.backpressured,
        }
    }
}

impl From<PhaseTimes> for PhaseSeconds {
    fn from(times: PhaseTimes) -> Self {
        Self {
            free: times.free.as_secs_f64(),
            starved: times.starved.as_secs_f64(),
            backpressured: times.backpressured.as_secs_f64(),
        }
    }
}

/// Counts the time of one direction in each phase.
///
/// What is exact: a wait for room is backpressure from its first moment to its last. In a wait
/// for data the unsent bytes only fall, so one that begins without any is starved throughout,
/// and one that ends with some is free throughout. What is estimated: when a wait began with
/// unsent bytes and ended without, the moment in between at which they were gone, from the rate
/// at which the outgoing leg can send.
#[derive(Clone, Copy, Debug)]
pub struct PhaseClock {
    times: PhaseTimes,
    /// The part of the starved time in which there was nothing to carry.
    idle: Duration,
    activity: Activity,
    /// Up to when the time is counted.
    settled: Instant,
    /// The time since which the buffer has been empty, if it is.
    empty_since: Option<Instant>,
}

/// The time after which a leg that brings nothing has nothing to bring: a second is the first
/// retransmission timeout of a connection (RFC 6298, section 2), so that a sender that has to wait
/// for one is still counted as the bottleneck.
const SHORTEST_IDLE: Duration = Duration::from_secs(1);

/// The same in round trips of the incoming leg.
const IDLE_ROUND_TRIPS: u32 = 4;

impl PhaseClock {
    /// Starts a clock for a direction that waits for its first byte from `now` on.
    pub fn new(now: Instant) -> Self {
        Self {
            times: PhaseTimes::default(),
            idle: Duration::ZERO,
            activity: Activity::AwaitsSource { unsent: 0 },
            settled: now,
            empty_since: Some(now),
        }
    }

    /// Returns what the direction is doing now.
    pub fn activity(&self) -> Activity {
        self.activity
    }

    /// Returns the phase that the direction is in; none once it has ended.
    pub fn phase(&self) -> Option<Phase> {
        self.activity.phase()
    }

    /// Returns whether nothing can change before an event tells: the buffer is empty, or it has
    /// ended.
    pub fn at_rest(&self) -> bool {
        matches!(
            self.activity,
            Activity::AwaitsSource { unsent: 0 } | Activity::Ended
        )
    }

    /// Counts the time up to `now` of the activity, which goes on.
    ///
    /// `unsent` is what the outgoing socket still has to send; `rate` how fast it can, in bytes
    /// per second, where known.
    pub fn settle(&mut self, now: Instant, unsent: u64, rate: Option<f64>) {
        let time = now.saturating_duration_since(self.settled);
        self.settled = self.settled.max(now);
        match self.activity {
            Activity::AwaitsSource { unsent: before } if before > 0 && unsent == 0 => {
                let free = draining(before, rate, time);
                self.times.free += free;
                self.times.starved += time - free;
                self.empty_since = Some(now.checked_sub(time - free).unwrap_or(now));
                self.activity = Activity::AwaitsSource { unsent };
            }
            Activity::AwaitsSource { unsent: before } => {
                *self.times.in_phase(if before > 0 {
                    Phase::Free
                } else {
                    Phase::Starved
                }) += time;
                // Where nothing was unsent, nothing is unsent now: the socket was not asked.
                self.activity = Activity::AwaitsSource {
                    unsent: unsent.min(before),
                };
            }
            activity => {
                if let Some(phase) = activity.phase() {
                    *self.times.in_phase(phase) += time;
                }
            }
        }
    }

    /// Changes the activity from `now` on; the one before is settled up to then.
    ///
    /// `incoming_rtt` is the incoming leg's round-trip time: it says how long a pause makes the
    /// direction idle.
    pub fn begin(&mut self, now: Instant, activity: Activity, incoming_rtt: Duration) {
        if let Some(since) = self.empty_since.take() {
            let stretch = now.saturating_duration_since(since);
            if is_idle(stretch, incoming_rtt) {
                self.idle += stretch;
            }
        }
        self.empty_since = (activity == Activity::AwaitsSource { unsent: 0 }).then_some(now);
        self.activity = activity;
    }

    /// Returns the time in each phase up to `now`, and how much of the starved time it was idle.
    /// Asks no socket: a wait that began with unsent bytes counts as free until it is settled.
    pub fn at(&self, now: Instant, incoming_rtt: Duration) -> (PhaseTimes, Duration) {
        let mut times = self.times;
        if let Some(phase) = self.activity.phase() {
            *times.in_phase(phase) += now.saturating_duration_since(self.settled);
        }
        let pending = self.stretch(now);
        let pending = if is_idle(pending, incoming_rtt) {
            pending
        } else {
            Duration::ZERO
        };
        (times, self.idle + pending)
    }

    /// Returns the time in each phase up to when it was settled, while there was something to
    /// carry. A pause that lasts is not in it until it has ended and turned out to be short.
    pub fn carrying(&self) -> PhaseTimes {
        let pending = self.stretch(self.settled);
        PhaseTimes {
            starved: self.times.starved.saturating_sub(self.idle + pending),
            ..self.times
        }
    }

    fn stretch(&self, now: Instant) -> Duration {
        self.empty_since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

fn is_idle(stretch: Duration, incoming_rtt: Duration) -> bool {
    stretch > SHORTEST_IDLE && stretch > incoming_rtt * IDLE_ROUND_TRIPS
}

/// Returns how long `bytes` took to be sent, given that they were gone after `time`.
fn draining(bytes: u64, rate: Option<f64>, time: Duration) -> Duration {
    match rate {
        Some(rate) if rate > 0.0 => {
            Duration::try_from_secs_f64(bytes as f64 / rate).map_or(time, |needed| needed.min(time))
        }
        _ => time / 2,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RTT: Duration = Duration::from_millis(10);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Returns what a clock counts of one activity that lasts 100 ms.
    fn counted(activity: Activity, unsent: u64, rate: Option<f64>) -> [u128; 3] {
        let start = Instant::now();
        let mut clock = PhaseClock::new(start);
        clock.begin(start, activity, RTT);
        clock.settle(start + ms(100), unsent, rate);
        let PhaseTimes {
            free,
            starved,
            backpressured,
        } = clock.at(start + ms(100), RTT).0;
        [free, starved, backpressured].map(|time| time.as_millis())
    }

    #[test]
    fn each_wait_belongs_to_a_phase() {
        let source = |unsent| Activity::AwaitsSource { unsent };
        assert_eq!(counted(Activity::Moving, 9, None), [100, 0, 0]);
        assert_eq!(counted(Activity::AwaitsSink, 9, None), [0, 0, 100]);
        assert_eq!(counted(Activity::Ended, 0, None), [0, 0, 0]);
        assert_eq!(counted(source(0), 0, None), [0, 100, 0]);
        assert_eq!(counted(source(50), 9, None), [100, 0, 0]);
    }

    #[test]
    fn where_the_buffer_ran_empty_is_estimated() {
        let source = Activity::AwaitsSource { unsent: 1000 };
        assert_eq!(counted(source, 0, Some(50_000.0)), [20, 80, 0]);
        assert_eq!(
            counted(source, 0, Some(1.0)),
            [100, 0, 0],
            "gone by the end"
        );
        assert_eq!(counted(source, 0, None), [50, 50, 0]);
        assert_eq!(counted(source, 0, Some(f64::NAN)), [50, 50, 0]);
    }

    #[test]
    fn a_wait_may_be_settled_in_pieces() {
        let start = Instant::now();
        let mut clock = PhaseClock::new(start);
        clock.begin(start, Activity::AwaitsSource { unsent: 1000 }, RTT);
        clock.settle(start + ms(10), 600, None);
        assert!(!clock.at_rest());
        clock.settle(start + ms(20), 0, Some(100_000.0));
        assert!(clock.at_rest());
        clock.settle(start + ms(50), 0, None);
        let (times, idle) = clock.at(start + ms(60), RTT);
        assert_eq!(times.free, ms(16));
        assert_eq!(times.starved, ms(44), "up to now, unsettled time too");
        assert_eq!(idle, Duration::ZERO);
    }

    #[test]
    fn a_long_pause_is_idle_and_a_short_one_is_not() {
        let start = Instant::now();
        let mut clock = PhaseClock::new(start);
        let data_after = |clock: &mut PhaseClock, at: Duration| {
            clock.settle(start + at, 0, None);
            clock.begin(start + at, Activity::Moving, RTT);
            clock.begin(start + at, Activity::AwaitsSource { unsent: 0 }, RTT);
        };
        data_after(&mut clock, ms(900));
        assert_eq!(clock.carrying().starved, ms(900));
        clock.settle(start + ms(5000), 0, None);
        assert_eq!(clock.carrying().starved, ms(900), "the pause lasts");
        assert_eq!(clock.at(start + ms(5000), RTT).1, ms(4100));
        data_after(&mut clock, ms(6000));
        assert_eq!(clock.carrying().starved, ms(900));
        let (times, idle) = clock.at(start + ms(6000), RTT);
        assert_eq!((times.starved, idle), (ms(6000), ms(5100)));
    }

    #[test]
    fn a_long_round_trip_makes_patient() {
        let start = Instant::now();
        let clock = PhaseClock::new(start);
        let slow = Duration::from_millis(700);
        assert_eq!(clock.at(start + ms(2500), slow).1, Duration::ZERO);
        assert_eq!(clock.at(start + ms(2900), slow).1, ms(2900));
    }

    fn activity() -> impl Strategy<Value = Activity> {
        prop_oneof![
            Just(Activity::Moving),
            Just(Activity::AwaitsSink),
            Just(Activity::AwaitsSource { unsent: 0 }),
            (1..100_000_u64).prop_map(|unsent| Activity::AwaitsSource { unsent }),
        ]
    }

    proptest! {
        /// Whatever happens and whenever it is asked, no moment is lost or counted twice, and no
        /// figure ever falls.
        #[test]
        fn the_phases_add_up_to_the_time(
            events in prop::collection::vec(
                (0..3000_u64, activity(), 0..100_000_u64, any::<bool>(), prop::option::of(1.0..1e9)),
                1..50,
            ),
        ) {
            let start = Instant::now();
            let mut clock = PhaseClock::new(start);
            let mut now = start;
            let mut before = (PhaseTimes::default(), Duration::ZERO);
            for (wait, next, unsent, goes_on, rate) in events {
                now += ms(wait);
                clock.settle(now, unsent, rate);
                if !goes_on {
                    clock.begin(now, next, RTT);
                }
                let (times, idle) = clock.at(now, RTT);
                let all = times.free + times.starved + times.backpressured;
                prop_assert_eq!(all, now - start);
                prop_assert!(idle <= times.starved);
                let carrying = clock.carrying();
                prop_assert!(carrying.starved + idle <= times.starved);
                prop_assert!(carrying.starved >= before.0.starved);
                prop_assert!(carrying.free >= before.0.free);
                prop_assert!(carrying.backpressured >= before.0.backpressured);
                before = (carrying, idle);
            }
        }
    }
}
