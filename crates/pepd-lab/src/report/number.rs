//! Numbers as reports show them.

/// Shows a number with three significant digits or more.
pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 100.0 {
        format!("{value:.0}")
    } else if magnitude >= 10.0 {
        format!("{value:.1}")
    } else if magnitude >= 0.1 || magnitude == 0.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let shown = [0.0, 0.0123, 0.1234, 1.234, 12.34, 1234.5].map(number);
        assert_eq!(shown, ["0.00", "0.0123", "0.12", "1.23", "12.3", "1234"]);
    }
}
