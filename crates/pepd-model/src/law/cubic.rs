//! CUBIC (RFC 9438).

use super::Loss;
use super::aimd::Aimd;

/// What a loss leaves of CUBIC's window (RFC 9438, section 4.6).
pub const BETA: f64 = 0.7;

/// How fast its window grows, segments/s³ (RFC 9438, section 5.1).
const GROWTH: f64 = 0.4;

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

    #[test]
    fn the_rfcs_table() {
        // RFC 9438, table 2 (section 5.1): the average window at RTT 0.1 s with C = 0.4.
        for (share, window) in [(1e-3, 33.3), (1e-5, 1054.0), (1e-7, 33_325.0)] {
            let rate = curve(0.1, Loss::per_packet(share));
            let found = rate * 0.1;
            assert!(
                (found / window - 1.0).abs() < 0.01,
                "{share}: {found}, the RFC has {window}"
            );
        }
    }

    #[test]
    fn losses_a_second_give_the_share_that_they_are() {
        let rate = curve(0.1, Loss::per_second(0.2));
        let same = curve(0.1, Loss::per_packet(0.2 / rate));
        assert!((rate / same - 1.0).abs() < 1e-6, "{rate} {same}");
    }
}
