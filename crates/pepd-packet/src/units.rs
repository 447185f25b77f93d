//! Quantities with a unit of their own.

use std::fmt;

/// A rate in bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rate(pub u64);

impl Rate {
    /// Returns the whole bytes per second, as SO_MAX_PACING_RATE takes them (socket(7)).
    pub const fn bytes_per_second(self) -> u64 {
        self.0 / 8
    }
}

impl fmt::Display for Rate {
    /// Writes the exact value, in the largest decimal unit that divides the rate: `50Mbit`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] = [
            (1_000_000_000_000, "Tbit"),
            (1_000_000_000, "Gbit"),
            (1_000_000, "Mbit"),
            (1_000, "kbit"),
        ];
        let fits = |&&(bits, _): &&(u64, _)| self.0 != 0 && self.0.is_multiple_of(bits);
        match UNITS.iter().find(fits) {
            Some((bits, unit)) => write!(f, "{}{unit}", self.0 / bits),
            None => write!(f, "{}bit", self.0),
        }
    }
}

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    /// Writes the exact value, in the largest binary unit that divides the size: `8MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let fits = |&&(shift, _): &&(u32, _)| self.0 != 0 && self.0.trailing_zeros() >= shift;
        match UNITS.iter().find(fits) {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// A part of a whole, in ten-thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PerMyriad(pub u16);

impl PerMyriad {
    /// The whole.
    pub const WHOLE: Self = Self(10_000);
}

impl fmt::Display for PerMyriad {
    /// Writes the exact value in percent: `1%`, `0.25%`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 100, self.0 % 100);
        match (part, part % 10) {
            (0, _) => write!(f, "{whole}%"),
            (_, 0) => write!(f, "{whole}.{}%", part / 10),
            _ => write!(f, "{whole}.{part:02}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_written_in_percent() {
        let written = [1, 10, 25, 100, 150, 10_000].map(|part| PerMyriad(part).to_string());
        assert_eq!(written, ["0.01%", "0.1%", "0.25%", "1%", "1.5%", "100%"]);
    }
}
