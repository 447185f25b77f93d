//! Rates that change with time.

use std::time::Duration;

use pepd_testbed::link::{Rate, Trace};
use serde::Deserialize;

use crate::stats::real64;

/// How a leg's rate changes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Varying {
    /// As it is written down.
    Steps(Trace),
    /// As that of a phone in LTE that moves about: each tenth of a second another one, near the last.
    Lte,
    /// As that of a satellite in a low orbit: each fifteen seconds another one, after a gap, and in
    /// between it wavers a little.
    Leo,
}

/// The length of a step of what is generated.
const STEP: Duration = Duration::from_millis(100);
/// The steps after which it repeats: a minute.
const STEPS: u32 = 600;
/// What the numbers come from: always the same.
const SEED: u64 = 0x5eed;

impl Varying {
    /// Returns the rate over time.
    #[must_use]
    pub fn trace(&self) -> Trace {
        let mut numbers = Numbers(SEED);
        match self {
            Self::Steps(trace) => trace.clone(),
            Self::Lte => generated(lte(&mut numbers)),
            Self::Leo => generated(leo(&mut numbers)),
        }
    }
}

/// Mbit/s: the exponential of a first-order autoregressive process around ln 16, with a standard
/// deviation of 0.5, of which half is left after seven steps; between 2 and 60.
fn lte(numbers: &mut Numbers) -> Vec<f64> {
    let (keep, deviation) = (0.9_f64, 0.5);
    let mut state = 0.0;
    (0..STEPS)
        .map(|_| {
            state = keep * state + (1.0 - keep * keep).sqrt() * deviation * numbers.normal();
            (16.0 * state.exp()).clamp(2.0, 60.0)
        })
        .collect()
}

/// Mbit/s: for each fifteen seconds between 10 and 40, each rate as likely; nothing in the first of its
/// steps, and 8 % more or less in the others.
fn leo(numbers: &mut Numbers) -> Vec<f64> {
    let mut level = 0.0;
    (0..STEPS)
        .map(|step| {
            let is_first = step % 150 == 0;
            if is_first {
                level = 10.0 + 30.0 * numbers.uniform();
            }
            let wavers = (1.0 + 0.08 * numbers.normal()).max(0.5);
            if is_first && step > 0 {
                0.0
            } else {
                level * wavers
            }
        })
        .collect()
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates here are positive and far below 2^53"
)]
fn generated(mbit: Vec<f64>) -> Trace {
    let steps = (0_u32..).zip(mbit).map(|(step, mbit)| {
        let rate = Rate::bits_per_second((mbit * 1e6).round() as u64);
        (STEP * step, rate)
    });
    #[allow(
        clippy::expect_used,
        reason = "its times rise, and it carries something"
    )]
    Trace::new(steps.collect(), Some(STEP * STEPS)).expect("a trace in order")
}

/// Returns the mean of a trace over the time from its start on, in bit/s.
pub(super) fn mean_rate(trace: &Trace, window: Duration) -> f64 {
    let period = trace.period().unwrap_or(Duration::MAX);
    let mut bits = 0.0;
    let mut from = Duration::ZERO;
    while from < window {
        let steps = trace.steps();
        for (index, (at, rate)) in steps.iter().enumerate() {
            let end = steps.get(index + 1).map_or(period, |next| next.0);
            let until = |time: Duration| from.saturating_add(time).min(window);
            let length = until(end) - until(*at);
            bits += real64(rate.as_bits_per_second()) * length.as_secs_f64();
        }
        from = from.saturating_add(period);
    }
    bits / window.as_secs_f64()
}

/// Numbers by chance, always the same ones (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        real64((word ^ (word >> 31)) >> 11) / real64(1 << 53)
    }

    /// Of a normal distribution (Box and Muller, 1958).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What docs/lab.md says of them.
    #[test]
    fn what_is_generated_is_as_it_is_said_to_be() {
        let minute = Duration::from_secs(60);
        let said = [
            "Lte: mean 20.9, deviation 10.4, 4.8 to 60.0, change p50 15 %, p95 45 %",
            "Leo: mean 19.7, deviation 11.5, 0.0 to 46.1, change p50 8 %, p95 24 %",
        ];
        for (varying, expected) in [Varying::Lte, Varying::Leo].into_iter().zip(said) {
            let trace = varying.trace();
            let rates: Vec<f64> = trace
                .steps()
                .iter()
                .map(|step| real64(step.1.as_bits_per_second()) / 1e6)
                .collect();
            let mean = rates.iter().sum::<f64>() / 600.0;
            let square = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / 600.0;
            assert!((mean_rate(&trace, minute) / 1e6 - mean).abs() < 1e-6);
            assert!((mean_rate(&trace, 2 * minute) / 1e6 - mean).abs() < 1e-6);
            let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
            let most = rates.iter().copied().fold(0.0, f64::max);
            let mut changes: Vec<f64> = rates
                .windows(2)
                .map(|pair| (pair[1] / pair[0] - 1.0).abs())
                .filter(|change| change.is_finite())
                .collect();
            changes.sort_by(f64::total_cmp);
            let said = format!(
                "{varying:?}: mean {mean:.1}, deviation {:.1}, {least:.1} to {most:.1}, change p50 {:.0} %, p95 {:.0} %",
                square.sqrt(),
                100.0 * changes[changes.len() / 2],
                100.0 * changes[changes.len() * 95 / 100],
            );
            assert_eq!(said, expected);
        }
    }

    #[test]
    fn the_mean_of_steps_is_that_of_the_time() {
        let steps: Trace = "0 100Mbit\n10 20Mbit\n20 60Mbit".parse().unwrap();
        let mean = |seconds| mean_rate(&steps, Duration::from_secs(seconds)) / 1e6;
        assert!((mean(10) - 100.0).abs() < 1e-9);
        assert!((mean(30) - 60.0).abs() < 1e-9);
    }
}
