//! Legs of which the first segment after an outage is answered: the next one is sent at once.
//!
//! Of what was under way when the link went some has arrived as a rule, and only the acknowledgements of
//! it were lost. The answer to the first segment says so; and the kernel then takes its timeout for a
//! false alarm, forgets that the rest is lost, too, and sends something new (F-RTO, RFC 5682;
//! `tcp_process_loss` and `tcp_try_undo_loss`, net/ipv4/tcp_input.c). What is missing it learns by the
//! answers to that, a round trip later. Meanwhile the box sends the first segment of it.
//!
//! It does so only after the kernel has sent something new. The answer to that, a SACK, comes before the
//! one to the box's segment, and has the kernel send the same segment itself, so that it takes no
//! round-trip time from the acknowledgement (Karn's algorithm; RFC 6298, section 3): it would be as long as
//! the outage. Therefore it is one segment only, and only where the peer sends SACKs; where the kernel has
//! no room for anything new, or nothing, it sends what is missing itself or waits for a timer.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use pepd_sys::repair::RepairError;
use pepd_sys::stream;
use pepd_sys::tcp_info::{TcpInfo, tcp_info};
use pepd_telemetry::LiveLeg;

use super::segment::send_first;
use super::{Ends, info};
use crate::shared::Shared;

/// The interval at which legs are looked at, and how much longer it is for each of them: to look at one
/// takes a microsecond.
const INTERVAL: Duration = Duration::from_millis(5);
const INTERVAL_FOR_EACH: Duration = Duration::from_micros(20);

/// Returns the interval at which so many are looked at.
pub(super) fn interval(legs: usize) -> Duration {
    let each = INTERVAL_FOR_EACH * u32::try_from(legs).unwrap_or(u32::MAX);
    INTERVAL.max(each)
}

/// A leg that has been restarted and has had no answer, or an answer and nothing after it.
pub(super) struct Unanswered<'l> {
    live: &'l LiveLeg,
    wait: Wait,
}

/// What is to be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It is to be looked at again.
    Wait,
    /// What is missing is to be sent.
    Send,
    /// Nothing any more.
    Nothing,
}

impl<'l> Unanswered<'l> {
    /// Returns it, if the next segment may have to be sent.
    pub(super) fn of(live: &'l LiveLeg) -> Option<Self> {
        let socket = live.socket.upgrade()?;
        let info = tcp_info(socket.as_fd()).ok()?;
        let left = stream::unacknowledged(socket.as_fd()).ok()?;
        let under_way = u64::try_from(left).ok()?.checked_sub(info.unsent.into())?;
        let wait = Wait {
            info,
            under_way,
            answered: None,
        };
        (info.sack && under_way > u64::from(info.mss)).then_some(Self { live, wait })
    }

    /// Looks at it.
    pub(super) fn look(&mut self, now: Instant) -> Next {
        info(self.live).map_or(Next::Nothing, |info| self.wait.look(info, now))
    }

    /// Returns the bytes of a segment.
    pub(super) fn bytes(&self) -> u32 {
        self.wait.info.mss
    }

    /// Sends the first segment of what is missing.
    pub(super) fn send(&self, shared: &Shared) {
        let (Some(socket), Some(injector)) = (self.live.socket.upgrade(), &shared.injector) else {
            return;
        };
        let send = || -> Result<(), RepairError> {
            let fd = socket.as_fd();
            send_first(fd, injector, &tcp_info(fd)?, Ends::of(fd)?)
        };
        if let Err(error) = send() {
            tracing::debug!(flow = self.live.flow, %error, "send what is missing");
        }
    }
}

/// What is known of such a leg. No I/O and no clock.
#[derive(Debug)]
struct Wait {
    /// How it was when it was last seen without an answer.
    info: TcpInfo,
    /// The bytes that were under way when the link came back.
    under_way: u64,
    /// When an answer was seen.
    answered: Option<Instant>,
}

impl Wait {
    fn look(&mut self, info: TcpInfo, now: Instant) -> Next {
        let acknowledged = info.acknowledged_bytes - self.info.acknowledged_bytes;
        if acknowledged == 0 {
            self.info = info;
            return Next::Wait;
        }
        let repairs = info.retransmitted_segments != self.info.retransmitted_segments;
        if repairs || acknowledged >= self.under_way {
            return Next::Nothing;
        }
        if sent_once(&info) > sent_once(&self.info) {
            return Next::Send;
        }
        let answered = *self.answered.get_or_insert(now);
        match now - answered > self.info.rtt {
            true => Next::Nothing,
            false => Next::Wait,
        }
    }
}

/// Returns the bytes that were sent, each counted once; none before Linux 4.19.
fn sent_once(info: &TcpInfo) -> Option<u64> {
    info.sent_bytes?.checked_sub(info.retransmitted_bytes?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    /// A leg with 20 segments of 1000 bytes under way, the first of which was sent twice.
    fn wait() -> Wait {
        Wait {
            info: TcpInfo {
                rtt: RTT,
                acknowledged_bytes: 500,
                sent_bytes: Some(21_500),
                retransmitted_bytes: Some(1_000),
                retransmitted_segments: 1,
                ..TcpInfo::default()
            },
            under_way: 20_000,
            answered: None,
        }
    }

    #[test]
    fn what_is_missing_is_sent_after_something_new() {
        let (mut wait, now) = (wait(), Instant::now());
        // The kernel sends the first one again and again.
        let again = TcpInfo {
            sent_bytes: Some(22_500),
            retransmitted_bytes: Some(2_000),
            retransmitted_segments: 2,
            ..wait.info
        };
        assert_eq!(wait.look(again, now), Next::Wait);
        let answered = TcpInfo {
            acknowledged_bytes: 5_500,
            ..again
        };
        assert_eq!(wait.look(answered, now), Next::Wait);
        let goes_on = TcpInfo {
            sent_bytes: Some(23_500),
            ..answered
        };
        assert_eq!(wait.look(goes_on, now + RTT), Next::Send);
    }

    #[test]
    fn nothing_is_sent_where_the_kernel_does_or_nothing_is_missing() {
        let now = Instant::now();
        let answered = TcpInfo {
            acknowledged_bytes: 5_500,
            ..wait().info
        };
        let repairs = TcpInfo {
            sent_bytes: Some(22_500),
            retransmitted_bytes: Some(2_000),
            retransmitted_segments: 2,
            ..answered
        };
        assert_eq!(wait().look(repairs, now), Next::Nothing);
        let all = TcpInfo {
            acknowledged_bytes: 20_500,
            sent_bytes: Some(30_000),
            ..answered
        };
        assert_eq!(wait().look(all, now), Next::Nothing);
        // It has no room for anything new.
        let mut wait = wait();
        assert_eq!(wait.look(answered, now), Next::Wait);
        assert_eq!(wait.look(answered, now + RTT), Next::Wait);
        assert_eq!(wait.look(answered, now + 2 * RTT), Next::Nothing);
    }

    #[test]
    fn to_look_at_many_takes_a_part_of_the_time() {
        assert_eq!(interval(1), INTERVAL);
        assert_eq!(interval(10_000), Duration::from_millis(200));
    }
}
