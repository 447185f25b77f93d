//! Reno, and what timeouts cost it.

use super::Loss;
use super::aimd::Aimd;

/// What a loss leaves of Reno's window.
pub const BETA: f64 = 0.5;

/// The share of losses up to which timeouts do not count.
pub const RARE: f64 = 0.01;

/// The share of losses from which PFTK holds alone. Between the two what the laws say is mixed, so that
/// no curve has a step: half and half at 2 %.
pub const FREQUENT: f64 = 0.04;

/// The least that a Linux sender adds to the round trip before it times out, seconds
/// (`tcp_rto_min`, net/ipv4/tcp_input.c).
const RTO_MIN: f64 = 0.2;

/// Gives how Reno's rate grows: one segment each round trip, or one each `per_ack` of them.
#[must_use]
pub fn aimd(rtt: f64, per_ack: f64) -> Aimd {
    Aimd {
        alpha: 1.0 / (per_ack * rtt * rtt),
        beta: BETA,
    }
}

/// Gives the throughput of Padhye, Firoiu, Towsley & Kurose (1998), eq. 31, without the window's cap:
/// packets a second at a share of losses above 0, with the timeout of a Linux sender.
#[must_use]
pub fn pftk(rtt: f64, share: f64, per_ack: f64) -> f64 {
    let recovery = rtt * (2.0 * per_ack * share / 3.0).sqrt();
    let chance = (3.0 * (3.0 * per_ack * share / 8.0).sqrt()).min(1.0);
    let timeouts = (rtt + RTO_MIN) * chance * share * (1.0 + 32.0 * share * share);
    1.0 / (recovery + timeouts)
}

/// Gives the mean rate, with timeouts, of a sender that without them would have `without`.
#[must_use]
pub fn with_timeouts(without: f64, rtt: f64, loss: Loss, per_ack: f64) -> f64 {
    if !without.is_finite() {
        return without;
    }
    let share = loss.share(without);
    let weight = (share / RARE).ln() / (FREQUENT / RARE).ln();
    if weight <= 0.0 {
        return without;
    }
    // PFTK knows a share of losses only; of losses a second that share is what is sent at in the end.
    let timed = settle(without, |rate| pftk(rtt, loss.share(rate), per_ack));
    let weight = weight.min(1.0);
    without.powf(1.0 - weight) * timed.min(without).powf(weight)
}

/// Finds the rate that a law gives for itself, starting at one that is too high.
fn settle(start: f64, law: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0, start);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if law(middle) > middle {
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
    fn pftk_is_what_jain_and_otts_fig_3_measures_with_pepd() {
        // docs/lab.md: 0.23 ± 0.04 Mbit/s without a proxy, 0.44 ± 0.08 with one.
        let mbit = |rate: f64| rate * super::super::PAYLOAD * 8.0 / 1e6;
        let whole = mbit(pftk(0.11, 0.0975, 1.0));
        let split = mbit(pftk(0.1, 0.05, 1.0));
        assert!((whole - 0.23).abs() < 0.04, "{whole}");
        assert!((split - 0.44).abs() < 0.08, "{split}");
    }

    #[test]
    fn no_step_where_one_law_hands_over() {
        let at = |p: f64| {
            let loss = Loss::per_packet(p);
            with_timeouts(aimd(0.02, 1.0).mean(loss), 0.02, loss, 1.0)
        };
        for p in [RARE, 0.02, FREQUENT] {
            assert!((at(p * 1.0001) / at(p * 0.9999) - 1.0).abs() < 1e-3);
        }
        assert!(at(0.001) > at(0.01) && at(0.01) > at(0.02) && at(0.02) > at(0.1));
    }
}
