//! How many round trips were how long.

/// The bins in which a time doubles: each is 2.2 per cent wide, so that what is told is off by half of that.
const BINS_PER_OCTAVE: f64 = 32.0;

/// The shortest time that is told from nothing, in seconds.
const SHORTEST: f64 = 1e-5;

/// So many bins reach from there to 83 seconds.
const BINS: usize = 23 * 32;

/// Counts of times, in bins that are all the same part of their time wide: exact enough for people, whatever
/// is counted, and of a bounded size. Nothing is held before the first.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundTrips {
    counts: Vec<u32>,
    all: u64,
}

impl RoundTrips {
    pub(super) fn add(&mut self, seconds: f64) {
        if self.counts.is_empty() {
            self.counts = vec![0; BINS];
        }
        if let Some(count) = self.counts.get_mut(bin(seconds)) {
            *count = count.saturating_add(1);
            self.all += 1;
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        if self.counts.is_empty() {
            self.counts = vec![0; BINS];
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        self.all += other.all;
    }

    pub(super) fn len(&self) -> u64 {
        self.all
    }

    /// Returns the time that a `share` of them, from 0 to 1, does not exceed, in seconds; 0 of none.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "exact up to 2^53 samples")]
        let wanted = share * self.all as f64;
        let mut seen = 0.0;
        for (bin, count) in self.counts.iter().enumerate() {
            seen += f64::from(*count);
            if *count > 0 && seen >= wanted {
                return middle(bin);
            }
        }
        0.0
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and what is negative or no number is in the first bin"
)]
fn bin(seconds: f64) -> usize {
    let octaves = (seconds.max(SHORTEST) / SHORTEST).log2();
    ((octaves * BINS_PER_OCTAVE).round() as usize).min(BINS - 1)
}

fn middle(bin: usize) -> f64 {
    if bin == 0 {
        return 0.0;
    }
    #[allow(clippy::cast_precision_loss, reason = "a few hundred bins")]
    let octaves = bin as f64 / BINS_PER_OCTAVE;
    SHORTEST * octaves.exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_off_by_a_hundredth_at_most() {
        let mut times = RoundTrips::default();
        assert_eq!((times.len(), times.quantile(0.5)), (0, 0.0));
        for millisecond in 1..=1000 {
            times.add(f64::from(millisecond) / 1e3);
        }
        for (share, exact) in [(0.5, 0.5), (0.95, 0.95), (1.0, 1.0)] {
            let off = times.quantile(share) / exact - 1.0;
            assert!(off.abs() < 0.012, "{share}: {off}");
        }
        let mut both = RoundTrips::default();
        both.merge(&times);
        both.merge(&times);
        assert_eq!(both.len(), 2000);
        assert!((both.quantile(0.5) - times.quantile(0.5)).abs() < 1e-9);
    }

    #[test]
    fn what_is_odd_is_counted_all_the_same() {
        let mut times = RoundTrips::default();
        for odd in [-1.0, 0.0, f64::NAN] {
            times.add(odd);
        }
        assert_eq!((times.len(), times.quantile(1.0)), (3, 0.0));
        times.add(f64::INFINITY);
        assert!(times.quantile(1.0) > 80.0);
    }
}
