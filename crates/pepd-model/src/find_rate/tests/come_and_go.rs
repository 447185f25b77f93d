//! Connections that come and go, on a leg that is always full: what the queue is nobody may know for sure.

use rstest::rstest;

use super::super::simulation::Scenario;
use super::{Seen, go, mbit, usual};

fn come_and_go(rate: f64, rtt: f64, flows: usize, lives: f64) -> Scenario {
    Scenario {
        rate: vec![(0.0, mbit(rate))],
        legs: vec![flows],
        lives,
        finds_own_links: true,
        seconds: 120.0,
        ..usual(rtt)
    }
}

/// What one connection does not know of the queue is not handed on to the next: with those before it the queue grew to
/// seconds within minutes, without bounds.
#[rstest]
fn the_queue_does_not_grow(
    #[values(
        (20.0, 0.05, 4, 5.0),
        (20.0, 0.05, 10, 3.0),
        (20.0, 0.05, 10, 10.0),
        (20.0, 0.05, 100, 10.0),
        (100.0, 0.2, 30, 10.0),
        (4.0, 0.05, 8, 10.0),
        (20.0, 0.02, 36, 1.3)
    )]
    (rate, rtt, flows, lives): (f64, f64, usize, f64),
    #[values(0.0, 0.1, 0.3)] loss: f64,
) {
    let Seen { queue, share, .. } = go(&Scenario {
        loss: [loss; 2],
        ..come_and_go(rate, rtt, flows, lives)
    });
    let packets = (30.0 + 6.0 * flows as f64) * 1500.0 / mbit(rate);
    let most = 0.01 + 0.3 * rtt + packets;
    assert!(queue < most, "a queue of {queue:.3} s, of {most:.3} s");
    assert!(share > 0.97, "{share:.3} of the link");
}

/// One download after the other: each has the link.
#[rstest]
fn one_after_the_other(
    #[values((7.5, 0.006), (20.0, 0.05), (100.0, 0.05), (4.0, 0.2), (20.0, 0.6))] (rate, rtt): (
        f64,
        f64,
    ),
    #[values(0.0, 0.3)] loss: f64,
    #[values(2.2, 10.0)] lives: f64,
) {
    let Seen { share, .. } = go(&Scenario {
        loss: [loss; 2],
        ..come_and_go(rate, rtt, 1, lives)
    });
    assert!(share > 0.95, "{share:.3} of the link");
}

/// Many that begin one after the other and stay are seen as they are, too.
#[rstest]
fn the_queue_stays_with_who_joins(#[values(30, 100)] flows: u32, #[values(0.1, 0.3)] every: f64) {
    let active = (0..flows).map(|it| (f64::from(it) * every, 1.0 + f64::from(it)));
    let scenario = Scenario {
        active: active.collect(),
        loss: [0.1; 2],
        seconds: f64::from(flows) * every + 20.0,
        ..come_and_go(20.0, 0.05, flows as usize, f64::INFINITY)
    };
    let Seen { queue, share, .. } = go(&scenario);
    assert!(queue < 0.05, "a queue of {queue:.3} s");
    assert!(share > 0.97, "{share:.3} of the link");
}

/// Where a connection has less than two packets in the time for which its receiver waits for another one, most round trips are
/// longer by that, and of what remains to be seen little is sure.
#[rstest]
fn receivers_that_wait_are_no_queue(
    #[values((20.0, 0.05, 30), (20.0, 0.05, 100), (20.0, 0.2, 100), (4.0, 0.05, 30), (1.0, 0.05, 4))]
    (rate, rtt, flows): (f64, f64, usize),
    #[values(0.0, 0.01, 0.1)] loss: f64,
    #[values(f64::INFINITY, 10.0)] lives: f64,
) {
    let one = |seed| {
        go(&Scenario {
            loss: [loss; 2],
            delayed: 0.04,
            seed,
            ..come_and_go(rate, rtt + 1e-4 * seed as f64, flows, lives)
        })
    };
    let all = [one(0), one(1), one(2)];
    let mean = |of: fn(&Seen) -> f64| all.iter().map(of).sum::<f64>() / 3.0;
    let (queue, share) = (mean(|it| it.queue), mean(|it| it.share));
    assert!(queue < 1.0, "a queue of {queue:.3} s");
    assert!(share > 0.85, "{share:.3} of the link");
}
