//! How heavy the tail of a queue is, by the two statistics of Baccelli et al., 19.3.2.

/// Gives Hill's estimate of γ from the `most` largest of the samples: a Pareto tail's index is 1/γ, and its second
/// moment is infinite where γ is above ½. None where there are too few above 0.
#[must_use]
pub fn hill(samples: &[f64], most: usize) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(|left, right| right.total_cmp(left));
    let threshold = *sorted.get(most)?;
    if threshold <= 0.0 || most == 0 {
        return None;
    }
    let logs = sorted[..most]
        .iter()
        .map(|sample| (sample / threshold).ln());
    let count = u32::try_from(most).ok()?;
    Some(logs.sum::<f64>() / f64::from(count))
}

/// Gives the R statistic of a moment: the largest sample's share in the sum of all to that power. It tends to 0 with
/// more samples if, and only if, the moment is finite (Embrechts, Klüppelberg & Mikosch, 6.2.6).
#[must_use]
pub fn largest_share(samples: &[f64], power: f64) -> f64 {
    let powers = samples.iter().map(|sample| sample.max(0.0).powf(power));
    let (sum, largest) = powers.fold((0.0, 0.0_f64), |(sum, largest), it| {
        (sum + it, largest.max(it))
    });
    if sum > 0.0 { largest / sum } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    fn uniform(seed: u64) -> Vec<f64> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        (0..100_000).map(|_| 1.0 - random.random::<f64>()).collect()
    }

    #[test]
    fn a_pareto_tail_and_a_light_one() {
        let pareto: Vec<_> = uniform(1).iter().map(|u| u.powf(-0.8)).collect();
        let light: Vec<_> = uniform(2).iter().map(|u| -u.ln()).collect();
        let heavy = hill(&pareto, 2000).unwrap();
        assert!((heavy - 0.8).abs() < 0.06, "{heavy}");
        assert!(hill(&light, 2000).unwrap() < 0.35);
        assert!(largest_share(&pareto, 2.0) > 0.05);
        assert!(largest_share(&light, 2.0) < 0.005);
        assert_eq!(hill(&[0.0; 10], 3), None);
    }
}
