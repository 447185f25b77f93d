//! Connections that have a narrower link of their own behind the leg.

use rstest::rstest;

use super::super::simulation::{Sample, Scenario, index, run};
use super::super::{Controller, PACKET};
use super::{mbit, settled, usual};

/// What is seen of links of their own, from a time on.
#[derive(Debug)]
struct Shares {
    /// What these links carried, of what they can.
    own: f64,
    /// What was dropped before them.
    dropped: f64,
    /// What the others had, of what these links leave of the leg.
    others: f64,
    /// The most connections that were kept to something.
    capped: usize,
}

fn shares(scenario: &Scenario, from: f64) -> Shares {
    let samples = run(scenario, || Controller::new(f64::INFINITY));
    let tail = &samples[index(from)..index(scenario.seconds)];
    let sum = |value: fn(&Sample) -> f64| tail.iter().map(value).sum::<f64>();
    let seconds = scenario.seconds - from;
    let own: f64 = scenario.own_links.iter().map(|link| link.0).sum::<f64>() * seconds;
    let arrive = 1.0 - scenario.loss[0];
    let (came, went) = (sum(|it| it.to_own_links), sum(|it| it.of_own_links));
    let others = sum(|it| it.carried[0]) - came / arrive;
    Shares {
        own: went / own,
        dropped: (1.0 - went / came).max(0.0),
        others: others / (sum(|it| it.capacity) - own / arrive),
        capped: tail.iter().map(|it| it.capped).max().unwrap_or(0),
    }
}

fn narrow(rate: f64, loss: f64, others: usize, rtt: f64) -> Scenario {
    Scenario {
        rate: vec![(0.0, mbit(20.0))],
        loss: [loss; 2],
        legs: vec![1 + others],
        own_links: vec![(mbit(rate), 100.0 * PACKET)],
        finds_own_links: true,
        seconds: 90.0,
        ..usual(rtt)
    }
}

/// It has what it carries, hardly anything is dropped before it, and the others have the rest, whatever the leg
/// loses.
#[rstest]
fn a_narrow_link_has_what_it_carries_and_the_others_the_rest(
    #[values(1.0, 4.0)] rate: f64,
    #[values(0.0, 0.2)] loss: f64,
    #[values(1, 3)] others: usize,
    #[values(0.01, 0.05, 0.2)] rtt: f64,
) {
    // Before it has a cap half of what is sent is sent to it, and what it drops of that holds the start up.
    let mut own = 0.0;
    for seed in 1..=3 {
        let scenario = Scenario {
            seed,
            ..narrow(rate, loss, others, rtt)
        };
        let seen = shares(&scenario, settled(rtt) + 5.0);
        own += seen.own / 3.0;
        assert!(seen.dropped < 0.03, "{seen:.3?}");
        assert!(seen.others > 0.97, "{seen:.3?}");
    }
    assert!(own > 0.88, "{own:.3} of its link");
}

/// Until it has its cap half of what is sent is sent to it, and what is dropped or waits there looks as if the leg were full: that
/// is no longer believed once it has, and the leg is used soon.
#[rstest]
fn a_narrow_link_does_not_hold_the_start_up(
    #[values(1.0, 4.0)] rate: f64,
    #[values(0.0, 0.2)] loss: f64,
    #[values(1, 3)] others: usize,
    #[values(0.01, 0.05, 0.2)] rtt: f64,
) {
    for seed in 1..=5 {
        let scenario = Scenario {
            seed,
            seconds: 10.0,
            ..narrow(rate, loss, others, rtt)
        };
        let samples = run(&scenario, || Controller::new(f64::INFINITY));
        let is_used = |two: &[Sample]| {
            let carried: f64 = two.iter().map(|it| it.carried[0]).sum();
            carried > 0.9 * two.iter().map(|it| it.capacity).sum::<f64>()
        };
        let used = samples.windows(2).position(is_used);
        assert!(used.is_some_and(|used| used < index(5.0)), "{used:?}");
    }
}

/// Without that most of what is sent to it is lost there, and the others have as much less.
#[test]
fn without_a_cap_it_is_overdriven() {
    let scenario = Scenario {
        finds_own_links: false,
        ..narrow(2.0, 0.1, 1, 0.05)
    };
    let seen = shares(&scenario, settled(0.05) + 20.0);
    assert!(seen.dropped > 0.6 && seen.others < 0.7, "{seen:.3?}");
}

/// A leg's own losses, which took connections for such before, are none.
#[rstest]
fn nobody_is_kept_to_less_where_no_link_is_narrow(
    #[values(0.0, 0.1, 0.3)] loss: f64,
    #[values(0.01, 0.05, 0.2, 0.6)] rtt: f64,
    #[values(2, 30)] flows: usize,
) {
    let scenario = Scenario {
        loss: [loss; 2],
        legs: vec![flows],
        finds_own_links: true,
        seconds: 30.0,
        ..usual(rtt)
    };
    assert_eq!(shares(&scenario, 0.0).capped, 0);
}

/// Nor are a rate that changes, and a path of the leg that becomes longer.
#[test]
fn nobody_is_kept_to_less_where_the_leg_changes() {
    let longer = (0..8_u32).map(|step| {
        let longer = f64::from((step * 7) % 4);
        (f64::from(step) * 15.0, 0.03 + 0.03 * longer)
    });
    for scenario in [
        Scenario {
            rate: vec![(0.0, mbit(100.0)), (20.0, mbit(20.0)), (40.0, mbit(60.0))],
            ..usual(0.05)
        },
        Scenario {
            rtt: longer.collect(),
            seconds: 120.0,
            ..usual(0.03)
        },
    ] {
        let scenario = Scenario {
            loss: [0.01; 2],
            legs: vec![4],
            finds_own_links: true,
            ..scenario
        };
        let samples = run(&scenario, || Controller::new(f64::INFINITY));
        let capped = samples.iter().map(|it| it.capped).max();
        println!("{capped:?}");
        assert_eq!(capped, Some(0));
    }
}
