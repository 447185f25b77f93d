//! Others on the link.

use rstest::rstest;

use super::super::Controller;
use super::super::simulation::{Sample, Scenario, index, run};
use super::{Seen, mbit, usual};

/// A connection of somebody else's with cubic keeps a third at least.
#[rstest]
fn others_are_not_starved(#[values(0.02, 0.1, 0.3)] buffer: f64, #[values(0.0, 5.0)] begins: f64) {
    let scenario = Scenario {
        foreign: 1,
        begins,
        buffer: mbit(40.0) * buffer,
        ..usual(0.05)
    };
    let samples = run(&scenario, || Controller::new(f64::INFINITY));
    let later = samples.iter().skip(index(begins + 20.0));
    let (ours, theirs) = later.fold((0.0, 0.0), |(ours, theirs), sample| {
        (
            ours + sample.carried.iter().sum::<f64>(),
            theirs + sample.foreign,
        )
    });
    let share = theirs / (ours + theirs);
    assert!(share > 0.33, "they have {share:.2}");
    assert!(share < 0.9, "they have {share:.2}");
}

/// Beside what does not give way, as UDP of a constant rate, the rest is used. The more there is of it the less a leg can make the
/// queue shorter by what it does not send, and a queue that stays may be a path that has become longer.
#[rstest]
#[case::a_third(0.3, 0.03)]
#[case::half(0.5, 0.3)]
#[case::most(0.7, 1.5)]
fn beside_what_does_not_give_way_the_rest_is_used(
    #[case] part: f64,
    #[case] longest: f64,
    #[values(2, 8)] flows: usize,
) {
    let scenario = Scenario {
        legs: vec![flows],
        constant: vec![(30.0, part * mbit(40.0))],
        seconds: 160.0,
        ..usual(0.05)
    };
    let samples = run(&scenario, || Controller::new(f64::INFINITY));
    let seen = Seen::of(&samples, 60.0);
    let rest = seen.share / (1.0 - part);
    assert!(rest > 0.95, "{rest:.3} of the rest");
    assert!(seen.queue < longest, "a queue of {:.3} s", seen.queue);
}

/// Several that know nothing of each other share a link, and its queue stays short.
#[rstest]
fn they_share_a_link(#[values(2, 3)] legs: usize) {
    let scenario = Scenario {
        legs: vec![1; legs],
        ..usual(0.05)
    };
    let samples = run(&scenario, || Controller::new(f64::INFINITY));
    let seen = Seen::of(&samples, 5.0);
    assert!(seen.share > 0.97, "{:.3} of the link", seen.share);
    assert!(seen.queue < 0.05, "a queue of {:.3} s", seen.queue);
    for leg in 0..legs {
        let sum = |value: &dyn Fn(&Sample) -> f64| samples.iter().skip(50).map(value).sum::<f64>();
        let share = sum(&|it| it.carried[leg]) / sum(&|it| it.carried.iter().sum());
        assert!(share > 0.6 / legs as f64, "leg {leg} has {share:.2}");
    }
}
