//! What was measured where no law is known.

/// BBR's share of what the link can carry, over the loss: the fourth figure of Jain & Ott in docs/lab.md
/// (`jain-ott-fig4`, Linux 6.1, 100 Mbit/s, 10 ms, one flow).
pub const BBR: [(f64, f64); 4] = [(0.05, 0.971), (0.10, 0.898), (0.15, 0.554), (0.20, 0.052)];

/// The highest loss that it was measured at.
pub const BBR_MOST: f64 = 0.20;

/// Gives BBR's share of what the link can carry at a loss, between what was measured; below the lowest loss
/// what it has there, and beyond the highest nothing, since it is next to nothing there.
#[must_use]
pub fn bbr_share(loss: f64) -> f64 {
    if loss <= BBR[0].0 {
        return BBR[0].1;
    }
    let between = BBR.windows(2).find(|pair| loss <= pair[1].0);
    between.map_or(0.0, |pair| {
        let ((left, from), (right, to)) = (pair[0], pair[1]);
        from + (to - from) * (loss - left) / (right - left)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_and_what_lies_between() {
        assert_eq!(bbr_share(0.0), 0.971);
        assert_eq!(bbr_share(0.10), 0.898);
        assert!((bbr_share(0.125) - 0.726).abs() < 1e-9);
        assert_eq!(bbr_share(0.3), 0.0);
    }
}
