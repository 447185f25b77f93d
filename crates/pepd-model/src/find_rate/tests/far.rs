//! Connections whose hosts are near and far behind the leg.

use rstest::rstest;

use super::super::Controller;
use super::super::simulation::{Sample, Scenario, index, run};
use super::{Seen, mbit, settled, usual};

/// Ten connections, so many of them farther by so many seconds.
fn mixed(rate: f64, rtt: f64, (far, farther): (usize, f64)) -> Scenario {
    Scenario {
        rate: vec![(0.0, mbit(rate))],
        legs: vec![10],
        farther: vec![farther; far],
        finds_own_links: true,
        ..usual(rtt)
    }
}

/// What comes late is not lost, and the link is full without a queue: as one of the near ones, where these send a good part.
#[rstest]
fn who_is_far_is_not_lost(
    #[values(
        (20.0, 0.04, (5, 0.12), 0.06),
        (20.0, 0.04, (1, 0.56), 0.06),
        (20.0, 0.04, (9, 0.56), 0.6),
        (20.0, 0.01, (5, 0.3), 0.04),
        (100.0, 0.02, (5, 0.2), 0.04),
        (4.0, 0.04, (5, 0.12), 0.25)
    )]
    (rate, rtt, far, most): (f64, f64, (usize, f64), f64),
    #[values(0.0, 0.1)] loss: f64,
    #[values(f64::INFINITY, 10.0)] lives: f64,
    #[values(0.0, 0.04)] delayed: f64,
) {
    let scenario = Scenario {
        loss: [loss; 2],
        lives,
        delayed,
        ..mixed(rate, rtt, far)
    };
    let samples = run(&scenario, || Controller::new(f64::INFINITY));
    let seen = Seen::of(&samples, settled(rtt + far.1));
    assert!(seen.share > 0.97, "{:.3} of the link", seen.share);
    assert!(seen.queue < most, "a queue of {:.3} s", seen.queue);
    assert!(
        seen.longest_below_half < 1.0,
        "{:.1} s",
        seen.longest_below_half
    );
    let has_turn = |sample: &&Sample| !sample.limited.is_empty();
    let last = samples.iter().rev().filter(has_turn).take(100);
    let lost: Vec<f64> = last.map(|sample| 1.0 - sample.path_share).collect();
    let lost = lost.iter().sum::<f64>() / lost.len() as f64;
    // What is acknowledged late, since an acknowledgement was lost, counts in part.
    assert!((lost - loss).abs() < 0.06, "{lost:.3} lost");
}

/// Where the near ones end as soon as it is known who they are, those that are left are asked.
#[rstest]
fn the_near_ones_end(#[values(0.0, 0.1)] loss: f64, #[values(0.1, 0.5)] farther: f64) {
    let stuck = |tenths: &u32| {
        let scenario = Scenario {
            rate: vec![(0.0, mbit(20.0))],
            loss: [loss; 2],
            legs: vec![7],
            farther: vec![farther; 3],
            active: vec![(0.0, 7.0), (f64::from(*tenths) / 10.0, 3.0)],
            seconds: 12.0 + 12.0 * farther,
            ..usual(0.05)
        };
        let samples = run(&scenario, || Controller::new(f64::INFINITY));
        Seen::of(&samples, 2.0 + 12.0 * farther).share < 0.9
    };
    let stuck: Vec<u32> = (1..30).filter(stuck).collect();
    assert!(
        stuck.is_empty(),
        "stuck after these tenths of a second: {stuck:?}"
    );
}

/// Where the paths of most become longer at once, as when a site is reached another way, their answers come after what was waited
/// for: that is seen, and undone.
#[rstest]
fn paths_that_become_longer_are_no_losses(
    #[values((9, 0.5, 0.6), (9, 0.001, 0.3), (5, 0.01, 0.3), (5, 0.12, 0.2))] (far, farther, more): (
        usize,
        f64,
        f64,
    ),
    #[values(0.0, 0.02)] loss: f64,
    #[values(f64::INFINITY, 10.0)] lives: f64,
) {
    let mut shares = [0.0; 2];
    for seed in 1..=3 {
        // Not just when it is being found out whether something is dropped.
        let moves = 20.5 + seed as f64;
        let scenario = Scenario {
            loss: [loss; 2],
            moves: vec![(0.0, 0.0), (moves, more)],
            delayed: 0.04,
            lives,
            seed,
            ..mixed(20.0, 0.04, (far, farther))
        };
        let samples = run(&scenario, || Controller::new(f64::INFINITY));
        for (share, span) in shares
            .iter_mut()
            .zip([moves..moves + 10.0, moves + 10.0..60.0])
        {
            let span = &samples[index(span.start)..index(span.end)];
            *share += Seen::of(span, 0.0).share / 3.0;
        }
    }
    let [at_first, later] = shares;
    assert!(at_first > 0.45, "{at_first:.3} of the link at first");
    assert!(later > 0.55, "{later:.3} of the link later");
}

/// What half of the receivers hold back on purpose, to let it go together again and again, is of little effect on the others.
#[rstest]
fn who_answers_late_holds_nobody_up(
    #[values((1, 1), (4, 4), (7, 3))] (near, late): (usize, usize),
    #[values(0.3, 1.0)] period: f64,
) {
    let steps = (500..1700_u32).map(|step| {
        let time = f64::from(step) / 100.0;
        (time, period - (time - 5.0) % period)
    });
    let moves = std::iter::once((0.0, 0.0)).chain(steps);
    let mut share = 0.0;
    for seed in 1..=3 {
        let scenario = Scenario {
            legs: vec![near + late],
            moves: moves.clone().chain([(17.0, 0.0)]).collect(),
            delayed: 0.04,
            seconds: 17.0,
            seed,
            ..mixed(20.0, 0.04, (late, 0.001))
        };
        let samples = run(&scenario, || Controller::new(f64::INFINITY));
        share += Seen::of(&samples, 5.0).share / 3.0;
    }
    assert!(share > 0.8, "{share:.3} of the link");
}
