//! A leg of which something was known before (Careful Resume, RFC 9959).

use rstest::rstest;

use super::super::simulation::{SAMPLE, Sample, Scenario, index, run};
use super::super::{Controller, Known};
use super::{Seen, mbit, settled, with_a_trips_queue};

const RATE: f64 = 40.0;

fn samples(scenario: &Scenario, known: Option<Known>) -> Vec<Sample> {
    run(scenario, || match known {
        Some(known) => Controller::resume(f64::INFINITY, known),
        None => Controller::new(f64::INFINITY),
    })
}

/// Returns when nine tenths of the link are used, in seconds.
fn found(samples: &[Sample]) -> f64 {
    let is_there = |two: &[Sample]| {
        let carried = |it: &Sample| it.carried.iter().sum::<f64>();
        two.iter().all(|it| carried(it) > 0.9 * it.capacity)
    };
    samples.windows(2).position(is_there).expect("it is found") as f64 * SAMPLE
}

/// It is found no later than by one that knows nothing, over 200 ms and more twice as soon; and no more is dropped
/// than a round trip of the link holds.
#[rstest]
fn a_link_that_is_as_it_was_is_found_sooner(
    #[values(0.05, 0.2, 0.6)] rtt: f64,
    #[values(0.0, 0.1)] loss: f64,
    #[values(1, 8)] flows: usize,
) {
    let scenario = Scenario {
        seconds: settled(rtt) + 1.0,
        ..with_a_trips_queue(RATE, rtt, loss, flows)
    };
    let known = Known {
        capacity: mbit(RATE),
        rtt,
    };
    let [with, without] = [Some(known), None].map(|known| samples(&scenario, known));
    let [sooner, later] = [&with, &without].map(|it| found(it));
    assert!(sooner <= later + 1e-9, "{sooner:.1} s and {later:.1} s");
    if rtt >= 0.2 {
        assert!(
            sooner <= later / 2.0 + SAMPLE,
            "{sooner:.1} s and {later:.1} s"
        );
    }
    let dropped = with.iter().map(|it| it.dropped).sum::<f64>() / (mbit(RATE) * rtt);
    assert!(dropped <= 1.0, "{dropped:.2} round trips");
}

/// A link that carries a tenth of what it did is found all the same.
#[rstest]
fn a_link_that_has_become_another_is_found(
    #[values(0.05, 0.2, 0.6)] rtt: f64,
    #[values(0.0, 0.1)] loss: f64,
    #[values(0.1, 10.0)] times: f64,
) {
    let scenario = Scenario {
        seconds: settled(rtt) + 10.0,
        ..with_a_trips_queue(RATE, rtt, loss, 2)
    };
    let known = Known {
        capacity: mbit(RATE) * times,
        rtt,
    };
    let Seen { share, .. } = Seen::of(&samples(&scenario, Some(known)), settled(rtt));
    assert!(share > 0.9, "{share:.3} of the link");
}

/// What was known of another path is not gone by.
#[test]
fn another_path_is_begun_as_any() {
    let scenario = Scenario {
        seconds: 3.0,
        ..with_a_trips_queue(RATE, 0.2, 0.0, 1)
    };
    let known = Known {
        capacity: mbit(RATE),
        rtt: 0.6,
    };
    let [with, without] = [Some(known), None].map(|known| samples(&scenario, known));
    let first = index(0.4);
    let carried = |it: &[Sample]| it[..first].iter().map(|it| it.carried[0]).sum::<f64>();
    assert!((carried(&with) - carried(&without)).abs() < 1e-6);
}

/// What was known of another path says nothing of how short this one is.
#[test]
fn another_paths_round_trip_is_not_this_ones() {
    let known = |rtt| Known {
        capacity: mbit(RATE),
        rtt,
    };
    let [same, another] = [0.5, 0.02].map(|rtt| {
        let mut controller = Controller::resume(f64::INFINITY, known(rtt));
        controller.heard(1.0, 0.6);
        controller.least_rtt_for_long()
    });
    assert_eq!(same, Some(0.5));
    assert_eq!(another, Some(0.6));
}
