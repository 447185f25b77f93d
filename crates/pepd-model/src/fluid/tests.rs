//! The dynamics against closed forms and against themselves.

use proptest::prelude::*;

use super::*;
use crate::law::Loss;
use crate::law::aimd::phi;

const SEED: u64 = 20_090_101;

/// A leg of Baccelli et al.: Reno with round trip R and λ losses a second.
fn fading(rtt: f64, lambda: f64, stream: u64) -> Leg {
    Leg::reno(1.0 / (rtt * rtt), Loss::per_second(lambda), stream)
}

fn run(legs: &[Leg], buffers: &[f64], time: f64) -> Record {
    let mut chain = Chain::new(legs, buffers, SEED);
    let mut record = Record::new();
    chain.run(time / 20.0, &mut record);
    let mut record = Record::of_queue(0);
    chain.run(time, &mut record);
    record
}

#[test]
fn a_leg_alone_has_altmans_moments() {
    let (alpha, lambda) = (625.0, 0.4);
    let mut chain = Chain::new(&[Leg::reno(alpha, Loss::per_second(lambda), 0)], &[], SEED);
    let mut record = Record::new();
    let (mut sum, mut squares, mut count) = (0.0, 0.0, 0.0);
    while chain.now() < 2e5 {
        chain.run(chain.now() + 1.0, &mut record);
        let rate = chain.rates()[0];
        (sum, squares, count) = (sum + rate, squares + rate * rate, count + 1.0);
    }
    let mean = record.throughput();
    assert!((mean / 3125.0 - 1.0).abs() < 0.01, "{mean}");
    let variance = squares / count - (sum / count).powi(2);
    let wanted = 4.0 / 3.0 * (alpha / lambda).powi(2);
    assert!(
        (variance / wanted - 1.0).abs() < 0.03,
        "{variance} {wanted}"
    );
}

#[test]
fn a_leg_that_loses_packets_has_phi() {
    let leg = Leg::reno(400.0, Loss::per_packet(0.01), 0);
    let mean = run(&[leg], &[], 5000.0).throughput();
    let wanted = phi(0.5) * 200.0;
    assert!((mean / wanted - 1.0).abs() < 0.01, "{mean} {wanted}");
}

#[test]
fn rho_decides_whether_the_queue_settles() {
    // ρ = αμ/βλ by the loss on the second leg.
    let end = |rho: f64| {
        let legs = [fading(0.05, 0.5, 0), fading(0.05, 0.5 * rho, 1)];
        let mut chain = Chain::new(&legs, &[], SEED);
        chain.run(5e4, &mut Record::new());
        let half = chain.queues()[0];
        chain.run(1e5, &mut Record::new());
        (half, chain.queues()[0])
    };
    let (_, settled) = end(0.9);
    let (half, grown) = end(1.1);
    // 0.1 of X̄ = 1600 is 16 × 10⁶ packets in the end.
    assert!(settled < 1e6, "{settled}");
    assert!(half > 4e6 && grown > 1.5 * half, "{half} {grown}");
}

#[test]
fn table_19_1_as_a_fluid() {
    // FACTS: between 2,920 and 3,000 packets/s at every B: small buffers cost a fluid little.
    let legs = [fading(0.04, 0.4, 0), fading(0.02, 0.4, 1)];
    let free = run(&legs[..1], &[], 1e5).throughput();
    for buffer in [1.0, 10.0, 100.0, 1000.0] {
        let record = run(&legs, &[buffer], 1e5);
        // By the same losses, so that what chance does to both drops out.
        let throughput = record.throughput() / free * 3125.0;
        assert!(
            (2900.0..3050.0).contains(&throughput),
            "{buffer}: {throughput}"
        );
    }
}

#[test]
fn fig_19_4_is_full_and_fig_19_3_empty() {
    let fs = run(&[fading(0.04, 0.4, 0), fading(0.08, 0.2, 1)], &[20.0], 1e4);
    let of = |record: &Record| record.shares[0].of(record.time);
    assert!(
        of(&fs).backpressured > 0.7 && of(&fs).starved < 0.25,
        "{:?}",
        of(&fs)
    );
    let sf = run(&[fading(0.09, 0.4, 0), fading(0.03, 0.4, 1)], &[20.0], 1e4);
    assert!(
        of(&sf).starved > 0.7 && of(&sf).backpressured < 0.25,
        "{:?}",
        of(&sf)
    );
}

#[test]
fn an_infinite_queue_s_tail_is_heavy_with_losses_a_second_and_light_with_losses_of_packets() {
    let queue = |legs: [Leg; 2]| run(&legs, &[f64::INFINITY], 2e5).samples(50_000);
    let fading = queue([fading(0.05, 0.5, 0), fading(0.04, 0.5, 1)]);
    let lossy = |rtt: f64, stream| Leg::reno(1.0 / (rtt * rtt), Loss::per_packet(0.002), stream);
    let lossy = queue([lossy(0.05, 0), lossy(0.04, 1)]);
    let (heavy, light) = (
        tail::hill(&fading, 1000).unwrap(),
        tail::hill(&lossy, 1000).unwrap(),
    );
    assert!(heavy > light, "{heavy} {light}");
    // The second moments are finite all the same (Fig. 19.6 and 19.8).
    assert!(tail::largest_share(&fading, 2.0) < 0.05);
    assert!(tail::largest_share(&lossy, 2.0) < 0.05);
}

/// A leg of any kind.
fn any_leg(stream: u64) -> impl Strategy<Value = Leg> {
    let cap = prop_oneof![Just(f64::INFINITY), 200.0..5000.0_f64];
    (0.01..0.2_f64, 0.0..2.0_f64, 0.0..0.01_f64, cap).prop_map(move |(rtt, lambda, p, cap)| Leg {
        cap,
        ..Leg::reno(
            1.0 / (rtt * rtt),
            Loss {
                per_second: lambda.max(0.1),
                per_packet: p,
            },
            stream,
        )
    })
}

fn any_chain() -> impl Strategy<Value = (Vec<Leg>, Vec<f64>)> {
    let buffer = || prop_oneof![Just(0.0), 0.0..500.0_f64];
    (
        any_leg(0),
        any_leg(1),
        any_leg(2),
        any_leg(3),
        buffer(),
        buffer(),
        buffer(),
        2..=4_usize,
    )
        .prop_map(|(a, b, c, d, first, second, third, count)| {
            let mut legs = vec![a, b, c, d];
            legs.truncate(count);
            (legs, vec![first, second, third])
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_comes_leaves_or_waits((legs, buffers) in any_chain()) {
        let mut chain = Chain::new(&legs, &buffers, SEED);
        let mut record = Record::new();
        chain.run(200.0, &mut record);
        for (gap, queue) in chain.queues().iter().enumerate() {
            let kept = record.sent[gap] - record.sent[gap + 1];
            prop_assert!((kept - queue).abs() < 1e-6 * record.sent[gap].max(1.0), "{} {}", kept, queue);
            prop_assert!(*queue >= 0.0 && *queue <= buffers[gap]);
            let shares = record.shares[gap].of(record.time);
            prop_assert!((shares.free + shares.starved + shares.backpressured - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn no_leg_is_faster_in_the_chain_than_free((legs, buffers) in any_chain()) {
        // Where losses do not depend on what is sent (Lemma 19.6).
        let legs: Vec<_> = legs.iter().map(|leg| Leg { loss: Loss::per_second(leg.loss.per_second), ..*leg }).collect();
        let mut chain = Chain::new(&legs, &buffers, SEED);
        let mut free: Vec<_> = legs.iter().map(|leg| Chain::new(&[*leg], &[], SEED)).collect();
        let mut record = Record::new();
        for step in 1..400_u32 {
            let time = f64::from(step) * 0.25;
            chain.run(time, &mut record);
            for (leg, free) in free.iter_mut().enumerate() {
                free.run(time, &mut Record::new());
                prop_assert!(chain.rates()[leg] <= free.rates()[0] * (1.0 + 1e-9));
            }
        }
    }

    #[test]
    fn legs_that_change_places_leave_the_antibuffer((legs, buffers) in any_chain()) {
        let (mut there, mut back) = (legs, buffers);
        there.truncate(2);
        back.truncate(1);
        let buffer = back[0] + 1.0;
        let mut chain = Chain::new(&there, &[buffer], SEED).starting_with(&[buffer / 4.0]);
        there.reverse();
        let mut dual = Chain::new(&there, &[buffer], SEED).starting_with(&[buffer * 3.0 / 4.0]);
        let (mut record, mut other) = (Record::new(), Record::new());
        for step in 1..100_u32 {
            let time = f64::from(step);
            chain.run(time, &mut record);
            dual.run(time, &mut other);
            let off = chain.queues()[0] + dual.queues()[0] - buffer;
            prop_assert!(off.abs() < 1e-3 * buffer, "{} at {}", off, time);
        }
        let (shares, swapped) = (record.shares[0], other.shares[0]);
        prop_assert!((shares.starved - swapped.backpressured).abs() < 1e-2);
    }
}
