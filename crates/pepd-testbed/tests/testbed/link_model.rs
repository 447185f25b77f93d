//! The model of a link on a virtual clock: what must hold for any traffic, and the statistics of
//! its losses. Nothing here touches the kernel, and every seed is fixed.

#![allow(clippy::cast_possible_truncation, reason = "the limits here are small")]

use std::{collections::VecDeque, time::Duration};

use pepd_testbed::link::{Direction, Fate, Loss, QueueLimit, Rate, Seed, Shape, Time};
use proptest::prelude::*;

/// The two-sided 99 % point of the normal distribution.
const Z99: f64 = 2.576;
/// The 99 % point of Kolmogorov's distribution, for D√n of a large sample.
const KS99: f64 = 1.628;

fn direction(shape: &Shape, seed: u64) -> Direction {
    Direction::new(shape, Seed(seed), Time::ZERO).unwrap()
}

/// Traffic: how long after the one before it each packet comes (ns), and its size.
fn traffic() -> impl Strategy<Value = Vec<(u64, usize)>> {
    prop::collection::vec((0_u64..3_000_000, 20_usize..1500), 1..400)
}

fn limits() -> impl Strategy<Value = QueueLimit> {
    prop_oneof![
        (0_u64..20_000).prop_map(QueueLimit::Bytes),
        (0_u64..20).prop_map(QueueLimit::Packets)
    ]
}

fn losses() -> impl Strategy<Value = Loss> {
    prop_oneof![
        Just(Loss::None),
        (0.0..=1.0).prop_map(Loss::independent),
        (0.0..0.5, 1.0..20.0).prop_map(|(mean, burst)| Loss::bursts(mean, burst)),
        (0.0..1000.0).prop_map(Loss::poisson),
    ]
}

/// A queue and a server the slow way, event by event, at 10 Mbit/s (800 ns a byte).
struct Reference {
    /// The bytes and the end of transmission of what is in the system, in transmission first.
    system: VecDeque<(usize, u64)>,
    limit: QueueLimit,
}

impl Reference {
    /// When the packet has been transmitted, or that it is dropped.
    fn offer(&mut self, now: u64, bytes: usize) -> Option<u64> {
        while self.system.front().is_some_and(|(_, end)| *end <= now) {
            self.system.pop_front();
        }
        if !self.system.is_empty() {
            let waiting = self.system.iter().skip(1).map(|(bytes, _)| *bytes);
            let full = match self.limit {
                QueueLimit::Bytes(most) => waiting.sum::<usize>() + bytes > most as usize,
                QueueLimit::Packets(most) => waiting.count() + 1 > most as usize,
            };
            if full {
                return None;
            }
        }
        let end = self.system.back().map_or(now, |(_, end)| *end) + bytes as u64 * 800;
        self.system.push_back((bytes, end));
        Some(end)
    }
}

proptest! {
    #[test]
    fn each_packet_fares_as_in_a_queue_simulated_event_by_event(
        traffic in traffic(), limit in limits(), delay in 0_u64..1_000_000_000,
    ) {
        let delay = Duration::from_nanos(delay);
        let mut model = direction(
            &Shape { queue: limit, ..Shape::new(delay, Rate::mbit(10)) }, 1,
        );
        let mut reference = Reference { system: VecDeque::new(), limit };
        let mut now = 0;
        for (gap, bytes) in traffic {
            now += gap;
            let expected = match reference.offer(now, bytes) {
                Some(end) => Fate::Arrives(Time::from_nanos(end) + delay),
                None => Fate::Dropped,
            };
            prop_assert_eq!(model.offer(Time::from_nanos(now), bytes), expected);
        }
    }

    #[test]
    fn over_any_busy_window_the_rate_is_exact(
        sizes in prop::collection::vec(1_usize..65_536, 2..200),
        bits_per_second in 1_000_u64..100_000_000_000,
    ) {
        let shape = Shape {
            queue: QueueLimit::Packets(u64::MAX),
            ..Shape::new(Duration::ZERO, Rate::bits_per_second(bits_per_second))
        };
        let mut model = direction(&shape, 1);
        let mut ends = vec![0_u64];
        for bytes in &sizes {
            let Fate::Arrives(end) = model.offer(Time::ZERO, *bytes) else { panic!("not sent") };
            ends.push(end.as_nanos());
        }
        // The window from any packet to the last: every other window is a difference of two.
        for first in 0..sizes.len() {
            let bits: u128 = sizes[first..].iter().map(|bytes| *bytes as u128 * 8).sum();
            let exact = bits * 1_000_000_000 / u128::from(bits_per_second);
            let taken = u128::from(ends[sizes.len()] - ends[first]);
            prop_assert!(taken.abs_diff(exact) <= 1, "{taken} ns instead of {exact} ns");
        }
    }

    #[test]
    fn packets_stay_in_order_and_none_is_counted_twice(
        traffic in traffic(), limit in limits(), loss in losses(), seed: u64,
    ) {
        let shape = Shape {
            queue: limit,
            loss,
            ..Shape::new(Duration::from_millis(3), Rate::mbit(10))
        };
        let mut model = direction(&shape, seed);
        let (mut now, mut last, mut arrivals) = (Time::ZERO, Time::ZERO, 0);
        for (gap, bytes) in &traffic {
            now = now + Duration::from_nanos(*gap);
            if let Fate::Arrives(due) = model.offer(now, *bytes) {
                prop_assert!(due >= last && due >= now + shape.delay);
                last = due;
                arrivals += 1;
            }
        }
        let counters = model.counters();
        prop_assert_eq!(counters.offered.packets, traffic.len() as u64);
        prop_assert_eq!(
            counters.offered.packets, counters.dropped.packets + counters.sent.packets
        );
        prop_assert_eq!(counters.sent.packets, counters.lost.packets + arrivals);
    }

    #[test]
    fn a_trace_of_one_rate_is_that_rate(traffic in traffic(), limit in limits(), split in 1_u64..5_000) {
        let mut fixed = direction(
            &Shape { queue: limit, ..Shape::new(Duration::ZERO, Rate::mbit(7)) }, 1,
        );
        let step = Duration::from_micros(split);
        let steps = vec![(Duration::ZERO, Rate::mbit(7)), (step, Rate::mbit(7))];
        let trace = pepd_testbed::link::Trace::new(steps, Some(step + Duration::from_millis(1)));
        let mut traced = direction(
            &Shape { queue: limit, ..Shape::new(Duration::ZERO, trace.unwrap()) }, 1,
        );
        let mut now = Time::ZERO;
        for (gap, bytes) in traffic {
            now = now + Duration::from_nanos(gap);
            prop_assert_eq!(traced.offer(now, bytes), fixed.offer(now, bytes));
        }
    }
}

/// Returns whether each of `packets` is lost: 1500 bytes back to back at 100 Mbit/s, 120 µs each.
fn lost(loss: Loss, seed: u64, packets: usize) -> Vec<bool> {
    let shape = Shape {
        loss,
        ..Shape::new(Duration::ZERO, Rate::mbit(100))
    };
    let mut model = direction(&shape, seed);
    (0..packets as u64)
        .map(|index| model.offer(Time::from_nanos(index * 120_000), 1500) == Fate::Lost)
        .collect()
}

fn count(lost: &[bool]) -> f64 {
    lost.iter().filter(|lost| **lost).count() as f64
}

/// Wald and Wolfowitz: how many standard deviations the number of runs is off what independent
/// losses would give.
fn runs_z(lost: &[bool]) -> f64 {
    let n = lost.len() as f64;
    let (k, runs) = (
        count(lost),
        1 + lost.windows(2).filter(|pair| pair[0] != pair[1]).count(),
    );
    let mean = 1.0 + 2.0 * k * (n - k) / n;
    let variance = (mean - 1.0) * (mean - 2.0) / (n - 1.0);
    (runs as f64 - mean) / variance.sqrt()
}

#[test]
fn independent_losses_are_as_frequent_as_asked_and_independent() {
    const PACKETS: usize = 100_000;
    for (seed, p) in [(1, 0.001), (2, 0.02), (3, 0.05), (4, 0.2), (5, 0.5)] {
        let lost = lost(Loss::independent(p), seed, PACKETS);
        let n = PACKETS as f64;
        let off = (count(&lost) - n * p) / (n * p * (1.0 - p)).sqrt();
        assert!(
            off.abs() <= Z99,
            "p = {p}: {} lost, {off:.2} σ off",
            count(&lost)
        );
        let runs = runs_z(&lost);
        assert!(runs.abs() <= Z99, "p = {p}: the runs are {runs:.2} σ off");
    }
}

#[test]
fn bursts_have_their_mean_length_and_share_and_fail_the_runs_test() {
    const PACKETS: usize = 1_000_000;
    for (seed, mean, burst) in [(1, 0.02, 4.0), (2, 0.1, 10.0), (3, 0.3, 1.5)] {
        let lost = lost(Loss::bursts(mean, burst), seed, PACKETS);
        let n = PACKETS as f64;
        let (leave_bad, leave_good) = (1.0 / burst, mean / burst / (1.0 - mean));
        // The variance of a two-state chain's sum: that of independent draws times
        // (1 + ρ)/(1 − ρ), ρ the chain's correlation from one packet to the next.
        let correlation = 1.0 - leave_good - leave_bad;
        let variance = n * mean * (1.0 - mean) * (1.0 + correlation) / (1.0 - correlation);
        let off = (count(&lost) - n * mean) / variance.sqrt();
        assert!(
            off.abs() <= Z99,
            "{mean}, {burst}: {} lost, {off:.2} σ off",
            count(&lost)
        );
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        let length = count(&lost) / bursts;
        // A burst's length is geometric: its standard deviation is √(b(b − 1)).
        let off = (length - burst) / (burst * (burst - 1.0) / bursts).sqrt();
        assert!(
            off.abs() <= Z99,
            "bursts of {length} instead of {burst}: {off:.2} σ off"
        );
        let expected_clumping = burst > 1.0 / (1.0 - mean);
        assert_eq!(runs_z(&lost) < -Z99, expected_clumping);
    }
}

#[test]
fn a_gilbert_elliott_chain_loses_its_stationary_share() {
    const PACKETS: usize = 1_000_000;
    let loss = Loss::GilbertElliott {
        good_to_bad: 0.05,
        bad_to_good: 0.45,
        loss_in_good: 0.01,
        loss_in_bad: 0.3,
    };
    let lost = count(&lost(loss, 9, PACKETS)) / PACKETS as f64;
    // One packet in ten in the bad state: 0.9 × 0.01 + 0.1 × 0.3. The draws are nearly
    // independent (ρ = 0.5, and a loss says little about the state): twice their deviation.
    let expected: f64 = 0.039;
    let sigma = (expected * (1.0 - expected) / PACKETS as f64).sqrt();
    assert!(
        (lost - expected).abs() <= 2.0 * Z99 * sigma,
        "{lost} instead of {expected}"
    );
}

#[test]
fn times_between_poisson_losses_are_exponential() {
    const LAMBDA: f64 = 5.0;
    let lost = lost(Loss::poisson(LAMBDA), 11, 10_000_000);
    let times: Vec<f64> = lost
        .iter()
        .enumerate()
        .filter(|(_, lost)| **lost)
        .map(|(i, _)| i as f64 * 120e-6)
        .collect();
    let mut gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_by(f64::total_cmp);
    let n = gaps.len() as f64;
    assert!(n > 5_000.0, "{n} gaps");
    let distance = gaps
        .iter()
        .enumerate()
        .fold(0.0_f64, |worst, (index, gap)| {
            let exact = 1.0 - (-LAMBDA * gap).exp();
            worst
                .max((exact - index as f64 / n).abs())
                .max((exact - (index + 1) as f64 / n).abs())
        });
    assert!(
        distance * n.sqrt() <= KS99,
        "Kolmogorov–Smirnov: D√n = {}",
        distance * n.sqrt()
    );
}

#[test]
fn the_two_directions_of_a_link_lose_independently() {
    const PACKETS: usize = 100_000;
    let [there, back] = Seed(1).split();
    let p = 0.1;
    let (there, back) = (
        lost(Loss::independent(p), there.0, PACKETS),
        lost(Loss::independent(p), back.0, PACKETS),
    );
    let both: Vec<bool> = there
        .iter()
        .zip(&back)
        .map(|(there, back)| *there && *back)
        .collect();
    let (n, q) = (PACKETS as f64, p * p);
    let off = (count(&both) - n * q) / (n * q * (1.0 - q)).sqrt();
    assert!(
        off.abs() <= Z99,
        "{} lost in both, {off:.2} σ off",
        count(&both)
    );
}
