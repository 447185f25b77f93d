//! How a leg loses packets.

/// Losses of a leg: of both kinds, if need be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loss {
    /// Losses a second, whatever is sent: fading. Rate independent, RI: λ₀ of Baccelli et al., 19.2.2.
    pub per_second: f64,
    /// The probability with which each packet is lost, 0 to 1. Rate dependent, RD: λ₁ there.
    pub per_packet: f64,
}

impl Loss {
    /// Losses of each packet alone.
    #[must_use]
    pub const fn per_packet(probability: f64) -> Self {
        Self {
            per_second: 0.0,
            per_packet: probability,
        }
    }

    /// Losses over time alone.
    #[must_use]
    pub const fn per_second(rate: f64) -> Self {
        Self {
            per_second: rate,
            per_packet: 0.0,
        }
    }

    /// Whether nothing is lost.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.per_second <= 0.0 && self.per_packet <= 0.0
    }

    /// The losses of this leg and then another (Jain & Ott, eq. 4).
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let (here, there) = (self.per_packet, other.per_packet);
        Self {
            per_second: self.per_second + other.per_second,
            per_packet: here + there - here * there,
        }
    }

    /// The share of packets that is lost at so many packets a second.
    #[must_use]
    pub fn share(self, rate: f64) -> f64 {
        let over_time = if rate > 0.0 && self.per_second > 0.0 {
            self.per_second / rate
        } else {
            0.0
        };
        (self.per_packet + over_time).min(1.0)
    }
}
