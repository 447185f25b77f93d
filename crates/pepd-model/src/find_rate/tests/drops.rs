//! What is too much is dropped at once, and what is lost in bursts is not.

use proptest::prelude::*;
use rstest::rstest;

use super::super::simulation::{Scenario, run};
use super::super::{Controller, PACKET};
use super::{Seen, always_the_same, go, mbit, usual};

/// What is too much is dropped at once: a policer, and a buffer of two milliseconds.
#[rstest]
#[case(Some(mbit(40.0) * 0.01), f64::INFINITY)]
#[case(None, mbit(40.0) * 0.002)]
fn without_a_queue_the_rate_is_found_by_what_arrives(
    #[case] policer: Option<f64>,
    #[case] buffer: f64,
    #[values(0.0, 0.1)] loss: f64,
) {
    let seen = go(&Scenario {
        policer,
        buffer,
        loss: [loss, 0.0],
        ..usual(0.05)
    });
    assert!(seen.share > 0.9, "{:.3} of the link", seen.share);
    // Where much is lost besides, it takes more to tell the one from the other.
    let most = if loss > 0.0 { 0.25 } else { 0.1 };
    assert!(seen.dropped < most, "{:.3} dropped", seen.dropped);
}

/// What was taken for the path's losses is seen to be none.
#[rstest]
fn drops_that_were_taken_for_losses_are_found(
    #[values(Some(mbit(20.0) * 0.01), None)] policer: Option<f64>,
    #[values(0.3, 0.6)] share: f64,
    #[values(0.0, 0.1)] loss: f64,
    #[values(0.01, 0.05, 0.2)] rtt: f64,
) {
    let scenario = Scenario {
        rate: vec![(0.0, mbit(20.0))],
        policer,
        buffer: mbit(20.0) * 0.002,
        loss: [loss; 2],
        ..usual(rtt)
    };
    let samples = run(&scenario, || Controller::deceived(mbit(60.0), share));
    let seen = Seen::of(&samples, 20.0);
    println!("{:.3} of the link, {:.3} dropped", seen.share, seen.dropped);
    assert!(seen.share > 0.9, "{:.3} of the link", seen.share);
    assert!(seen.dropped < 0.1, "{:.3} dropped", seen.dropped);
}

/// A buffer that holds three packets, as a kernel meets it: some packets are sent at once, and acknowledgements are taken
/// late at times, which looks like a queue.
fn three_packets(rate: f64, rtt: f64, loss: f64, (late, seed): ((f64, f64), u64)) -> Scenario {
    Scenario {
        rate: vec![(0.0, mbit(rate))],
        buffer: 3.5 * PACKET,
        at_once: (0.001, 10),
        loss: [loss; 2],
        late,
        seed,
        ..usual(rtt)
    }
}

#[rstest]
fn three_packets_are_room_enough(
    #[values(20.0, 40.0)] rate: f64,
    #[values(0.0, 0.1)] loss: f64,
    #[values(0.01, 0.05)] rtt: f64,
    #[values((0.0, 0.0), (0.01, 0.005), (0.02, 0.01))] late: (f64, f64),
) {
    let [mut dropped, mut share] = [0.0; 2];
    for seed in 0..6 {
        let seen = go(&three_packets(rate, rtt, loss, (late, seed)));
        assert!(
            seen.share > 0.8,
            "seed {seed}: {:.3} of the link",
            seen.share
        );
        assert!(
            seen.dropped < 0.3,
            "seed {seed}: {:.3} dropped",
            seen.dropped
        );
        dropped += seen.dropped / 6.0;
        share += seen.share / 6.0;
    }
    assert!(dropped < 0.15, "{dropped:.3} dropped");
    assert!(share > 0.8, "{share:.3} of the link");
}

/// The same where that was taken for the path's losses before.
#[rstest]
fn in_so_little_room_drops_are_found_too(
    #[values(0.3, 0.6)] share: f64,
    #[values(0.0, 0.1)] loss: f64,
    #[values(0.01, 0.05)] rtt: f64,
    #[values((0.0, 0.0), (0.01, 0.005), (0.02, 0.01))] late: (f64, f64),
) {
    let mut dropped = 0.0;
    for seed in 0..6 {
        let scenario = three_packets(20.0, rtt, loss, (late, seed));
        let samples = run(&scenario, || Controller::deceived(mbit(60.0), share));
        let seen = Seen::of(&samples, 20.0);
        assert!(
            seen.share > 0.9,
            "seed {seed}: {:.3} of the link",
            seen.share
        );
        assert!(
            seen.dropped < 0.1,
            "seed {seed}: {:.3} dropped",
            seen.dropped
        );
        dropped += seen.dropped / 6.0;
    }
    assert!(dropped < 0.05, "{dropped:.3} dropped");
}

/// With any bursts: some look as if a policer had dropped for a while.
#[rstest]
fn bursts_of_losses_are_no_drops(#[values(0.0, 0.1)] back: f64, #[values(20.0, 40.0)] rate: f64) {
    for seed in 0..50 {
        let seen = go(&Scenario {
            rate: vec![(0.0, mbit(rate))],
            loss: [0.1, back],
            burst: 10.0,
            seconds: 20.0,
            seed,
            ..usual(0.05)
        });
        let Seen { share, queue, .. } = seen;
        assert!(share > 0.9, "seed {seed}: {share:.3} of the link");
        assert!(queue < 0.12, "seed {seed}: a queue of {queue:.3} s");
    }
}

proptest! {
    #![proptest_config(always_the_same())]

    /// Whatever a policer or a short buffer lets through is found, whatever is lost besides; unless ten packets in
    /// the first round trip are too much already, since drops are taken for the path's losses then.
    #[test]
    fn any_policer_is_found(
        rate in 1.1_f64..2.2,
        rtt in 0.01_f64..0.2,
        loss in 0.0_f64..0.1,
        polices in any::<bool>(),
        flows in 1_usize..8,
        seed in any::<u64>(),
    ) {
        let rate = mbit(10_f64.powf(rate));
        let seen = go(&Scenario {
            rate: vec![(0.0, rate)],
            policer: polices.then_some(0.01 * rate),
            buffer: (0.002 * rate).max(2.0 * PACKET),
            loss: [loss; 2],
            legs: vec![flows],
            seed,
            ..usual(rtt)
        });
        prop_assert!(seen.share > 0.85, "{} of the link", seen.share);
        prop_assert!(seen.dropped < 0.4, "{} dropped", seen.dropped);
        prop_assert!(seen.longest_below_half < 5.0, "{} s below half", seen.longest_below_half);
    }

    /// And any bursts are none of that. A single connection's timer may wait for seconds after a few in a row.
    #[test]
    fn any_bursts_are_no_drops(
        rate in 0.5_f64..2.2,
        rtt in 0.01_f64..0.2,
        loss in 0.02_f64..0.1,
        back in 0.0_f64..0.1,
        burst in 2.0_f64..10.0,
        flows in 2_usize..8,
        seed in any::<u64>(),
    ) {
        let seen = go(&Scenario {
            rate: vec![(0.0, mbit(10_f64.powf(rate)))],
            loss: [loss, back],
            burst,
            legs: vec![flows],
            seed,
            ..usual(rtt)
        });
        prop_assert!(seen.share > 0.85, "{} of the link", seen.share);
        prop_assert!(seen.longest_below_half < 5.0, "{} s below half", seen.longest_below_half);
    }
}
