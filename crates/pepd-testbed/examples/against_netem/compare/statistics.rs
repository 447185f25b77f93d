//! Whether a sequence of losses is what it should be, at 99 %.

/// The two-sided 99 % point of the normal distribution.
const Z99: f64 = 2.576;
/// The 99 % point of Kolmogorov's distribution, for D√n of a large sample.
const KS99: f64 = 1.628;

/// A statistic, and how far from zero chance may take it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Test {
    /// Its value.
    pub value: f64,
    /// What 99 in 100 samples stay below, in absolute terms.
    pub limit: f64,
}

impl Test {
    /// Returns whether chance explains it.
    pub fn passes(self) -> bool {
        self.value.abs() <= self.limit
    }
}

/// Returns how many standard deviations the number of losses is off `probability`'s mean
/// (binomial).
pub fn frequency(lost: &[bool], probability: f64) -> Test {
    let n = lost.len() as f64;
    let deviation = (n * probability * (1.0 - probability)).sqrt();
    Test {
        value: (count(lost) - n * probability) / deviation,
        limit: Z99,
    }
}

/// Returns how many standard deviations the number of runs is off what independent losses have
/// (Wald and Wolfowitz 1940): below zero they come in bursts, above they avoid each other.
pub fn runs(lost: &[bool]) -> Test {
    let (n, k) = (lost.len() as f64, count(lost));
    let changes = lost.windows(2).filter(|pair| pair[0] != pair[1]).count();
    let mean = 1.0 + 2.0 * k * (n - k) / n;
    let variance = (mean - 1.0) * (mean - 2.0) / (n - 1.0);
    Test {
        value: (changes as f64 + 1.0 - mean) / variance.sqrt(),
        limit: Z99,
    }
}

/// Returns Kolmogorov–Smirnov's D√n of the gaps (seconds) against an exponential distribution with
/// `per_second` events.
pub fn exponential(gaps: &[f64], per_second: f64) -> Test {
    let mut sorted = gaps.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let distance = sorted
        .iter()
        .enumerate()
        .fold(0.0_f64, |worst, (index, gap)| {
            let exact = 1.0 - (-per_second * gap).exp();
            let (below, above) = (index as f64 / n, (index + 1) as f64 / n);
            worst.max((exact - below).abs()).max((exact - above).abs())
        });
    Test {
        value: distance * n.sqrt(),
        limit: KS99,
    }
}

fn count(lost: &[bool]) -> f64 {
    lost.iter().filter(|lost| **lost).count() as f64
}
