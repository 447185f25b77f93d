//! What is asked of the controller by number, on links where it holds. Where it does not is in docs/lab.md.

use rstest::rstest;

use super::super::Controller;
use super::super::simulation::{SAMPLE, Sample, Scenario, index, run};
use super::{Seen, mbit, settled, usual, with_a_trips_queue};

fn carried(sample: &Sample) -> f64 {
    sample.carried.iter().sum()
}

/// Nine tenths of the link are used within ten round trips or half a second; and from a round trip of 50 ms and 20
/// Mbit/s on no more is dropped until then than a round trip of the link holds.
#[rstest]
fn the_start(
    #[values(4.0, 20.0, 40.0)] rate: f64,
    #[values(0.01, 0.05, 0.2, 0.6)] rtt: f64,
    #[values(0.0, 0.1)] loss: f64,
    #[values(1, 8)] flows: usize,
) {
    let trip = mbit(rate) * rtt;
    let scenario = Scenario {
        seconds: settled(rtt) + 1.0,
        ..with_a_trips_queue(rate, rtt, loss, flows)
    };
    let samples = run(&scenario, || Controller::new(f64::INFINITY));
    let is_there = |two: &[Sample]| two.iter().all(|it| carried(it) > 0.9 * it.capacity);
    let found = samples.windows(2).position(is_there).expect("it is found");
    let found = found as f64 * SAMPLE;
    assert!(found <= (10.0 * rtt).max(0.5) + 1e-9, "after {found:.1} s");
    let until = &samples[..index(settled(rtt))];
    let dropped = until.iter().map(|it| it.dropped).sum::<f64>() / trip;
    if rate >= 20.0 && rtt >= 0.05 {
        assert!(dropped <= 1.0, "{dropped:.2} round trips");
    }
}

/// The queue is no longer than 15 ms or a quarter of the round trip, 95 times in 100.
#[rstest]
fn the_queue(
    #[values(40.0, 180.0)] rate: f64,
    #[values(0.01, 0.05, 0.2, 0.6)] rtt: f64,
    #[values(0.0, 0.3)] loss: f64,
    #[values(1, 10)] flows: usize,
) {
    let scenario = Scenario {
        rate: vec![(0.0, mbit(rate))],
        loss: [loss; 2],
        legs: vec![flows],
        seconds: settled(rtt) + 15.0,
        ..usual(rtt)
    };
    let samples = run(&scenario, || Controller::new(f64::INFINITY));
    let Seen { queue, share, .. } = Seen::of(&samples, settled(rtt));
    assert!(
        queue <= (0.25 * rtt).max(0.015) + 1e-3,
        "{:.1} ms",
        1e3 * queue
    );
    assert!(share > 0.95, "{share:.3} of the link");
}

/// A policer that lets 10 ms through at once: nine tenths of its rate.
#[rstest]
fn a_policer(
    #[values(4.0, 20.0, 40.0)] rate: f64,
    #[values(0.01, 0.2)] rtt: f64,
    #[values(0.0, 0.1)] loss: f64,
    #[values(1, 8)] flows: usize,
) {
    let scenario = Scenario {
        rate: vec![(0.0, mbit(rate))],
        loss: [loss, 0.0],
        policer: Some(0.01 * mbit(rate)),
        legs: vec![flows],
        ..usual(rtt)
    };
    let samples = run(&scenario, || Controller::new(f64::INFINITY));
    let Seen { share, .. } = Seen::of(&samples, settled(rtt));
    assert!(share >= 0.9, "{share:.3} of the link");
}

/// Two legs of two boxes have at worst 40 and 60 in 100 of a link (36 in one of these 48), whichever begins first, and its queue
/// is short: in the mean of three.
#[rstest]
fn two_on_a_link(
    #[values(20.0, 40.0)] rate: f64,
    #[values(0.01, 0.05, 0.2)] rtt: f64,
    #[values(0.0, 0.1)] loss: f64,
    #[values(1, 4)] flows: usize,
    #[values(0.0, 3.0)] apart: f64,
) {
    let shared = |seed| {
        let scenario = Scenario {
            rate: vec![(0.0, mbit(rate))],
            loss: [loss; 2],
            legs: vec![flows; 2],
            apart,
            seconds: 120.0,
            seed,
            ..usual(rtt)
        };
        let samples = run(&scenario, || Controller::new(f64::INFINITY));
        let seen = Seen::of(&samples, 20.0);
        let tail = &samples[index(20.0)..];
        let of = |leg: usize| tail.iter().map(|it| it.carried[leg]).sum::<f64>();
        [of(0).min(of(1)) / (of(0) + of(1)), seen.queue, seen.share]
    };
    let mean = (1..=3).map(shared).fold([0.0; 3], |mean, each| {
        [0, 1, 2].map(|of| mean[of] + each[of] / 3.0)
    });
    let [part, queue, all] = mean;
    assert!(part > 0.35, "{part:.3} of what both have");
    assert!(queue < (rtt / 2.0).max(0.05), "a queue of {queue:.3} s");
    assert!(all > 0.97, "{all:.3} of the link");
}
