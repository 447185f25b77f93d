//! The parts that legs have of a link that is back. No I/O and no clock.

use super::Claimed;

/// How fast legs may begin together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// What they claim, each what it delivered by its last sample at most.
    pub(super) claimed: Claimed,
    /// What the link carries, in bytes a second; none where nobody knows.
    pub(super) carried: Option<u64>,
    /// Whether there are several.
    pub(super) is_shared: bool,
}

impl Share {
    /// Returns how fast those may begin together that claim so much of all: by their part of what the link carries, if that is
    /// known.
    pub(super) fn of_all(self, claimed: Claimed) -> u64 {
        self.carried
            .and_then(|carried| self.part(claimed, carried))
            .unwrap_or(u64::MAX)
    }

    /// Returns how fast one may begin that delivered so much, and claims so much. Where windows are not `opened` it is no more
    /// than its part of the link, and no less.
    pub(super) fn of(self, delivered: u64, claim: Claimed, opened: bool) -> u64 {
        let Some(carried) = self.carried else {
            return delivered;
        };
        let part = if carried < self.claimed.rate || !opened {
            self.part(claim, carried)
        } else {
            None
        };
        // One that has little to send claims less than it delivered.
        part.unwrap_or(delivered).min(carried)
    }

    /// Returns the part of what the link carries of who claims so much; none where nobody claims anything.
    fn part(self, claim: Claimed, carried: u64) -> Option<u64> {
        let part = u128::from(claim.weight) * u128::from(carried);
        let part = part.checked_div(self.claimed.weight.into())?;
        Some(u64::try_from(part).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(rate: u64) -> Claimed {
        Claimed { rate, weight: rate }
    }

    #[test]
    fn all_together_begin_no_faster_than_the_link_carried() {
        let share = |claimed, carried| Share {
            claimed: by(claimed),
            carried,
            is_shared: false,
        };
        assert_eq!(share(1000, None).of(400, by(400), true), 400);
        assert_eq!(share(1000, Some(2000)).of(400, by(400), true), 400);
        assert_eq!(share(1000, Some(500)).of(400, by(400), true), 200);
        assert_eq!(share(0, Some(0)).of(0, by(0), true), 0);
        assert_eq!(share(1000, Some(2000)).of(400, by(400), false), 800);
        assert_eq!(share(1000, Some(500)).of(400, by(400), false), 200);
        // Its claim is a hundredth of that.
        assert_eq!(share(1000, Some(500)).of(1000, by(10), true), 5);
        assert_eq!(share(10, Some(500)).of(1000, by(10), true), 500);
        assert_eq!(share(10, Some(500)).of(1000, by(10), false), 500);
        assert_eq!(share(1000, Some(500)).of_all(by(400)), 200);
        assert_eq!(share(1000, None).of_all(by(400)), u64::MAX);
        assert_eq!(share(0, Some(500)).of_all(by(0)), u64::MAX);
        let most = share(u64::MAX, Some(u64::MAX / 2));
        assert_eq!(most.of(u64::MAX, by(u64::MAX), true), u64::MAX / 2);
        // What is claimed is more than it carries; the parts are by what waits for longer.
        let (rate, weight) = (1000, 100);
        let claimed = Claimed { rate, weight };
        let few = Claimed {
            rate: 10,
            weight: 20,
        };
        let mixed = Share {
            claimed,
            ..share(0, Some(500))
        };
        assert_eq!(mixed.of(1000, few, true), 100);
    }
}
