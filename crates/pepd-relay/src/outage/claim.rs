//! What a leg that goes on claims of its link.

use std::iter::Sum;
use std::os::fd::AsFd as _;
use std::sync::Weak;
use std::time::Duration;

use pepd_sys::stream;
use pepd_sys::tcp_info::TcpInfo;
use pepd_telemetry::{LiveLeg, Socket};

use super::window::LEAST;

/// The time in which everything that waits would be sent by what a leg's part is reckoned from. By a round trip, as what is claimed
/// is, sixty with a few segments each leave nothing for four that have much to send.
const FAIR: Duration = Duration::from_secs(1);

/// What a leg claims of its link, by what it delivered.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) socket: Weak<Socket>,
    /// What it delivered, in bytes a second.
    pub(super) delivered: u64,
    /// Its least round trip.
    trip: Duration,
}

/// What legs claim of a link at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claimed {
    /// The bytes a second by which what waits is sent in a round trip, no more than was delivered.
    pub(crate) rate: u64,
    /// By which they have their parts where that is more than the link carries: the same of [`FAIR`].
    pub(crate) weight: u64,
}

impl Claim {
    /// Makes that of a leg of which this is known, and that `delivered` so much, in bytes a second.
    pub(super) fn of(live: &LiveLeg, info: &TcpInfo, delivered: u64) -> Self {
        Self {
            socket: live.socket.clone(),
            delivered,
            trip: info.min_rtt.unwrap_or_default(),
        }
    }

    /// Returns the bytes that wait to be acknowledged, sent or not.
    pub(super) fn waits(&self) -> u64 {
        let socket = self.socket.upgrade();
        let bytes = socket.and_then(|socket| stream::unacknowledged(socket.as_fd()).ok());
        bytes.unwrap_or_default() as u64
    }

    /// Returns what it claims with what waits now.
    pub(super) fn now(&self) -> Claimed {
        self.with(self.waits())
    }

    /// Returns what it claims while so many bytes wait: nothing where nothing does.
    pub(super) fn with(&self, waits: u64) -> Claimed {
        let within = |time: Duration| {
            let rate = u128::from(waits) * 1_000_000 / time.as_micros();
            u64::try_from(rate).unwrap_or(u64::MAX).min(self.delivered)
        };
        Claimed {
            rate: within(self.trip.max(LEAST)),
            weight: within(FAIR),
        }
    }

    /// Returns the same of a leg that delivered so much, in bytes a second.
    pub(super) fn at_most(&self, delivered: u64) -> Self {
        Self {
            delivered,
            ..self.clone()
        }
    }
}

impl Sum for Claimed {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            rate: sum.rate.saturating_add(one.rate),
            weight: sum.weight.saturating_add(one.weight),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_little_to_send_claims_no_more() {
        let claim = |trip| Claim {
            socket: Weak::<socket2::Socket>::new(),
            delivered: 500_000,
            trip,
        };
        let usual = claim(Duration::from_millis(100));
        let claimed = |rate, weight| Claimed { rate, weight };
        assert_eq!(usual.with(0), claimed(0, 0));
        assert_eq!(usual.with(100), claimed(1000, 100));
        assert_eq!(usual.with(9_000_000), claimed(500_000, 500_000));
        assert_eq!(usual.at_most(70).with(1_000_000), claimed(70, 70));
        let short = claim(Duration::ZERO);
        assert_eq!(short.with(100), claimed(5000, 100), "20 ms");
        assert_eq!(usual.now(), claimed(0, 0), "it is closed");
        let all = [usual.with(100), short.with(100)];
        assert_eq!(all.into_iter().sum::<Claimed>(), claimed(6000, 200));
    }
}
