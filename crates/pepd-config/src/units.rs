//! Quantities with a unit of their own, and how an operator writes them.

use std::fmt;
use std::str::FromStr;

use bytesize::ByteSize;
use thiserror::Error;

/// A size in bytes, written `"8MiB"` or `"64KiB"` (powers of two), `"8MB"` (powers of ten) or
/// `"1500"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl Bytes {
    /// A size in binary kilobytes.
    pub(crate) const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// A size in binary gigabytes.
    pub(crate) const fn gib(count: u64) -> Self {
        Self(count << 30)
    }
}

/// The text is not a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not a size: write a number and a unit, such as 8MiB or 64KiB")]
pub struct NotASize;

impl FromStr for Bytes {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        text.parse::<ByteSize>()
            .map(|size| Self(size.as_u64()))
            .map_err(|_| NotASize)
    }
}

impl fmt::Display for Bytes {
    /// Exact, in the largest binary unit that divides the size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let fits = |&&(shift, _): &&(u32, _)| self.0 != 0 && self.0.trailing_zeros() >= shift;
        match UNITS.iter().find(fits) {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// A rate in bits per second, written `"50Mbit"`, `"1.5Gbit"` or `"800kbit"` (powers of ten).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BitRate(pub u64);

/// The text is not a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not a rate: write a number and bit, kbit, Mbit or Gbit, such as 50Mbit")]
pub struct NotARate;

/// Largest first, for printing; the number is the power of ten.
const RATE_UNITS: [(u32, &str); 5] = [
    (12, "Tbit"),
    (9, "Gbit"),
    (6, "Mbit"),
    (3, "kbit"),
    (0, "bit"),
];

impl FromStr for BitRate {
    type Err = NotARate;

    /// Exact: decimal digits are shifted, not multiplied as floating point. Upper and lower case
    /// are the same, as for tc(8). A rate that is not a whole number of bits is none.
    fn from_str(text: &str) -> Result<Self, NotARate> {
        let unit_at = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or(NotARate)?;
        let (number, unit) = text.split_at(unit_at);
        let (power, _) = RATE_UNITS
            .into_iter()
            .find(|(_, name)| name.eq_ignore_ascii_case(unit.trim()))
            .ok_or(NotARate)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let fraction_digits = u32::try_from(fraction.len()).map_err(|_| NotARate)?;
        // `parse` refuses an empty half, a second point and more digits than fit.
        let whole: u64 = whole.parse().map_err(|_| NotARate)?;
        let fraction: u64 = fraction.parse().map_err(|_| NotARate)?;
        let scale = 10_u128.pow(power);
        let divisor = 10_u128.checked_pow(fraction_digits).ok_or(NotARate)?;
        let fraction = u128::from(fraction) * scale;
        if fraction % divisor != 0 {
            return Err(NotARate);
        }
        let bits = u128::from(whole) * scale + fraction / divisor;
        u64::try_from(bits).map(Self).map_err(|_| NotARate)
    }
}

impl fmt::Display for BitRate {
    /// Exact, in the largest decimal unit that divides the rate.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits =
            |&&(power, _): &&(u32, _)| self.0 != 0 && self.0.is_multiple_of(10_u64.pow(power));
        let (power, unit) = RATE_UNITS.iter().find(fits).copied().unwrap_or((0, "bit"));
        write!(f, "{}{unit}", self.0 / 10_u64.pow(power))
    }
}

/// A firewall mark, written `"VALUE/MASK"` in hexadecimal or decimal. The mask says which bits
/// are pepd's, so that the operator's own marks survive in the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The bits that pepd sets; never 0, and none of them outside the mask.
    pub value: u32,
    /// The bits that pepd looks at.
    pub mask: u32,
}

impl fmt::Display for Mark {
    /// As nft(8) and ip-rule(8) take it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}/{:#010x}", self.value, self.mask)
    }
}

/// The text is not a mark. Whether the mark makes sense is another question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not a mark: write VALUE/MASK, such as 0x70000000/0x70000000")]
pub struct NotAMark;

impl FromStr for Mark {
    type Err = NotAMark;

    fn from_str(text: &str) -> Result<Self, NotAMark> {
        let (value, mask) = text.split_once('/').ok_or(NotAMark)?;
        Ok(Self {
            value: word(value)?,
            mask: word(mask)?,
        })
    }
}

/// A 32-bit number in decimal or, after `0x`, hexadecimal.
fn word(text: &str) -> Result<u32, NotAMark> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // `from_str_radix` would take a sign.
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return Err(NotAMark);
    }
    u32::from_str_radix(digits, radix).map_err(|_| NotAMark)
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
        assert_eq!(text.parse(), Ok(Bytes(bytes)));
    }

    #[rstest]
    fn not_sizes(#[values("", "MiB", "-8MiB", "8 bananas", "8Mbit", "NaN", "inf")] text: &str) {
        assert_eq!(text.parse::<Bytes>(), Err(NotASize));
    }

    #[rstest]
    #[case("50Mbit", 50_000_000)]
    #[case("50 mbit", 50_000_000)]
    #[case("1.5Gbit", 1_500_000_000)]
    #[case("800kbit", 800_000)]
    #[case("0.001kbit", 1)]
    #[case("64bit", 64)]
    #[case("1Tbit", 1_000_000_000_000)]
    fn rates(#[case] text: &str, #[case] bits: u64) {
        assert_eq!(text.parse(), Ok(BitRate(bits)));
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
        assert_eq!(text.parse::<BitRate>(), Err(NotARate));
    }

    #[rstest]
    #[case("0x70000000/0x70000000", 0x7000_0000, 0x7000_0000)]
    #[case("1/255", 1, 255)]
    #[case("0xFF/0xffffffff", 255, u32::MAX)]
    fn marks(#[case] text: &str, #[case] value: u32, #[case] mask: u32) {
        assert_eq!(text.parse(), Ok(Mark { value, mask }));
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
        assert_eq!(text.parse::<Mark>(), Err(NotAMark));
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
            let shown = Bytes(bytes).to_string();
            assert_eq!(shown.parse(), Ok(Bytes(bytes)), "{shown}");
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
            let shown = BitRate(bits).to_string();
            assert_eq!(shown.parse(), Ok(BitRate(bits)), "{shown}");
        }
        let mark = Mark {
            value: 0x10,
            mask: 0xff,
        };
        assert_eq!(mark.to_string(), "0x00000010/0x000000ff");
        assert_eq!(mark.to_string().parse(), Ok(mark));
    }
}
