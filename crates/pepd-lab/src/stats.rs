//! Statistics over the repeats of a measurement.

use serde::{Deserialize, Serialize};

/// A mean and its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The number of values.
    pub count: usize,
    /// Their mean, in their own unit.
    pub mean: f64,
    /// Half the width of the 95 % confidence interval of the mean (Student's t), in the values'
    /// unit; `None` for a single value, which says nothing about it.
    pub half_width: Option<f64>,
}

impl Summary {
    /// Returns the summary of `values`; `None` if there are none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let count = values.len();
        let mean = mean(values);
        let half_width = (count > 1).then(|| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            let variance = squares / real(count - 1);
            student_t(count - 1) * (variance / real(count)).sqrt()
        });
        Some(Self {
            count,
            mean,
            half_width,
        })
    }
}

/// Returns the arithmetic mean; not a number if there are no values.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / real(values.len())
}

/// Returns the value that a share `q` of the sorted `values` does not exceed (nearest rank).
#[must_use]
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (0..sorted.len()).find(|&index| real(index + 1) >= q * real(sorted.len()));
    rank.map(|index| sorted[index])
}

/// Jain's fairness index, (Σx)² / (n·Σx²): 1 if all have the same, 1/n if one has everything
/// (Jain, Chiu, Hawe, DEC-TR-301, 1984). `None` where nobody has anything.
#[must_use]
pub fn fairness(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (squares > 0.0).then(|| sum * sum / (real(shares.len()) * squares))
}

/// Quantiles 0.975 of Student's t distribution for 1 to 30 degrees of freedom.
const STUDENT_T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];
/// The same for a normal distribution, to which the others tend.
const NORMAL: f64 = 1.960;

fn student_t(degrees: usize) -> f64 {
    let index = degrees.checked_sub(1);
    index
        .and_then(|index| STUDENT_T.get(index).copied())
        .unwrap_or(NORMAL)
}

/// Returns a count as a number to calculate with; exact up to 2⁵³.
#[allow(clippy::cast_precision_loss, reason = "counts here are far below 2^53")]
#[must_use]
pub fn real(count: usize) -> f64 {
    count as f64
}

/// A number of bytes or bits to calculate with; exact up to 2⁵³.
#[allow(
    clippy::cast_precision_loss,
    reason = "amounts here are far below 2^53"
)]
#[must_use]
pub fn real64(amount: u64) -> f64 {
    amount as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() < 5e-4
    }

    #[test]
    fn the_interval_is_that_of_the_textbooks() {
        // 2, 4, 4, 6 has the standard deviation √(8/3); t(3) = 3.182.
        let summary = Summary::of(&[2.0, 4.0, 4.0, 6.0]).unwrap();
        assert!(close(summary.mean, 4.0), "{summary:?}");
        let expected = 3.182 * (8.0_f64 / 3.0).sqrt() / 2.0;
        assert!(close(summary.half_width.unwrap(), expected), "{summary:?}");
    }

    #[test]
    fn one_value_has_no_interval_and_none_no_summary() {
        assert_eq!(Summary::of(&[7.0]).unwrap().half_width, None);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn many_values_use_the_normal_distribution() {
        let values: Vec<f64> = (0..100)
            .map(|n| if n % 2 == 0 { 1.0 } else { 3.0 })
            .collect();
        let deviation = (100.0_f64 / 99.0).sqrt();
        let expected = 1.96 * deviation / 10.0;
        assert!(close(
            Summary::of(&values).unwrap().half_width.unwrap(),
            expected
        ));
    }

    #[test]
    fn fairness_runs_from_one_to_one_in_n() {
        assert!(close(fairness(&[5.0, 5.0, 5.0]).unwrap(), 1.0));
        assert!(close(fairness(&[9.0, 0.0, 0.0]).unwrap(), 1.0 / 3.0));
        // (1 + 2 + 3)² / (3 · 14)
        assert!(close(fairness(&[1.0, 2.0, 3.0]).unwrap(), 36.0 / 42.0));
        assert_eq!(fairness(&[0.0, 0.0]), None);
        assert_eq!(fairness(&[]), None);
    }

    #[test]
    fn quantiles_are_values_that_were_there() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&values, 0.5), Some(2.0));
        assert_eq!(quantile(&values, 0.99), Some(4.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
