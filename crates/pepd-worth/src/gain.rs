//! The comparison of two samples.
//!
//! Times of transfers are skewed and have outliers, so that means say little. What is estimated is the
//! factor between the two by Hodges and Lehmann's estimator on logarithms (Annals of Mathematical
//! Statistics 34, 1963): the median over all pairs of one of each. Its interval is that of the rank test
//! of Mann and Whitney turned around (Lehmann, Nonparametrics, 1975, section 2.6), which supposes no
//! distribution. Both samples should be about as large as each other: then it also holds where one of them
//! scatters more.

/// The fewest of each kind that are compared. The interval supposes that ranks are normally distributed.
pub const FEWEST: usize = 20;

/// How far the ends of the interval are from its middle, in standard deviations of the ranks: 97.5 %, and not
/// the 95 % that are said. Several quantities are looked at, and again and again while they grow.
const DEVIATIONS: f64 = 2.241;

/// How many standard deviations of the ranks are beyond doubt: two samples of the same are that far apart once
/// in 2,000 times.
const BEYOND_DOUBT: f64 = 3.5;

/// By what factor times are longer without splitting: above 1 it pays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// The factor.
    pub factor: f64,
    /// The lower end of the interval in which it lies in 95 of 100 cases.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Gain {
    /// Compares times of connections that were not split with those of connections that were; none where
    /// there are fewer than [`FEWEST`] of either. Times that are not above 0 are left out.
    pub fn of(unsplit: &[f64], split: &[f64]) -> Option<Self> {
        Self::despite(0.0, unsplit, split)
    }

    /// Does the same where that share of all pairs of one of each may be whatever somebody likes: the interval holds
    /// what the others have the median of, wherever he puts his.
    pub(crate) fn despite(doubted: f64, unsplit: &[f64], split: &[f64]) -> Option<Self> {
        let [unsplit, split] = [unsplit, split].map(logarithms);
        let (n, m) = (unsplit.len(), split.len());
        if n.min(m) < FEWEST {
            return None;
        }
        let pairs = unsplit
            .iter()
            .flat_map(|one| split.iter().map(move |other| one - other));
        let mut differences: Vec<f64> = pairs.collect();
        let all = differences.len();
        let outside = outside(n, m, doubted).min((all - 1) / 2);
        Some(Self {
            low: at(&mut differences, outside).exp(),
            high: at(&mut differences, all - 1 - outside).exp(),
            factor: at(&mut differences, all / 2).exp(),
        })
    }

    /// Returns whether it can be said that splitting makes a difference, and which.
    pub fn is_other_than_one(self) -> bool {
        self.low > 1.0 || self.high < 1.0
    }
}

/// Returns whether two samples come from different distributions beyond doubt, by the test of Mann and
/// Whitney, and their medians differ by this factor at least.
pub(crate) fn differ(some: &[f64], others: &[f64], factor: f64) -> bool {
    let pairs = some
        .iter()
        .flat_map(|one| others.iter().map(move |other| one / other));
    let mut ratios: Vec<f64> = pairs.collect();
    let all = ratios.len();
    if all == 0 {
        return false;
    }
    let above = ratios.iter().filter(|ratio| **ratio > 1.0).count();
    let equal = ratios.iter().filter(|ratio| **ratio == 1.0).count();
    #[allow(
        clippy::cast_precision_loss,
        reason = "numbers of pairs are far below 2^53"
    )]
    let (above, all_pairs, n) = (
        above as f64 + equal as f64 / 2.0,
        all as f64,
        (some.len() + others.len()) as f64,
    );
    let deviation = (all_pairs * (n + 1.0) / 12.0).sqrt();
    let median = at(&mut ratios, all / 2);
    (above - all_pairs / 2.0).abs() > BEYOND_DOUBT * deviation
        && (median >= factor || median <= 1.0 / factor)
}

/// Returns how many of all pairs lie below the interval, and above it.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of pairs is far below 2^53, and not below 0"
)]
fn outside(n: usize, m: usize, doubted: f64) -> usize {
    let (n, m) = (n as f64, m as f64);
    let deviation = (n * m * (n + m + 1.0) / 12.0).sqrt();
    (n * m * (1.0 - doubted) / 2.0 - DEVIATIONS * deviation).max(0.0) as usize
}

fn logarithms(times: &[f64]) -> Vec<f64> {
    let positive = times.iter().filter(|time| **time > 0.0 && time.is_finite());
    positive.map(|time| time.ln()).collect()
}

/// Returns the value that would be at this place if they were in order.
fn at(values: &mut [f64], place: usize) -> f64 {
    *values.select_nth_unstable_by(place, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::figures::simulated::Campus;

    #[test]
    fn too_few_are_not_compared() {
        let times = [1.0; FEWEST];
        assert_eq!(Gain::of(&times, &times[1..]), None);
        // Nor is what is no time.
        let mut broken = times;
        broken[3] = 0.0;
        assert_eq!(Gain::of(&times, &broken), None);
        let same = Gain::of(&times, &times).unwrap();
        assert_eq!((same.low, same.factor, same.high), (1.0, 1.0, 1.0));
        assert!(!same.is_other_than_one());
    }

    /// The times of a thousand campuses, of every factor, scatter, and number of connections, where what is not
    /// split scatters up to twice as much or half as much as what is.
    #[test]
    fn the_truth_is_within_the_interval() {
        let campuses: u64 = 1000;
        let within = (0..campuses).filter(|seed| {
            let mut campus = Campus::new(*seed);
            let (unsplit, split) = campus.times();
            let gain = Gain::of(&unsplit, &split).unwrap();
            (gain.low..=gain.high).contains(&campus.gain)
        });
        let within = within.count();
        assert!(within >= 950, "{within} of {campuses}");
        // An interval that holds everything would be no use.
        assert!(within < 998, "{within} of {campuses}");
    }

    /// Where splitting makes no difference it is rarely said to.
    #[test]
    fn no_claim_is_made_of_nothing() {
        let claims = (0..1000).filter(|seed| {
            let mut campus = Campus::new(*seed);
            campus.gain = 1.0;
            let (unsplit, split) = campus.times();
            Gain::of(&unsplit, &split).unwrap().is_other_than_one()
        });
        let claims = claims.count();
        assert!(claims <= 50, "{claims}");
    }

    #[test]
    fn a_large_gain_is_seen_in_few() {
        let mut campus = Campus::new(7);
        campus.gain = 3.0;
        let (unsplit, split) = campus.times();
        let gain = Gain::of(&unsplit, &split).unwrap();
        assert!(gain.low > 1.0, "{gain:?}");
    }

    proptest! {
        #[test]
        fn an_interval_holds_its_factor(
            unsplit in prop::collection::vec(1e-6f64..1e6, 20..80),
            split in prop::collection::vec(1e-6f64..1e6, 20..80),
        ) {
            let gain = Gain::of(&unsplit, &split).unwrap();
            prop_assert!(gain.low <= gain.factor && gain.factor <= gain.high);
            // The other way round it is the other way round.
            let inverse = Gain::of(&split, &unsplit).unwrap();
            prop_assert!((inverse.low * gain.high - 1.0).abs() < 1e-9);
        }
    }
}
