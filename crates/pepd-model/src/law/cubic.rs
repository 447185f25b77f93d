//! CUBIC (RFC 9438).

use super::Loss;
use super::aimd::Aimd;

/// What a loss leaves of CUBIC's window (RFC 9438, section 4.6).
pub const BETA: f64 = 0.7;

/// How fast its window grows, segments/s³ (RFC 9438, section 5.1).
pub const GROWTH: f64 = 0.4;

/// Gives how the rate grows where CUBIC is as Reno would be (RFC 9438, section 4.3).
#[must_use]
pub fn friendly(rtt: f64, per_ack: f64) -> Aimd {
    Aimd {
        alpha: 3.0 * (1.0 - BETA) / (1.0 + BETA) / (per_ack * rtt * rtt),
        beta: BETA,
    }
}

/// Gives the mean rate by the cubic curve alone, packets a second (RFC 9438, section 5, figure 5): the
/// window is (C (3 + β) / 4 (1 − β))^¼ (RTT / p)^¾, for losses at equal distances. Infinite without losses.
#[must_use]
pub fn curve(rtt: f64, loss: Loss) -> f64 {
    if loss.is_none() {
        return f64::INFINITY;
    }
    let window = (GROWTH * (3.0 + BETA) / (4.0 * (1.0 - BETA))).powf(0.25);
    let by_share = |share: f64| window * rtt.powf(-0.25) * share.powf(-0.75);
    // With losses a second the share is λ/X: p X^(4/3) + λ X^(1/3) is then constant.
    let excess = |rate: f64| by_share(loss.share(rate)) - rate;
    let (mut low, mut high) = (0.0, 1.0);
    while excess(high) > 0.0 && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if excess(middle) > 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9438, section 5.1: the average windows for losses of 10⁻² to 10⁻⁸ with C = 0.4, by the text of its
    /// last draft, draft-ietf-tcpm-rfc8312bis.
    const WINDOWS: [(f64, [f64; 7]); 2] = [
        (
            0.1,
            [12.0, 38.0, 187.0, 1054.0, 5926.0, 33_325.0, 187_400.0],
        ),
        (0.01, [12.0, 38.0, 120.0, 379.0, 1200.0, 5926.0, 33_325.0]),
    ];

    #[test]
    fn the_rfcs_tables() {
        for (rtt, windows) in WINDOWS {
            let mut share = 1e-2;
            for window in windows {
                // There Reno's is 1.2 / √p (RFC 3649), for losses at equal distances.
                let reno = 1.2 / f64::sqrt(share);
                let found = (curve(rtt, Loss::per_packet(share)) * rtt).max(reno);
                assert!(
                    (found - window).abs() < 0.6 + window * 2e-4,
                    "{rtt} {share}: {found}, the RFC has {window}"
                );
                share /= 10.0;
            }
        }
    }

    #[test]
    fn losses_a_second_give_the_share_that_they_are() {
        let rate = curve(0.1, Loss::per_second(0.2));
        let same = curve(0.1, Loss::per_packet(0.2 / rate));
        assert!((rate / same - 1.0).abs() < 1e-6, "{rate} {same}");
    }
}
