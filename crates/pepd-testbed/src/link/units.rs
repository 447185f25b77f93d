//! The quantities that a link is described in.

use std::{
    fmt,
    ops::{Add, Sub},
    str::FromStr,
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use serde::{Deserialize, Serialize};

/// A point on a link's own clock, in nanoseconds since the link was connected.
///
/// The model never reads a clock: whoever drives it passes the time in, so a test can let a
/// year pass in a second. 64 bits of nanoseconds last for 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    /// The moment at which the link was connected.
    pub const ZERO: Self = Self(0);
    /// A moment that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the point `nanos` nanoseconds after [`Time::ZERO`].
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since [`Time::ZERO`].
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time that has passed since `earlier`; zero if `earlier` is in fact later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Saturates at [`Time::NEVER`].
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(whole_nanos(span)))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    /// Saturates at [`Time::ZERO`].
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(whole_nanos(span)))
    }
}

/// Returns the span in nanoseconds, saturating after 584 years.
pub(super) fn whole_nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// A transmission rate in bits per second of IP packets (headers included, no layer-2 framing).
///
/// Written as in the configuration of pepd: `"50Mbit"`, `"512kbit"`, `"1.5Gbit"`, `"9600bit"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate(u64);

impl Rate {
    /// Returns a rate of `bits` bits per second.
    #[must_use]
    pub const fn bits_per_second(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns a rate of `megabits` × 10⁶ bits per second.
    #[must_use]
    pub const fn mbit(megabits: u64) -> Self {
        Self(megabits.saturating_mul(1_000_000))
    }

    /// Returns a rate of `kilobits` × 10³ bits per second.
    #[must_use]
    pub const fn kbit(kilobits: u64) -> Self {
        Self(kilobits.saturating_mul(1_000))
    }

    /// Returns the rate in bits per second.
    #[must_use]
    pub const fn as_bits_per_second(self) -> u64 {
        self.0
    }
}

/// The units a rate is written in, largest first, in bits per second.
const UNITS: [(&str, u64); 4] = [
    ("Gbit", 1_000_000_000),
    ("Mbit", 1_000_000),
    ("kbit", 1_000),
    ("bit", 1),
];

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = UNITS
            .into_iter()
            .find(|(_, unit)| self.0 != 0 && self.0.is_multiple_of(*unit));
        let (name, unit) = exact.unwrap_or(("bit", 1));
        write!(f, "{}{name}", self.0 / unit)
    }
}

/// A rate that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a rate: write a number and bit, kbit, Mbit or Gbit, such as `50Mbit`")]
pub struct RateError(String);

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let error = || RateError(text.to_owned());
        let trimmed = text.trim();
        let (number, unit) = UNITS
            .into_iter()
            .find_map(|(name, unit)| Some((trimmed.strip_suffix(name)?.trim_end(), unit)))
            .ok_or_else(error)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if !all_digits(whole) || !all_digits(fraction) || fraction.len() > 9 {
            return Err(error());
        }
        let whole: u64 = whole.parse().map_err(|_| error())?;
        let scale = 10_u64.pow(u32::try_from(fraction.len()).map_err(|_| error())?);
        let fraction: u64 = fraction.parse().map_err(|_| error())?;
        let bits = whole.checked_mul(unit).ok_or_else(error)?;
        bits.checked_add(fraction * unit / scale)
            .map(Self)
            .ok_or_else(error)
    }
}

fn all_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

impl TryFrom<String> for Rate {
    type Error = RateError;

    fn try_from(text: String) -> Result<Self, RateError> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

/// The seed of a link's losses: the same seed gives the same losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seed(pub u64);

impl Seed {
    /// Returns a seed for each direction: their losses must not be the same.
    ///
    /// A link's first direction loses as a [`super::Direction`] with `split()[0]` does.
    #[must_use]
    pub fn split(self) -> [Self; 2] {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(self.0);
        [Self(random.random()), Self(random.random())]
    }
}

/// The largest IP packet that a link takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Mtu(u16);

impl Mtu {
    /// The MTU of Ethernet, 1500 bytes.
    pub const ETHERNET: Self = Self(1500);

    /// Returns an MTU of `bytes`.
    ///
    /// # Errors
    /// [`MtuError`] below 68 bytes, the least that IPv4 allows (RFC 791 section 3.2). IPv6 stays
    /// off a link of less than 1280 (RFC 8200 section 5).
    pub const fn new(bytes: u16) -> Result<Self, MtuError> {
        if bytes < 68 {
            Err(MtuError(bytes))
        } else {
            Ok(Self(bytes))
        }
    }

    /// Returns the MTU in bytes.
    #[must_use]
    pub const fn bytes(self) -> u16 {
        self.0
    }
}

impl Default for Mtu {
    fn default() -> Self {
        Self::ETHERNET
    }
}

/// An MTU that no IP link may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an MTU of {0} bytes is too small: IPv4 needs at least 68, IPv6 at least 1280")]
pub struct MtuError(u16);

impl TryFrom<u16> for Mtu {
    type Error = MtuError;

    fn try_from(bytes: u16) -> Result<Self, MtuError> {
        Self::new(bytes)
    }
}

impl From<Mtu> for u16 {
    fn from(mtu: Mtu) -> Self {
        mtu.0
    }
}

/// Durations as people write them (`"200ms"`), for `#[serde(with = "span")]`.
pub(super) mod span {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(in crate::link) fn serialize<S: Serializer>(
        span: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(*span))
    }

    pub(in crate::link) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text).map_err(|error| {
            D::Error::custom(format!(
                "`{text}` is not a time ({error}): write it as `200ms`"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_reads_back_as_written() {
        for (text, bits) in [
            ("50Mbit", 50_000_000),
            ("1.5Gbit", 1_500_000_000),
            ("512 kbit", 512_000),
            ("9601bit", 9_601),
            ("0bit", 0),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate, Rate::bits_per_second(bits), "{text}");
            assert_eq!(rate.to_string().parse(), Ok(rate), "{text}");
        }
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for text in [
            "", "Mbit", "50", "50MB", "-1Mbit", "1..5Mbit", "1e3Mbit", "+5kbit",
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text:?}");
        }
        assert!("99999999999999999999Gbit".parse::<Rate>().is_err());
        assert!("99999999999Gbit".parse::<Rate>().is_err());
    }

    #[test]
    fn time_saturates_at_both_ends() {
        assert_eq!(Time::NEVER + Duration::from_secs(1), Time::NEVER);
        assert_eq!(Time::ZERO - Duration::from_secs(1), Time::ZERO);
        assert_eq!(Time::ZERO.since(Time::NEVER), Duration::ZERO);
    }
}
