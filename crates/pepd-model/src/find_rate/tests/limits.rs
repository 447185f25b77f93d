//! What limits a leg.

use rstest::rstest;

use super::super::simulation::{SAMPLE, Scenario, index, run};
use super::super::{Controller, LimitedBy, PACKET};
use super::{Seen, mbit, settled, usual};

#[test]
fn the_ceiling_holds() {
    let ceiling = mbit(10.0);
    let samples = run(&usual(0.05), || Controller::new(ceiling));
    let seen = Seen::of(&samples, settled(0.05));
    assert!(
        (seen.share - 0.25).abs() < 0.01,
        "{:.3} of the link",
        seen.share
    );
    for sample in &samples {
        assert!(
            sample.carried[0] <= ceiling * SAMPLE + 2.0 * PACKET,
            "{sample:?}"
        );
    }
}

/// Returns the parts of the time in which each thing has limited the first leg, from when the rate is to be
/// found.
fn limits(scenario: &Scenario, ceiling: f64) -> [f64; LimitedBy::ALL.len()] {
    let samples = run(scenario, || Controller::new(ceiling));
    let tail = samples.iter().skip(index(settled(0.05)));
    let all: Vec<LimitedBy> = tail.flat_map(|it| it.limited.iter().copied()).collect();
    LimitedBy::ALL.map(|limit| {
        let count = all.iter().filter(|it| **it == limit).count();
        count as f64 / all.len() as f64
    })
}

/// It is said what limits a leg, most of the time.
#[rstest]
#[case::the_link(usual(0.05), LimitedBy::Link)]
#[case::a_lossy_link(Scenario { loss: [0.2; 2], ..usual(0.05) }, LimitedBy::Link)]
#[case::many(Scenario { legs: vec![10], ..usual(0.05) }, LimitedBy::Link)]
#[case::little_to_send(Scenario { demand: mbit(5.0), ..usual(0.05) }, LimitedBy::Applications)]
#[case::others(Scenario { foreign: 2, buffer: mbit(40.0) * 0.1, ..usual(0.05) }, LimitedBy::Others)]
#[case::a_policer(Scenario { policer: Some(mbit(40.0) * 0.01), ..usual(0.05) }, LimitedBy::Drops)]
#[case::a_short_buffer(Scenario { buffer: mbit(40.0) * 0.002, ..usual(0.05) }, LimitedBy::Drops)]
fn what_limits_it_is_said(#[case] scenario: Scenario, #[case] wanted: LimitedBy) {
    let parts = limits(&scenario, f64::INFINITY);
    let all = LimitedBy::ALL;
    let part = all.iter().zip(parts).find(|(it, _)| **it == wanted);
    assert!(part.is_some_and(|it| it.1 > 0.6), "{all:?}: {parts:.2?}");
}

#[rstest]
fn a_ceiling_is_said_to_limit(#[values(0.0, 0.1)] loss: f64) {
    let scenario = Scenario {
        loss: [loss; 2],
        ..usual(0.05)
    };
    let [.., ceiling, link, others, drops] = limits(&scenario, mbit(20.0));
    assert!(ceiling > 0.9, "{ceiling:.2} of the time");
    assert!(link + others + drops < 0.05);
}
