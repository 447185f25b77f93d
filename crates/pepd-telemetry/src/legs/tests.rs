use std::time::Duration;

use super::*;
use crate::TcpFigures;

const SECOND: Duration = Duration::from_secs(1);

/// The figures of a connection's socket after so many seconds of sending a megabyte in each.
fn figures(seconds: u64, rtt: f64) -> TcpFigures {
    let time = Duration::from_secs(seconds).as_secs_f64();
    TcpFigures {
        rtt,
        min_rtt: Some(0.02),
        mss: 1448,
        sent_bytes: Some(seconds * 1_000_000),
        retransmitted_bytes: Some(seconds * 10_000),
        delivered_segments: u32::try_from(seconds * 600).ok(),
        busy: Some(time),
        receive_window_limited: Some(0.0),
        ..TcpFigures::default()
    }
}

fn look(second: u64, rtt: f64, unsent: u64) -> LegLook {
    let before = (second > 0).then(|| figures(second, rtt));
    LegLook::between(before, Some(figures(second + 1, rtt)), unsent, SECOND)
}

struct Leg {
    legs: Legs,
    measured: Measurements,
    start: Instant,
    seconds: u64,
}

impl Leg {
    fn new() -> Self {
        Self {
            legs: Legs::default(),
            measured: Measurements::default(),
            start: Instant::now(),
            seconds: 0,
        }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_secs(self.seconds)
    }

    fn time(&self) -> f64 {
        1000.0 + Duration::from_secs(self.seconds).as_secs_f64()
    }

    /// Has a second pass in which there were these looks.
    fn second(&mut self, looks: &[LegLook], facts: LegSecondFacts) {
        let leg = self.legs.get(&"radio".into(), &self.measured, self.now());
        looks.iter().for_each(|look| leg.observe(*look));
        self.seconds += 1;
        self.legs.end_second(self.now(), self.time(), |_| facts);
    }

    fn state(&self) -> LegState {
        self.legs.states(self.now()).remove(0)
    }
}

/// A keystroke beside a download: its round trip is what people feel, and counts.
#[test]
fn round_trips_under_load_are_those_of_busy_seconds() {
    let mut leg = Leg::new();
    // Alone it is not under load, whatever it takes.
    for second in 0..20 {
        leg.second(&[look(second, 0.021, 0)], LegSecondFacts::default());
    }
    let state = leg.state();
    assert_eq!((state.loaded_rtt, state.busy_seconds), (None, 0.0));
    assert_eq!(state.least_rtt, Some(0.02));
    for second in 20..40 {
        let looks = [look(second, 0.5, 100_000), look(second, 0.4, 0)];
        leg.second(&looks, LegSecondFacts::default());
    }
    let state = leg.state();
    let loaded = state.loaded_rtt.unwrap();
    assert_eq!((loaded.samples, state.busy_seconds), (40, 20.0));
    assert!((loaded.median - 0.4).abs() < 0.005 && (loaded.p95 - 0.5).abs() < 0.006);
    assert!((loaded.added - 0.38).abs() < 0.005, "{loaded:?}");
    assert!((state.sent - 16e6).abs() < 1.0, "two megabytes a second");
    assert_eq!(
        (state.sent_bytes, state.resent_bytes),
        (60_000_000, 600_000)
    );
    assert!((state.resent.unwrap() - 0.01).abs() < 1e-9);
    assert_eq!(leg.measured.loaded_rtt("radio").snapshot().count, 40);
}

/// Nothing waits where a leg's control sends all that comes, and it may be full all the same.
#[test]
fn a_leg_is_busy_where_three_quarters_of_what_it_carries_are_sent() {
    let mut leg = Leg::new();
    let facts = |capacity| LegSecondFacts {
        capacity: Some(capacity),
        ..LegSecondFacts::default()
    };
    leg.second(&[look(0, 0.03, 0)], facts(12e6));
    assert_eq!(leg.state().loaded_rtt, None);
    leg.second(&[look(1, 0.03, 0)], facts(10e6));
    assert_eq!(leg.state().loaded_rtt.unwrap().samples, 1);
}

/// What it carried while it was busy does not fade with what came after.
#[test]
fn what_is_carried_is_that_of_busy_seconds() {
    let mut leg = Leg::new();
    for second in 0..10 {
        leg.second(&[look(second, 0.3, 100_000)], LegSecondFacts::default());
    }
    for second in 10..30 {
        leg.second(&[look(second, 0.02, 0)], LegSecondFacts::default());
    }
    for _ in 0..10 {
        leg.second(&[], LegSecondFacts::default());
    }
    let state = leg.state();
    let carried = Carried {
        median: 7_920_000.0,
        bytes: 9_900_000,
    };
    assert_eq!((state.sent, state.carried), (0.0, Some(carried)));
}

/// A connection has more to send than a link takes that is gone, and tells round trips as long as the outage when
/// it is back.
#[test]
fn a_leg_whose_link_is_gone_is_not_busy() {
    let mut leg = Leg::new();
    let gone = LegSecondFacts {
        was_gone: true,
        ..LegSecondFacts::default()
    };
    for second in 0..10 {
        leg.second(&[look(second, 12.0, 100_000)], gone);
    }
    let state = leg.state();
    assert_eq!((state.loaded_rtt, state.carried), (None, None));
    assert!(state.busy_seconds < 0.001 && state.sent > 0.0);
    // Where nobody tells, what is sent again and again is not carried.
    let again = LegLook {
        sent: 1448,
        resent: 1448,
        is_backlogged: true,
        ..LegLook::default()
    };
    leg.second(&[again], LegSecondFacts::default());
    assert_eq!(leg.state().carried, None);
}

/// What its queue takes is sent, and has not arrived.
#[test]
fn what_a_leg_carries_is_what_arrived_while_its_link_was_up() {
    let mut leg = Leg::new();
    let most = |leg: &Leg| leg.legs.most_delivered("radio");
    leg.second(&[look(0, 0.5, 5000)], LegSecondFacts::default());
    assert_eq!(most(&leg), None, "a second is not enough");
    leg.second(&[look(1, 0.5, 5000); 2], LegSecondFacts::default());
    assert_eq!(most(&leg), Some(3 * 600 * 1448 / 2));
    let gone = LegSecondFacts {
        was_gone: true,
        ..LegSecondFacts::default()
    };
    (0..100).for_each(|_| leg.second(&[look(2, 0.5, 5000); 9], gone));
    leg.second(&[look(3, 0.5, 5000); 9], LegSecondFacts::default());
    assert_eq!(most(&leg), Some(3 * 600 * 1448 / 2), "no two together");
    (0..60).for_each(|_| leg.second(&[look(4, 0.5, 5000)], LegSecondFacts::default()));
    assert_eq!(most(&leg), Some(600 * 1448));
    (0..60).for_each(|_| leg.second(&[], LegSecondFacts::default()));
    assert_eq!(most(&leg), None);
}

#[test]
fn small_segments_are_not_taken_for_full_ones() {
    let after = |sent: u64, segments: u32, delivered: u32| TcpFigures {
        sent_bytes: Some(sent),
        sent_segments: Some(segments),
        delivered_segments: Some(delivered),
        mss: 1448,
        ..TcpFigures::default()
    };
    let between = |before, after| LegLook::between(Some(before), Some(after), 0, SECOND).delivered;
    let bulk = after(1_448_000, 1000, 1000);
    assert_eq!(between(TcpFigures::default(), bulk), 1_448_000);
    let echoes = after(1_448_000 + 2000, 1100, 1100);
    assert_eq!(between(bulk, echoes), 2000);
    // What arrives was sent before.
    let late = after(1_448_000 + 2000, 1100, 1110);
    assert_eq!(between(echoes, late), 10 * 1318);
    // More than one segment in a packet, as far as the kernel counts (TSO).
    let large = after(1_448_000, 100, 1000);
    assert_eq!(between(TcpFigures::default(), large), 1_448_000);
}

#[test]
fn what_waits_for_the_receiver_or_for_a_moment_is_no_load() {
    let busy = look(1, 0.03, 5000);
    assert!(busy.is_backlogged && busy.rtt.is_some());
    let less_than_a_segment = look(1, 0.03, 1447);
    assert!(!less_than_a_segment.is_backlogged);
    let with = |change: fn(&mut TcpFigures)| {
        let mut after = figures(2, 0.03);
        change(&mut after);
        LegLook::between(Some(figures(1, 0.03)), Some(after), 5000, SECOND)
    };
    assert!(!with(|tcp| tcp.receive_window_limited = Some(0.9)).is_backlogged);
    assert!(!with(|tcp| tcp.busy = Some(1.2)).is_backlogged);
    // An old kernel does not tell.
    assert!(with(|tcp| tcp.busy = None).is_backlogged);
    let silent = with(|tcp| tcp.sent_bytes = Some(1_000_000));
    assert_eq!((silent.rtt, silent.is_backlogged), (None, false));
    assert_eq!(
        LegLook::between(None, None, 5000, SECOND),
        LegLook::default()
    );
}

#[test]
fn lately_is_the_last_five_minutes() {
    let mut leg = Leg::new();
    leg.second(&[look(0, 0.5, 5000)], LegSecondFacts::default());
    assert!(leg.state().loaded_rtt.is_some());
    while leg.seconds < 305 {
        leg.second(&[], LegSecondFacts::default());
    }
    let state = leg.state();
    assert_eq!(
        (state.loaded_rtt, state.least_rtt, state.resent),
        (None, None, None)
    );
    assert_eq!((state.sent_bytes, state.sent), (1_000_000, 0.0));
}

#[test]
fn a_second_is_a_point_if_something_was_sent_or_the_path_is_in_use() {
    let mut leg = Leg::new();
    leg.second(&[look(0, 0.03, 5000)], LegSecondFacts::default());
    leg.second(&[], LegSecondFacts::default());
    let path = PathPoint {
        capacity: 9e6,
        limit: RateLimit::Applications,
        ..PathPoint::default()
    };
    let facts = LegSecondFacts {
        capacity: Some(9e6),
        path: Some(path),
        ..LegSecondFacts::default()
    };
    leg.second(&[], facts);
    let history = leg.legs.history("radio", HistoryStep::Second, 0.0).unwrap();
    let points = history.points;
    let times: Vec<f64> = points.iter().map(|it| it.time).collect();
    assert_eq!(times, [1001.0, 1003.0]);
    assert_eq!(
        (points[0].sent, points[0].busy, points[0].rtt),
        (8e6, 1.0, Some(0.03))
    );
    assert_eq!((points[1].sent, points[1].path), (0.0, Some(path)));
    assert_eq!(leg.legs.history("other", HistoryStep::Second, 0.0), None);
}

/// The kernel's least round trip may be less than any was.
#[test]
fn no_round_trip_is_shorter_than_the_least_that_is_known() {
    let mut leg = Leg::new();
    let facts = LegSecondFacts {
        capacity: Some(1e6),
        least_rtt: Some(0.028),
        ..LegSecondFacts::default()
    };
    leg.second(&[look(0, 0.03, 5000), look(0, 0.025, 5000)], facts);
    let state = leg.state();
    assert_eq!(state.least_rtt, Some(0.028));
    let added = state.loaded_rtt.unwrap().added;
    assert!(added < 0.0021, "{added}");
}
