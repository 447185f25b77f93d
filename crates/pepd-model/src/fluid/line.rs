//! A rate that is a line in time, and when lines and parabolas get somewhere.

/// A rate, and what it grows by: from now on, until the next event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    /// Packets a second, now.
    pub(super) value: f64,
    /// Packets a second, each second.
    pub(super) slope: f64,
}

impl Line {
    /// The rate after a while, packets a second.
    pub(super) fn at(self, time: f64) -> f64 {
        self.value + self.slope * time
    }

    /// What has been sent after a while, packets.
    pub(super) fn sent(self, time: f64) -> f64 {
        (self.value + self.slope * time / 2.0) * time
    }

    /// Whether this one is the lower from now on.
    pub(super) fn is_below(self, other: Self) -> bool {
        self.value < other.value || (self.value == other.value && self.slope < other.slope)
    }

    /// The time until which so much has been sent, seconds.
    pub(super) fn until_sent(self, amount: f64) -> f64 {
        let root = (self.value * self.value + 2.0 * self.slope * amount).sqrt();
        2.0 * amount / (self.value + root)
    }
}

/// Gives the first time above 0 at which `level` + `speed` t + `growth` t²/2 is 0, for a level that is not below 0;
/// infinite if there is none.
pub(super) fn first_zero(level: f64, speed: f64, growth: f64) -> f64 {
    if level <= 0.0 {
        // It leaves 0 now, and may come back.
        return if speed > 0.0 && growth < 0.0 {
            -2.0 * speed / growth
        } else {
            f64::INFINITY
        };
    }
    let discriminant = speed * speed - 2.0 * growth * level;
    if discriminant < 0.0 {
        return f64::INFINITY;
    }
    let below = discriminant.sqrt() - speed;
    if below > 0.0 {
        2.0 * level / below
    } else {
        f64::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots() {
        assert_eq!(first_zero(6.0, -2.0, 0.0), 3.0);
        assert_eq!(first_zero(6.0, 2.0, 0.0), f64::INFINITY);
        // 6 - 5 t + t²: at 2, not at 3.
        assert_eq!(first_zero(6.0, -5.0, 2.0), 2.0);
        // 6 + t - t²: at 3.
        assert_eq!(first_zero(6.0, 1.0, -2.0), 3.0);
        assert_eq!(first_zero(1.0, -1.0, 2.0), f64::INFINITY);
        assert_eq!(first_zero(0.0, 4.0, -2.0), 4.0);
        assert_eq!(first_zero(0.0, 4.0, 2.0), f64::INFINITY);
    }

    #[test]
    fn what_is_sent_and_when() {
        let line = Line {
            value: 2.0,
            slope: 3.0,
        };
        let sent = line.sent(1.5);
        assert!((line.until_sent(sent) - 1.5).abs() < 1e-12);
        let flat = Line { slope: 0.0, ..line };
        assert_eq!(flat.until_sent(8.0), 4.0);
    }
}
