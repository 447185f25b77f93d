//! What holds of first windows.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::Xoshiro256PlusPlus;
use rstest::rstest;

use super::{
    FORGOTTEN, FirstFlight, Flight, LEAST, Learned, Look, MOST, PLACES, Seen, Why, Windows,
};

const SECOND: Duration = Duration::from_secs(1);

/// A look at a connection that carries so many segments in a round trip of 100 ms.
fn carrying(segments: f64) -> Look {
    Look {
        rate: Some(segments * 1448.0 / 0.1),
        rtt: Some(Duration::from_millis(100)),
        mss: 1448,
        busy: 30 * SECOND,
        ..Look::default()
    }
}

fn flight(window: u32, lost: u32) -> Flight {
    Flight {
        window,
        known: window,
        lost,
    }
}

/// One place, and what is known of it.
struct Place {
    windows: Windows<u8>,
    now: Instant,
}

impl Place {
    fn new() -> Self {
        Self {
            windows: Windows::default(),
            now: Instant::now(),
        }
    }

    fn learned(&self) -> Learned {
        *self.windows.iter().next().expect("there is one").1
    }

    /// A connection begins with the window of now, and carries so much later.
    fn connect(&mut self, carried: f64, lost: impl FnOnce(u32) -> u32) -> u32 {
        self.now += SECOND;
        let window = self.windows.iter().next().map_or(LEAST, |it| it.1.window());
        let flight = flight(window, lost(window));
        self.windows.take_flight(0, self.now, flight);
        self.windows.take_rate(0, self.now, &carrying(carried));
        self.learned().window()
    }
}

/// It becomes half of what the path carries, by doubling, each size tried twice.
#[test]
fn a_long_fat_path_has_more_and_more() {
    let mut place = Place::new();
    let windows: Vec<u32> = (0..10).map(|_| place.connect(150.0, |_| 0)).collect();
    assert_eq!(windows, [10, 20, 20, 40, 40, 75, 75, 75, 75, 75]);
    assert_eq!(place.learned().why(), Why::Rate);
    let mut place = Place::new();
    for _ in 0..20 {
        place.connect(5000.0, |_| 0);
    }
    assert_eq!(place.learned().window(), MOST);
}

#[test]
fn why_it_is_so_is_told() {
    let mut place = Place::new();
    place.connect(8.0, |_| 0);
    assert_eq!(
        (place.learned().why(), place.learned().window()),
        (Why::Kernel, LEAST)
    );
    place.connect(500.0, |_| 0);
    assert_eq!(place.learned().why(), Why::Trial);
    while place.connect(500.0, |_| 0) < 80 {}
    place.connect(500.0, |window| window / 4);
    assert_eq!(
        (place.learned().why(), place.learned().window()),
        (Why::Loss, 40)
    );
    assert_eq!(place.learned().loss(), 0.25);
}

/// A queue with room for so many packets takes no more at once: what was halved for it stays so.
#[test]
fn what_is_too_much_at_once_is_not_sent_again_soon() {
    let mut place = Place::new();
    let (mut dropped, mut sent) = (0, 0);
    for _ in 0..300 {
        place.connect(400.0, |window| {
            let lost = window.saturating_sub(30);
            (dropped, sent) = (dropped + lost, sent + window);
            lost
        });
    }
    assert_eq!(place.learned().window(), 20);
    assert!(dropped * 100 < sent, "{dropped} of {sent}");
}

/// After ten minutes it may be tried again.
#[test]
fn what_was_too_much_once_may_not_be_later() {
    let mut place = Place::new();
    while place.connect(400.0, |_| 0) < 80 {}
    assert_eq!(place.connect(400.0, |window| window / 2), 40);
    assert_eq!(
        (0..500).map(|_| place.connect(400.0, |_| 0)).max(),
        Some(40)
    );
    assert_eq!(
        (0..500).map(|_| place.connect(400.0, |_| 0)).max(),
        Some(MOST)
    );
}

/// More than two per cent, and no less, is too much, whatever chance does to it.
#[rstest]
#[case(0.002, MOST)]
#[case(0.01, MOST)]
#[case(0.05, LEAST)]
#[case(0.2, LEAST)]
fn by_two_per_cent(#[case] loss: f64, #[case] window: u32) {
    for seed in 0..50 {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut place = Place::new();
        for _ in 0..200 {
            place.connect(400.0, |window| {
                (0..window)
                    .map(|_| u32::from(random.random::<f64>() < loss))
                    .sum()
            });
        }
        assert_eq!(place.learned().window(), window, "seed {seed}");
    }
}

#[test]
fn a_path_that_carries_less_has_less() {
    let mut place = Place::new();
    while place.connect(150.0, |_| 0) < 75 {}
    for _ in 0..60 {
        place.connect(30.0, |_| 0);
    }
    assert!(place.learned().window() < 20, "{:?}", place.learned());
    // Who has little to send, or is not done with its slow start, says nothing of the path.
    let mut place = Place::new();
    while place.connect(150.0, |_| 0) < 75 {}
    for look in [
        Look {
            is_limited: true,
            ..carrying(1.0)
        },
        Look {
            busy: SECOND / 2,
            ..carrying(1.0)
        },
        Look {
            rate: None,
            ..carrying(1.0)
        },
        Look {
            mss: 0,
            ..carrying(1.0)
        },
        Look {
            rtt: None,
            ..carrying(1.0)
        },
    ] {
        for _ in 0..60 {
            place.windows.take_rate(0, place.now, &look);
        }
        assert_eq!(place.learned().window(), 75, "{look:?}");
    }
}

#[test]
fn what_nobody_uses_is_forgotten() {
    let mut place = Place::new();
    while place.connect(150.0, |_| 0) < 75 {}
    place.windows.forget(place.now + FORGOTTEN);
    assert_eq!(place.learned().window(), 75);
    let later = place.now + FORGOTTEN + SECOND;
    let mut forgotten = place.windows.clone();
    forgotten.forget(later);
    assert_eq!(forgotten.iter().len(), 0);
    // Nor does who comes first then find it, though nobody has looked for what is old.
    place.windows.take_flight(0, later, flight(75, 0));
    assert_eq!(place.learned().window(), LEAST);
}

#[test]
fn of_too_many_places_the_oldest_goes() {
    let mut windows = Windows::default();
    let begun = Instant::now();
    for place in 0..=PLACES {
        let now = begun + SECOND * u32::try_from(place).unwrap_or(0) / 10;
        windows.take_rate(place, now, &carrying(100.0));
        windows.take_rate(1, now, &carrying(100.0));
    }
    let places: Vec<usize> = windows.iter().map(|(place, _)| *place).collect();
    assert_eq!(places.len(), PLACES);
    assert_eq!(places[..2], [1, 2]);
}

/// A first window counts once all of it has arrived or is known to be lost, and only then.
#[test]
fn a_first_flight_is_watched_to_its_end() {
    let first = FirstFlight::new(10);
    let look = |sent, arrived, repeated, lost| Look {
        sent,
        arrived,
        repeated,
        lost,
        ..Look::default()
    };
    let landed = |known, lost| {
        Seen::Landed(Flight {
            window: 10,
            known,
            lost,
        })
    };
    assert_eq!(first.look(&look(0, 0, 0, 0)), Seen::UnderWay);
    assert_eq!(first.look(&look(10, 0, 0, 0)), Seen::UnderWay);
    assert_eq!(first.look(&look(18, 8, 0, 0)), Seen::UnderWay);
    assert_eq!(first.look(&look(18, 8, 0, 2)), landed(10, 2));
    assert_eq!(first.look(&look(20, 8, 2, 0)), landed(10, 2));
    assert_eq!(first.look(&look(30, 14, 0, 0)), landed(14, 0));
    // Less than a window was there to be sent.
    assert_eq!(first.look(&look(9, 9, 0, 0)), Seen::UnderWay);
    // Slow start is two round trips further.
    assert_eq!(first.look(&look(31, 10, 0, 0)), Seen::Missed);
    // Segments that were repeated for nothing are not more than there are.
    assert_eq!(first.look(&look(40, 10, 30, 0)), landed(10, 10));
}

/// What may happen at a place.
#[derive(Clone, Copy, Debug)]
enum Event {
    Rate(Look),
    Flight(Flight),
    Passes(Duration),
}

fn event() -> impl Strategy<Value = Event> {
    let looks = (0.0_f64..1e4, any::<bool>(), 0_u64..10_000, 0_u32..9000);
    let look = looks.prop_map(|(carried, is_limited, busy, mss)| Look {
        is_limited,
        busy: Duration::from_millis(busy),
        mss,
        ..carrying(carried)
    });
    let flights = (0_u32..300, 0.0_f64..0.2);
    let flight = flights.prop_map(|(window, lost)| {
        let lost = (f64::from(window) * lost).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small"
        )]
        let lost = lost as u32;
        flight(window, lost)
    });
    prop_oneof![
        look.prop_map(Event::Rate),
        flight.prop_map(Event::Flight),
        (1_u64..200).prop_map(|seconds| Event::Passes(Duration::from_secs(seconds))),
    ]
}

proptest! {
    /// Whatever is measured, a window is never less than the kernel's nor more than there may be, at most
    /// doubles, and only when a connection has tried the present one; and a halved one stays so for a while.
    #[test]
    fn it_is_never_rash(events in proptest::collection::vec(event(), 1..200)) {
        let mut windows = Windows::default();
        let mut now = Instant::now();
        let mut before = LEAST;
        let mut tried = 0;
        for event in events {
            match event {
                Event::Rate(look) => windows.take_rate((), now, &look),
                Event::Flight(flight) => {
                    tried += u32::from(flight.window >= before);
                    windows.take_flight((), now, flight);
                }
                Event::Passes(time) => {
                    now += time;
                    windows.forget(now);
                }
            }
            let learned = windows.iter().next().map(|it| *it.1);
            let after = learned.map_or(LEAST, |it| it.window());
            prop_assert!((LEAST..=MOST).contains(&after));
            prop_assert!(after <= 2 * before, "{before}, {after}");
            prop_assert!(after <= before || tried >= 2, "{before}, {after} untried");
            if let Some(learned) = learned.filter(|it| it.why() == Why::Loss) {
                prop_assert!(learned.loss() > 0.02, "{learned:?}");
            }
            if after != before {
                tried = 0;
            }
            before = after;
        }
    }
}
