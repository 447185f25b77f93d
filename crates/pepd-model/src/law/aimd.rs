//! A window that grows by so much each round trip and falls to a share of itself with each loss.
//!
//! The rate X (window over round trip) grows by α a second, and becomes β X with a loss. Losses come
//! λ a second (rate independent) and p for each packet (rate dependent). Stationarity of X gives
//! α = (1 − β)(λ E\[X\] + p E\[X²\]).

use super::Loss;

/// How a window grows and falls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aimd {
    /// What the rate grows by: packets a second, each second.
    pub alpha: f64,
    /// What a loss leaves of it, 0 to 1.
    pub beta: f64,
}

impl Aimd {
    /// The mean rate, packets a second; infinite without losses.
    ///
    /// Exact where there are losses of one kind: α/((1 − β)λ), which is 2α/λ for Reno (Baccelli et
    /// al., 19.4.2), and Φ √(α/p) (eq. 19.3). Of both kinds together, E\[X²\] is taken to be as large beside
    /// the square of the mean as where p is alone.
    #[must_use]
    pub fn mean(self, loss: Loss) -> f64 {
        let Loss {
            per_second: lambda,
            per_packet: p,
        } = loss;
        let growth = self.alpha / (1.0 - self.beta);
        if p <= 0.0 {
            return if lambda > 0.0 {
                growth / lambda
            } else {
                f64::INFINITY
            };
        }
        let phi = phi(self.beta);
        let spread = p / ((1.0 - self.beta) * phi * phi);
        // The positive root of spread m² + λ m = growth, without the difference of two like numbers.
        2.0 * growth / (lambda + (lambda * lambda + 4.0 * spread * growth).sqrt())
    }

    /// The α with which the mean is so many packets a second.
    #[must_use]
    pub fn with_mean(beta: f64, loss: Loss, mean: f64) -> Self {
        let phi = phi(beta);
        let spread = loss.per_packet * mean * mean / (phi * phi);
        Self {
            alpha: (1.0 - beta) * loss.per_second * mean + spread,
            beta,
        }
    }
}

/// Gives Φ, by which E\[X\] = Φ √(α/p), for a window that a loss leaves the share β of: 1.3098 for ½.
///
/// The density of X is Σ aᵢ β⁻²ⁱ exp(−p β⁻²ⁱ x² / 2α) with aᵢ = Πⱼ₌₁ⁱ (1 − β⁻²ʲ)⁻¹, hence Φ = √(2/π) Σ aᵢ / Σ aᵢ β⁻ⁱ.
/// As printed in Baccelli et al., 19.4.2, the sums are in each other's place, and give 1.022.
#[must_use]
pub fn phi(beta: f64) -> f64 {
    let (mut term, mut above, mut below) = (1.0, 1.0, 1.0);
    let (mut square, mut single) = (1.0, 1.0);
    // The terms fall faster than any power: 64 are enough up to β = 0.9.
    for _ in 0..64 {
        square /= beta * beta;
        single /= beta;
        term /= 1.0 - square;
        above += term;
        below += term * single;
    }
    (2.0 / std::f64::consts::PI).sqrt() * above / below
}

/// Gives E\[Xⁿ\] of Reno with λ losses a second: n! (α/λ)ⁿ / Πₖ₌₁ⁿ (1 − 2⁻ᵏ) (Altman et al., 2005).
#[must_use]
pub fn moment(alpha: f64, lambda: f64, n: u32) -> f64 {
    let factor = |k: u32| f64::from(k) / (1.0 - 0.5_f64.powf(f64::from(k)));
    (1..=n).map(|k| factor(k) * alpha / lambda).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RENO: Aimd = Aimd {
        alpha: 625.0,
        beta: 0.5,
    };

    #[test]
    fn the_closed_forms() {
        assert!((phi(0.5) - 1.3098).abs() < 5e-5, "{}", phi(0.5));
        assert_eq!(RENO.mean(Loss::per_second(0.4)), 3125.0);
        let variance = moment(625.0, 0.4, 2) - moment(625.0, 0.4, 1).powi(2);
        let wanted = 4.0 / 3.0 * (625.0_f64 / 0.4).powi(2);
        assert!((variance / wanted - 1.0).abs() < 1e-12);
        let per_packet = RENO.mean(Loss::per_packet(0.01));
        assert!((per_packet - phi(0.5) * 250.0).abs() < 1e-9);
    }

    #[test]
    fn a_wanted_mean_is_had() {
        for loss in [
            Loss::per_second(0.4),
            Loss::per_packet(0.02),
            Loss {
                per_second: 1.0,
                per_packet: 0.001,
            },
        ] {
            for beta in [0.5, 0.7] {
                let mean = Aimd::with_mean(beta, loss, 321.0).mean(loss);
                assert!((mean - 321.0).abs() < 1e-6, "{mean}");
            }
        }
    }
}
