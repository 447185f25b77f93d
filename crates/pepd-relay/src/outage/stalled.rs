//! Legs that have stopped because nothing is acknowledged.
//!
//! Three things make them go on:
//!
//! - Where segments are under way, the message that there was no route to the peer, with the sequence
//!   number of the first of them, undoes a doubling (RFC 6069; `tcp_ld_RTO_revert`,
//!   net/ipv4/tcp_ipv4.c), and has the kernel send it if the time that is left has passed, which is a
//!   round trip and 200 ms at most. The box sends that message to its own socket, as often as there are
//!   doublings.
//! - Where the kernel has not sent it then, the box does: its acknowledgement ends the wait.
//! - Where the peer had no room, the kernel asks it again when the socket leaves repair mode.
//!
//! Only the first segment, since the kernel has sent that one again itself and so takes no round-trip
//! time from it (Karn's algorithm; RFC 6298, section 3). Of one that was sent once it would take the
//! whole outage for such a time (tcp_clean_rtx_queue, net/ipv4/tcp_input.c): so it does where the timer has
//! not expired, which is a time that it was ready to wait for anyway.
//!
//! So it would by the echo of a timestamp. What the peer had received when its acknowledgements were
//! lost is acknowledged by the first one that comes, with an echo from before the outage. A single such
//! sample makes the smoothed round trip an eighth of the outage, and the timeout longer than all of it:
//! what is paced by the one and waits for the other stands still once more. Therefore the clock of the
//! leg's timestamps is put forward first.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use pepd_packet::{FourTuple, SequenceNumber, icmp};
use pepd_sys::repair::{self, RepairError};
use pepd_sys::stream;
use pepd_sys::tcp_info::{TcpInfo, tcp_info};
use pepd_telemetry::LiveLeg;

use super::segment::send_first;
use super::window::{LEAST, Least, Opener, Paced};
use super::{Before, Claim, Claimed, Ends, Injector, info};
use crate::shared::Shared;

/// The time before an outage within which something was acknowledged where old echoes may still come.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// The segments with which a new connection begins (RFC 6928).
const AT_FIRST: Least = Least::of(10);

/// The messages that a socket gets at most: as often as the kernel doubles a timer, up to two minutes
/// from the least that there is (TCP_RTO_MIN, TCP_RTO_MAX), and some to spare.
const MOST_MESSAGES: u32 = 16;

/// A leg that has stopped because nothing is acknowledged.
pub(super) struct Stalled<'l, 's> {
    pub(super) live: &'l LiveLeg,
    /// How it was when the link came back.
    pub(super) info: TcpInfo,
    /// What it claims of the link.
    pub(super) claim: Claim,
    /// The bytes that wait.
    waits: u64,
    /// Those that were acknowledged when it was restarted last.
    pub(super) acknowledged: Acknowledged<'l>,
    /// What holds it to its part of the link until it begins.
    held: Option<Paced<'s>>,
}

/// The bytes of a leg that were acknowledged at a time.
#[derive(Clone, Copy)]
pub(super) struct Acknowledged<'l> {
    live: &'l LiveLeg,
    bytes: u64,
}

impl Acknowledged<'_> {
    /// Returns whether more are acknowledged now, or the leg is closed.
    pub(super) fn has_changed(&self) -> bool {
        info(self.live).is_none_or(|now| now.acknowledged_bytes != self.bytes)
    }
}

impl<'l, 's> Stalled<'l, 's> {
    /// Returns it if it has stopped.
    pub(super) fn of(live: &'l LiveLeg, before: &Before) -> Option<Self> {
        let info = info(live)?;
        let delivered = before.delivered(live).or(info.delivery_rate);
        let delivered = delivered.unwrap_or_default();
        // One that had little to send says little of what it can. Where it is known what all may send it is no slower than a
        // new one.
        let known = before.carried.and(info.min_rtt);
        let least = known.map_or(0, |_| AT_FIRST.rate(&info));
        has_stopped(&info).then(|| {
            let claim = Claim::of(live, &info, delivered.max(least));
            Self {
                live,
                waits: claim.waits(),
                claim,
                acknowledged: Acknowledged {
                    live,
                    bytes: info.acknowledged_bytes,
                },
                held: None,
                info,
            }
        })
    }

    /// Holds it to its part of the link until it begins.
    pub(super) fn hold(&mut self, opener: Opener<'s>) {
        // Only where something waits that was not sent yet can the kernel be had to send; and what takes its
        // timeout for a false alarm would find a smaller window than without this.
        let can_send = self.info.unacked > 0 && self.info.unsent > 0;
        self.held = opener.hold(self.live, &self.info, &self.claim, can_send);
    }

    /// Returns what it claims of the link.
    pub(super) fn claims(&self) -> Claimed {
        self.claim.with(self.waits)
    }

    /// Returns what it claims of the link if it may send no more than that, in bytes a second.
    pub(super) fn claims_at_most(&self, most: Least) -> u64 {
        self.claim
            .at_most(most.rate(&self.info))
            .with(self.waits)
            .rate
    }

    /// Returns the bytes of so many segments, as far as it has so much to send.
    pub(super) fn bytes(&self, segments: u32) -> u32 {
        let most = segments * self.info.mss;
        u32::try_from(self.waits).unwrap_or(u32::MAX).min(most)
    }

    /// Returns whether nothing has been acknowledged since it was restarted last.
    pub(super) fn is_stalled(&self) -> bool {
        info(self.live).is_some_and(|now| {
            now.acknowledged_bytes == self.acknowledged.bytes && (now.unacked > 0 || now.unsent > 0)
        })
    }

    /// Has it go on, and, at the first attempt, at the rate that it had; then it is said how long the outage
    /// was.
    ///
    /// Its peer, woken before it, may have acknowledged meanwhile what had arrived before the outage. By that the kernel takes
    /// nothing for lost any more, and waits for the timer that it has: that is no answer.
    pub(super) fn restart(
        &mut self,
        shared: &Shared,
        outage: Option<Duration>,
        opener: Opener<'s>,
    ) -> Option<Paced<'s>> {
        let (socket, injector) = (self.live.socket.upgrade()?, shared.injector.as_ref()?);
        let info = tcp_info(socket.as_fd()).ok()?;
        self.acknowledged.bytes = info.acknowledged_bytes;
        let mut paced = outage.and_then(|_| self.held.take());
        if let Some(paced) = &mut paced {
            paced.begin(opener, &self.info);
        }
        if let Err(error) = restart(socket.as_fd(), &info, injector, shared, outage) {
            tracing::debug!(flow = self.live.flow, %error, "restart a leg");
        }
        // After what undoes doublings, since that is a timeout more.
        if let Some(paced) = &mut paced {
            paced.open(socket.as_fd());
        }
        paced
    }
}

/// Returns whether it goes on by its timer only: that has expired, or nothing of what it has under way was acknowledged for a
/// round trip and a quarter. A timer that was reckoned over a full queue, or after an outage, is longer than an outage may be.
fn has_stopped(info: &TcpInfo) -> bool {
    let is_silent = |trip: Duration| info.since_acknowledgement > trip.max(LEAST) * 5 / 4;
    info.backoff > 0 || info.unacked > 0 && info.min_rtt.is_some_and(is_silent)
}

fn restart(
    fd: BorrowedFd<'_>,
    info: &TcpInfo,
    injector: &Injector,
    shared: &Shared,
    outage: Option<Duration>,
) -> Result<(), RepairError> {
    if info.unacked == 0 {
        return Ok(repair::probe_window(fd)?);
    }
    // Once it has been done it need not be again before something is acknowledged; and a link that flaps
    // for an hour would put the clock forward by so much that the peer takes it for the past. Where the timer has not expired
    // that is not done at all: the outage was shorter than the timer, and a round trip as long as that about doubles it.
    let is_done = |outage| info.since_acknowledgement > outage + FORGOTTEN;
    let can_be_old = info.backoff > 0 && info.timestamps;
    if can_be_old && outage.is_some_and(|outage| !is_done(outage)) {
        repair::forget_echoes(fd)?;
    }
    let ends = Ends::of(fd)?;
    if info.backoff > 0 {
        undo_doublings(fd, injector, ends, shared)?;
    }
    if tcp_info(fd)?.retransmitted_segments != info.retransmitted_segments {
        return Ok(());
    }
    send_first(fd, injector, info, ends)
}

/// Tells the socket that its first segment has had no route, until its timer is not doubled any more.
fn undo_doublings(
    fd: BorrowedFd<'_>,
    injector: &Injector,
    ends: Ends,
    shared: &Shared,
) -> Result<(), RepairError> {
    // SND.UNA (RFC 9293, section 3.3.1). A FIN counts as one byte in both.
    let unacknowledged = u32::try_from(stream::unacknowledged(fd)?).unwrap_or_default();
    let number = repair::next_sequence(fd)?.wrapping_sub(unacknowledged);
    let segment = FourTuple {
        client: ends.ours,
        server: ends.theirs,
    };
    let Some(message) = icmp::no_route(segment, SequenceNumber(number)) else {
        return Ok(());
    };
    let mark = shared.settings.load().mark;
    for _ in 0..MOST_MESSAGES {
        injector.send(&message, mark)?;
        // The loopback device has delivered it by now, or will do so soon: one too many is nothing.
        if tcp_info(fd)?.backoff == 0 {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leg_has_stopped_whose_timer_has_expired_or_that_is_silent_for_a_round_trip() {
        let silent = |silence: u64| TcpInfo {
            unacked: 10,
            min_rtt: Some(Duration::from_millis(100)),
            since_acknowledgement: Duration::from_millis(silence),
            ..TcpInfo::default()
        };
        assert!(!has_stopped(&silent(125)));
        assert!(has_stopped(&silent(126)));
        // It has had no answer yet, and does not know what a round trip is.
        let new = TcpInfo {
            min_rtt: None,
            ..silent(5000)
        };
        assert!(!has_stopped(&new));
        let idle = TcpInfo {
            unacked: 0,
            ..silent(5000)
        };
        assert!(!has_stopped(&idle));
        let expired = TcpInfo { backoff: 1, ..new };
        assert!(has_stopped(&expired));
    }
}
