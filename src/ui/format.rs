//! Figures for people: three digits and a unit.

use std::time::Duration;

/// Writes `12.3 Mbit/s`: bits per second in powers of 1,000.
pub fn rate(bits_per_second: f64) -> String {
    scaled(
        bits_per_second,
        1000.0,
        &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"],
    )
}

/// Writes `12.3 MiB`: bytes in powers of 1,024.
pub fn bytes(bytes: u64) -> String {
    scaled(
        number(bytes),
        1024.0,
        &["B", "KiB", "MiB", "GiB", "TiB", "PiB"],
    )
}

/// Writes `12.3 ms`, for round trips: from microseconds to seconds.
pub fn seconds(seconds: f64) -> String {
    scaled(seconds * 1e6, 1000.0, &["µs", "ms", "s"])
}

/// Writes `2h 3m`, for ages: the two largest units.
pub fn age(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.max(0.0))
        .unwrap_or(Duration::MAX)
        .as_secs();
    let (days, hours) = (whole / 86_400, whole / 3600 % 24);
    let (minutes, rest) = (whole / 60 % 60, whole % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => format!("{minutes}m {rest}s"),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// Writes `12 %` of a share from 0 to 1.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Writes `1.2 %`: where a tenth of a percent matters.
pub fn permille(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Writes `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Gives a count as a number to divide by.
#[allow(
    clippy::cast_precision_loss,
    reason = "nothing hangs on the last of 2^53"
)]
pub fn number(count: u64) -> f64 {
    count as f64
}

/// Writes three digits, in the largest unit of which there is at least one.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    // What would round to a whole step is one.
    while value >= step - 0.5 {
        let Some(next) = units.next() else { break };
        value /= step;
        unit = next;
    }
    let digits = if value == 0.0 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    // Bytes, and bits, come whole.
    let whole = matches!(unit, "B" | "bit/s" | "µs");
    format!("{value:.*} {unit}", if whole { 0 } else { digits })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0.0, "0 bit/s")]
    #[case(999.4, "999 bit/s")]
    #[case(999.6, "1.00 kbit/s")]
    #[case(12_345.0, "12.3 kbit/s")]
    #[case(48e6, "48.0 Mbit/s")]
    #[case(999_999_999.0, "1.00 Gbit/s")]
    #[case(123e9, "123 Gbit/s")]
    #[case(5e15, "5000 Tbit/s")]
    fn rates(#[case] value: f64, #[case] text: &str) {
        assert_eq!(rate(value), text);
    }

    #[rstest]
    #[case(0, "0 B")]
    #[case(1023, "1023 B")]
    #[case(1024, "1.00 KiB")]
    #[case(16 << 20, "16.0 MiB")]
    #[case(u64::MAX, "16384 PiB")]
    fn sizes(#[case] value: u64, #[case] text: &str) {
        assert_eq!(bytes(value), text);
    }

    #[rstest]
    #[case(0.0, "0 µs")]
    #[case(0.000_043, "43 µs")]
    #[case(0.000_4, "400 µs")]
    #[case(0.0123, "12.3 ms")]
    #[case(0.6, "600 ms")]
    #[case(1.25, "1.25 s")]
    fn round_trips(#[case] value: f64, #[case] text: &str) {
        assert_eq!(seconds(value), text);
    }

    #[rstest]
    #[case(0.4, "0s")]
    #[case(59.9, "59s")]
    #[case(61.0, "1m 1s")]
    #[case(7380.0, "2h 3m")]
    #[case(93_784.0, "1d 2h")]
    #[case(-1.0, "0s")]
    #[case(f64::NAN, "0s")]
    fn ages(#[case] value: f64, #[case] text: &str) {
        assert_eq!(age(value), text);
    }

    #[test]
    fn counts_have_commas() {
        assert_eq!(count(7), "7");
        assert_eq!(count(123), "123");
        assert_eq!(count(1_234_567), "1,234,567");
    }
}
