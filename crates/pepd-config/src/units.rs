//! How an operator writes a size, a rate and a mark.

use bytesize::ByteSize;
use pepd_packet::{Mark, MarkMask, MarkValue, PerMyriad, Rate, Size};

/// Reads a size: `"8MiB"` or `"64KiB"` (powers of two), `"8MB"` (powers of ten) or `"1500"`.
pub fn size(text: &str) -> Option<Size> {
    let size: ByteSize = text.parse().ok()?;
    Some(Size(size.as_u64()))
}

/// The units of a rate, each with its power of ten.
const RATE_UNITS: [(u32, &str); 5] = [
    (12, "Tbit"),
    (9, "Gbit"),
    (6, "Mbit"),
    (3, "kbit"),
    (0, "bit"),
];

/// Reads a rate: `"50Mbit"`, `"50Mbit/s"`, `"1.5Gbit"` or `"800kbit"` (powers of ten).
///
/// Exact: decimal digits are shifted, not multiplied as floating point. Upper and lower case are
/// the same, as for tc(8). A rate that is not a whole number of bits is refused.
pub fn rate(text: &str) -> Option<Rate> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(unit_at);
    let unit = unit.trim();
    let unit = unit.strip_suffix("/s").unwrap_or(unit);
    let (power, _) = RATE_UNITS
        .into_iter()
        .find(|(_, name)| name.eq_ignore_ascii_case(unit))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let fraction_digits = u32::try_from(fraction.len()).ok()?;
    // `parse` refuses an empty half, a second point and more digits than fit.
    let whole: u64 = whole.parse().ok()?;
    let fraction: u64 = fraction.parse().ok()?;
    let scale = 10_u128.pow(power);
    let divisor = 10_u128.checked_pow(fraction_digits)?;
    let fraction = u128::from(fraction) * scale;
    if fraction % divisor != 0 {
        return None;
    }
    let bits = u128::from(whole) * scale + fraction / divisor;
    u64::try_from(bits).ok().map(Rate)
}

/// Reads a part of a whole: `"1%"`, `"0.25%"`, to a hundredth of a percent.
pub(crate) fn percent(text: &str) -> Option<PerMyriad> {
    let number = text.strip_suffix('%')?.trim_end();
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || !(1..=2).contains(&part.len()) {
        return None;
    }
    let whole: u16 = whole.parse().ok()?;
    let hundredths: u16 = format!("{part:0<2}").parse().ok()?;
    let parts = whole.checked_mul(100)?.checked_add(hundredths)?;
    (parts <= PerMyriad::WHOLE.0).then_some(PerMyriad(parts))
}

/// Gives the spelling of a rate that is written as `50Mbps`: bits for most people, and bytes for
/// tc(8), so that it is not guessed.
pub(crate) fn rate_respelled(text: &str) -> Option<String> {
    let letters = text.len().checked_sub(3)?;
    let (rest, unit) = text.split_at_checked(letters)?;
    let respelled = format!("{rest}bit");
    (unit.eq_ignore_ascii_case("bps") && rate(&respelled).is_some()).then_some(respelled)
}

/// Reads a mark: `"VALUE/MASK"`, either in hexadecimal or decimal. Whether the mark makes sense
/// is another question.
pub(crate) fn mark(text: &str) -> Option<Mark> {
    let (value, mask) = text.split_once('/')?;
    Some(Mark {
        value: MarkValue(word(value)?),
        mask: MarkMask(word(mask)?),
    })
}

/// Shows a mark with all its digits, as the file's comments do.
pub(crate) fn show_mark(mark: Mark) -> String {
    format!("{:#010x}/{:#010x}", mark.value, mark.mask)
}

/// Reads a 32-bit number in decimal or, after `0x`, hexadecimal.
fn word(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // `from_str_radix` would take a sign.
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("8MiB", 8 << 20)]
    #[case("64 KiB", 64 << 10)]
    #[case("1.5MiB", 3 << 19)]
    #[case("8MB", 8_000_000)]
    #[case("1500", 1500)]
    #[case("1500B", 1500)]
    fn sizes(#[case] text: &str, #[case] bytes: u64) {
        assert_eq!(size(text), Some(Size(bytes)));
    }

    #[rstest]
    fn not_sizes(#[values("", "MiB", "-8MiB", "8 bananas", "8Mbit", "NaN", "inf")] text: &str) {
        assert_eq!(size(text), None);
    }

    #[rstest]
    #[case("1%", 100)]
    #[case("0.25%", 25)]
    #[case("0.5 %", 50)]
    #[case("12.34%", 1_234)]
    #[case("100%", 10_000)]
    fn shares(#[case] text: &str, #[case] parts: u16) {
        assert_eq!(percent(text), Some(PerMyriad(parts)));
    }

    #[rstest]
    fn not_shares(
        #[values(
            "",
            "%",
            "1",
            ".5%",
            "1.%",
            "-1%",
            "+1%",
            "1.234%",
            "100.01%",
            "1 percent",
            "655.36%",
            "99999%"
        )]
        text: &str,
    ) {
        assert_eq!(percent(text), None);
    }

    #[rstest]
    #[case("50Mbit", 50_000_000)]
    #[case("50 mbit", 50_000_000)]
    #[case("50Mbit/s", 50_000_000)]
    #[case("1.5Gbit", 1_500_000_000)]
    #[case("800kbit", 800_000)]
    #[case("0.001kbit", 1)]
    #[case("64bit", 64)]
    #[case("1Tbit", 1_000_000_000_000)]
    fn rates(#[case] text: &str, #[case] bits: u64) {
        assert_eq!(rate(text), Some(Rate(bits)));
    }

    #[rstest]
    fn not_rates(
        #[values(
            "",
            "50",
            "bit",
            "Mbit",
            ".5Mbit",
            "5.Mbit",
            "1.2.3Mbit",
            "-5Mbit",
            "50Mbps",
            "50MB",
            "0.0001kbit",
            "99999999999999999999bit",
            "18446744073709551615Gbit",
            "1e3Mbit"
        )]
        text: &str,
    ) {
        assert_eq!(rate(text), None);
    }

    #[rstest]
    #[case("50Mbps", Some("50Mbit"))]
    #[case("1.5 gbps", Some("1.5 gbit"))]
    #[case("50MB/s", None)]
    #[case("fast bps", None)]
    #[case("€ps", None)]
    fn rates_with_another_unit(#[case] text: &str, #[case] respelled: Option<&str>) {
        assert_eq!(rate_respelled(text).as_deref(), respelled);
    }

    #[rstest]
    #[case("0x70000000/0x70000000", 0x7000_0000, 0x7000_0000)]
    #[case("1/255", 1, 255)]
    #[case("0xFF/0xffffffff", 255, u32::MAX)]
    fn marks(#[case] text: &str, #[case] value: u32, #[case] bits: u32) {
        let (value, mask) = (MarkValue(value), MarkMask(bits));
        assert_eq!(mark(text), Some(Mark { value, mask }));
    }

    #[rstest]
    fn not_marks(
        #[values(
            "",
            "/",
            "0x7",
            "0x7/",
            "/0x7",
            "0x/0x7",
            "+1/1",
            "0x+1/1",
            "0x100000000/1",
            "a/b"
        )]
        text: &str,
    ) {
        assert_eq!(mark(text), None);
    }

    #[test]
    fn what_is_printed_can_be_written() {
        for bytes in [
            0,
            1,
            1500,
            1 << 10,
            3 << 19,
            16 << 20,
            1 << 30,
            u64::from(u32::MAX),
        ] {
            let shown = Size(bytes).to_string();
            assert_eq!(size(&shown), Some(Size(bytes)), "{shown}");
        }
        for bits in [
            0,
            1,
            999,
            1_500_000_000,
            50_000_000,
            1_000_000_000_000,
            u64::MAX,
        ] {
            let shown = Rate(bits).to_string();
            assert_eq!(rate(&shown), Some(Rate(bits)), "{shown}");
        }
        let small = Mark {
            value: MarkValue(0x10),
            mask: MarkMask(0xff),
        };
        assert_eq!(show_mark(small), "0x00000010/0x000000ff");
        assert_eq!(mark(&show_mark(small)), Some(small));
    }
}
