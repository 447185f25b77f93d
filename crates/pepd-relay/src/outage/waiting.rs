//! Legs that have received nothing since their link went: their peers' timers have been doubled.
//!
//! Two things make a peer go on, and are nothing to one that had sent all that it had:
//!
//! - an acknowledgement of what has come, since the last ones may have been lost;
//! - the message that there was no route, with the number of what it sends next, which undoes a
//!   doubling if its kernel knows RFC 6069 (Linux does); as often as there may be doublings.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use pepd_packet::{FourTuple, SequenceNumber, icmp};
use pepd_sys::repair::{self, RepairError};
use pepd_sys::tcp_info::TcpInfo;
use pepd_telemetry::LiveLeg;

use super::segment::segment;
use super::{Ends, Injector, info};
use crate::shared::Shared;

/// The least timeout of a usual peer (TCP_RTO_MIN of Linux; RFC 6298 asks for a second).
const LEAST_TIMEOUT: Duration = Duration::from_millis(200);

/// The most doublings that are undone: up to two minutes.
const MOST_DOUBLINGS: u32 = 10;

/// The time for which what was under way when the link went may have gone on coming, besides a round
/// trip.
const MARGIN: Duration = Duration::from_secs(1);

/// The time before an outage within which a peer has sent something that has perhaps more to send: to
/// wake all that are idle would cost more than it brings.
const RECENTLY: Duration = Duration::from_secs(30);

/// The bytes of an ICMP message and of an acknowledgement, with their headers.
const BYTES: u32 = 80;

/// Since when nothing may have come over a link: it may have been taken for up too early, and be gone again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// When it began.
    pub(super) since: Instant,
    /// For how long the link has seemed to be up since then.
    up: Duration,
}

impl Silence {
    /// Begins when the link went.
    pub(super) fn new(gone: Instant) -> Self {
        Self {
            since: gone,
            up: Duration::ZERO,
        }
    }

    /// Returns that of a link that is `gone` again and has been `up` since then: the same one, unless it has seemed to be up for
    /// as long as an idle peer is woken.
    pub(super) fn again(self, up: Instant, gone: Instant) -> Self {
        let up = self.up + gone.saturating_duration_since(up);
        if up < RECENTLY {
            Self { up, ..self }
        } else {
            Self::new(gone)
        }
    }
}

/// A leg that has received nothing since its link went, and something shortly before that.
pub(super) struct Waiting<'l> {
    live: &'l LiveLeg,
    /// How it was when the link came back.
    pub(super) info: TcpInfo,
    /// The doublings that its peer's timer may have had.
    doublings: u32,
}

impl<'l> Waiting<'l> {
    /// Returns it if it is one, after an outage that took so long, and a `silence` that may have begun with an earlier one.
    pub(super) fn of(live: &'l LiveLeg, outage: Duration, silence: Duration) -> Option<Self> {
        let info = info(live)?;
        let earliest = outage.saturating_sub(info.rtt + MARGIN);
        let latest = silence + RECENTLY;
        let doublings = doublings(silence.min(info.since_data).max(outage));
        let is_one = doublings > 0 && (earliest..latest).contains(&info.since_data);
        is_one.then_some(Self {
            live,
            info,
            doublings,
        })
    }

    /// Returns whether nothing has come since the link is back, for so long.
    pub(super) fn is_waiting(&self, up: Duration) -> bool {
        info(self.live).is_some_and(|now| now.since_data >= up)
    }

    /// Returns the bytes that it takes to wake its peer.
    pub(super) fn bytes(&self) -> u32 {
        (1 + self.doublings) * BYTES
    }

    /// Has its peer go on.
    pub(super) fn wake(&self, shared: &Shared) {
        let (Some(socket), Some(injector)) = (self.live.socket.upgrade(), &shared.injector) else {
            return;
        };
        if let Err(error) = wake(socket.as_fd(), injector, &self.info, self.doublings) {
            tracing::debug!(flow = self.live.flow, %error, "wake a leg's peer");
        }
    }
}

/// Returns how often a timer may have been doubled in an outage.
fn doublings(outage: Duration) -> u32 {
    let times = outage.as_millis() / LEAST_TIMEOUT.as_millis();
    times
        .checked_ilog2()
        .map_or(0, |log| log + 1)
        .min(MOST_DOUBLINGS)
}

fn wake(
    fd: BorrowedFd<'_>,
    injector: &Injector,
    info: &TcpInfo,
    doublings: u32,
) -> Result<(), RepairError> {
    let ends = Ends::of(fd)?;
    let header = repair::acknowledgement(fd)?;
    let peers = FourTuple {
        client: ends.theirs,
        server: ends.ours,
    };
    let acknowledgement = segment(header, Vec::new(), info, ends).packet();
    let message = icmp::no_route(peers, SequenceNumber(header.acknowledgement));
    let (Some(acknowledgement), Some(message)) = (acknowledgement, message) else {
        return Ok(());
    };
    injector.send(&acknowledgement, ends.mark)?;
    for _ in 0..doublings {
        injector.send(&message, ends.mark)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_seems_to_be_up_for_moments_is_silent_all_the_time() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let silence = Silence::new(begun).again(at(600), at(610));
        assert_eq!(silence.since, begun);
        let silence = silence.again(at(620), at(639));
        assert_eq!(silence.since, begun);
        // Half a minute in all.
        assert_eq!(silence.again(at(640), at(641)).since, at(641));
    }

    #[test]
    fn a_timer_is_doubled_as_often_as_there_is_time() {
        let of = |millis| doublings(Duration::from_millis(millis));
        assert_eq!(of(0), 0);
        assert_eq!(of(199), 0, "it has not run out once");
        assert_eq!(of(200), 1);
        // After 0.2, 0.6, 1.4, 3.0 and 6.2 seconds.
        assert_eq!(of(5000), 5);
        assert_eq!(of(10_000), 6);
        assert_eq!(of(86_400_000), MOST_DOUBLINGS);
    }
}
