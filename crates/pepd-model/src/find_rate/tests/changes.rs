//! Links that change while they are used.

use rstest::rstest;

use super::super::Controller;
use super::super::simulation::{Scenario, run};
use super::{Seen, go, mbit, usual};

#[test]
fn a_rate_that_changes_is_followed() {
    // How long the queue is after a step depends on what was going on just then.
    let mut queues = Vec::new();
    for step in 0..9_u32 {
        let seen = go(&Scenario {
            rate: vec![(0.0, mbit(100.0)), (20.0, mbit(20.0)), (40.0, mbit(60.0))],
            ..usual(0.04 + 0.0025 * f64::from(step))
        });
        assert!(seen.share > 0.97, "{:.3} of the link", seen.share);
        queues.push(seen.queue);
    }
    queues.sort_by(f64::total_cmp);
    assert!(
        queues[4] < 0.05 && queues[8] < 0.2,
        "queues of {queues:.3?} s"
    );
    // At random, four times a second.
    let mut number = 7_u32;
    let mut random = || {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(number >> 8) / f64::from(1_u32 << 24)
    };
    let rate = (0..240).map(|step| (f64::from(step) * 0.25, mbit(20.0 + 30.0 * random())));
    let seen = go(&Scenario {
        rate: rate.collect(),
        ..usual(0.05)
    });
    assert!(seen.share > 0.9, "{:.3} of the link", seen.share);
    assert!(seen.queue < 0.15, "a queue of {:.3} s", seen.queue);
}

#[test]
fn a_path_that_becomes_longer_has_no_queue_for_that() {
    let steps = (0..8_u32).map(|step| {
        let longer = f64::from((step * 7) % 4);
        (f64::from(step) * 15.0, 0.03 + 0.01 * longer)
    });
    let seen = go(&Scenario {
        rate: vec![(0.0, mbit(100.0))],
        rtt: steps.collect(),
        loss: [0.01; 2],
        seconds: 120.0,
        ..Scenario::default()
    });
    assert!(seen.share > 0.97, "{:.3} of the link", seen.share);
    assert!(seen.queue < 0.05, "a queue of {:.3} s", seen.queue);
}

/// A path that becomes longer by no more than a short queue looks like one, and what is sent less for it is carried no longer: it
/// looks like others, too, who have taken it.
#[rstest]
fn a_path_that_becomes_a_little_longer_is_full(
    #[values((20.0, 0.01), (20.0, 0.1), (20.0, 0.3), (100.0, 0.05), (5.0, 0.05))] (rate, rtt): (
        f64,
        f64,
    ),
    #[values(0.6, 1.0, 1.4, 1.6, 1.8)] times: f64,
) {
    // A tenth of the round trip, and 5 ms at least, is what waits on purpose.
    let longer = times * f64::max(0.005, 0.1 * rtt);
    let scenario = Scenario {
        rate: vec![(0.0, mbit(rate))],
        rtt: vec![(0.0, rtt), (40.0, rtt + longer)],
        legs: vec![2],
        seconds: 140.0,
        ..Scenario::default()
    };
    let samples = run(&scenario, || Controller::new(f64::INFINITY));
    let seen = Seen::of(&samples, 100.0);
    assert!(seen.share > 0.7, "{:.3} of the link", seen.share);
    assert!(seen.queue < 0.12, "a queue of {:.3} s", seen.queue);
}

/// What waits meanwhile, and what is lost.
#[rstest]
fn after_an_outage_it_goes_on_as_before(
    #[values(false, true)] waits: bool,
    #[values(1, 8)] flows: usize,
    #[values(0.0, 0.1)] loss: f64,
    #[values(0.02, 0.05, 0.2)] rtt: f64,
) {
    let rate = mbit(20.0);
    let scenario = Scenario {
        rate: if waits {
            vec![(0.0, rate), (20.0, 0.0), (22.0, rate)]
        } else {
            vec![(0.0, rate)]
        },
        gone: if waits { vec![] } else { vec![(20.0, 22.0)] },
        loss: [loss; 2],
        legs: vec![flows],
        ..usual(rtt)
    };
    let samples = run(&scenario, || Controller::new(f64::INFINITY));
    // A sender's timer may have been doubled to as long as the outage took, and what it sends then be lost.
    let seen = Seen::of(&samples, 28.0);
    assert!(seen.share > 0.95, "{:.3} of the link", seen.share);
    assert!(
        seen.longest_below_half < 1.0,
        "{} s below half",
        seen.longest_below_half
    );
}
