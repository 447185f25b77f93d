//! Retransmission timers that are not let wait for as long as the outage was.
//!
//! Where a segment was lost just before the outage, the peer acknowledges those behind it selectively when
//! the link is back, and Linux takes the time since they were sent for a round trip (`sack_rtt_us`,
//! net/ipv4/tcp_input.c). Nothing from outside keeps it from that. One such sample makes the timeout as long
//! as the outage, and it takes ten round trips of progress until it is short again: a segment that is lost
//! meanwhile may be waited for that long. But the timeout can have a limit (TCP_RTO_MAX_MS, Linux 6.15), which
//! holds from the next acknowledgement or timeout on; so it is set before the first of them comes.
//!
//! By the same limit the kernel counts its patience (`tcp_model_timeout`, `tcp_probe_timer` and
//! `tcp_rtx_probe0_timed_out`, net/ipv4/tcp_timer.c): with one of a second it would give a connection up after 15.
//! Therefore a leg has it for some seconds only, and together with a user timeout that does not pass; and
//! none has it whose peer has no room, since probes of that are counted, however short the time between them.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use pepd_sys::sockopt;
use pepd_sys::tcp_info::TcpInfo;
use pepd_telemetry::LiveLeg;
use socket2::{Domain, Socket, Type};

use super::{FOR_EVER, info, set_user_timeout};
use crate::settings::Leg;

/// The least limit: what the kernel takes (TCP_RTO_MAX_MS, net/ipv4/tcp.c).
const LEAST: Duration = Duration::from_secs(1);

/// The limit in round trips, where that is more: what is not acknowledged by then is lost, and no queue.
const ROUND_TRIPS: u32 = 3;

/// The time for which a leg has its limit in any case: until what was under way when the link went has been
/// acknowledged.
const IN_ANY_CASE: Duration = Duration::from_secs(3);

/// The time for which it has it at most.
const AT_MOST: Duration = Duration::from_secs(20);

/// The interval at which legs are looked at that have one.
const INTERVAL: Duration = Duration::from_millis(500);

/// The legs that have a limit, each until this is dropped or it needs it no more.
pub(super) struct Limits<'l>(Vec<Limited<'l>>);

impl<'l> Limits<'l> {
    /// Gives one to those of these legs that have segments under way. Where the kernel has no such limits
    /// nothing is changed.
    pub(super) fn set(legs: &'l [LiveLeg]) -> Self {
        Self(legs.iter().filter_map(Limited::of).collect())
    }

    /// Takes it from each when it needs it no more.
    pub(super) async fn lift(mut self) {
        let since = Instant::now();
        while !self.0.is_empty() {
            tokio::time::sleep(INTERVAL).await;
            self.0.retain(|one| one.is_needed(since.elapsed()));
        }
    }
}

/// A leg that has a limit, until this is dropped.
struct Limited<'l> {
    live: &'l LiveLeg,
    limit: Duration,
    /// What it had before, in milliseconds.
    before: i32,
}

impl<'l> Limited<'l> {
    fn of(live: &'l LiveLeg) -> Option<Self> {
        let socket = live.socket.upgrade()?;
        let info = info(live)?;
        let limit = limit(&info)?;
        let milliseconds = i32::try_from(limit.as_millis()).ok()?;
        let before = sockopt::rto_max(socket.as_fd()).ok()?;
        if before <= milliseconds {
            return None;
        }
        // First: those that have begun a moment ago may not have it.
        set_user_timeout(live, Some(FOR_EVER));
        sockopt::set_rto_max(socket.as_fd(), milliseconds).ok()?;
        Some(Self {
            live,
            limit,
            before,
        })
    }

    fn is_needed(&self, up: Duration) -> bool {
        info(self.live).is_some_and(|info| is_needed(&info, self.limit, up))
    }
}

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        if let Some(socket) = self.live.socket.upgrade() {
            // One that has just failed needs none.
            let _ = sockopt::set_rto_max(socket.as_fd(), self.before);
        }
    }
}

/// Returns the limit of a leg that is to have one.
fn limit(info: &TcpInfo) -> Option<Duration> {
    let is_one = info.unacked > 0 && !asks_for_room(info);
    is_one.then(|| LEAST.max(ROUND_TRIPS * info.rtt))
}

/// Returns whether a leg still needs its limit, when its link has been up for so long.
fn is_needed(info: &TcpInfo, limit: Duration, up: Duration) -> bool {
    // Where nothing is acknowledged it may look short because doublings were undone.
    let holds = up < IN_ANY_CASE || info.timeouts > 0 || info.rto >= limit;
    up < AT_MOST && holds && !asks_for_room(info)
}

/// Returns whether the peer has no room, or is asked whether it has.
fn asks_for_room(info: &TcpInfo) -> bool {
    info.probes > 0 || info.send_window == Some(0)
}

/// Takes from a socket of this leg the limit that a process may have left that has died.
pub(crate) fn settle(fd: BorrowedFd<'_>, leg: &Leg) -> io::Result<()> {
    let own = match leg.rto_max {
        Some(own) => Some(i32::try_from(own.as_millis()).unwrap_or(i32::MAX)),
        None => of_new_sockets()?,
    };
    if let Some(own) = own {
        // Where it has none of that either, nothing was left.
        let _ = sockopt::set_rto_max(fd, own);
    }
    Ok(())
}

/// Returns the limit that a new socket has, of either family, in milliseconds; none where this kernel has no limits.
/// It is asked once: connections stand still while thousands of legs are taken over.
fn of_new_sockets() -> io::Result<Option<i32>> {
    static LIMIT: OnceLock<Option<i32>> = OnceLock::new();
    if let Some(known) = LIMIT.get() {
        return Ok(*known);
    }
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    Ok(*LIMIT.get_or_init(|| sockopt::rto_max(socket.as_fd()).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn busy() -> TcpInfo {
        TcpInfo {
            rtt: Duration::from_millis(100),
            rto: 11 * SECOND,
            unacked: 10,
            send_window: Some(64 << 10),
            ..TcpInfo::default()
        }
    }

    #[test]
    fn a_limit_is_three_round_trips_and_a_second_at_least() {
        assert_eq!(limit(&busy()), Some(SECOND));
        let far = TcpInfo {
            rtt: Duration::from_millis(600),
            ..busy()
        };
        assert_eq!(limit(&far), Some(Duration::from_millis(1800)));
        let idle = TcpInfo {
            unacked: 0,
            ..busy()
        };
        assert_eq!(limit(&idle), None);
    }

    #[test]
    fn who_asks_for_room_has_none_since_the_kernel_counts_that() {
        let shut = TcpInfo {
            send_window: Some(0),
            ..busy()
        };
        let probing = TcpInfo {
            probes: 1,
            ..busy()
        };
        for one in [shut, probing] {
            assert_eq!(limit(&one), None);
            assert!(!is_needed(&one, SECOND, Duration::ZERO));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn what_a_process_has_left_is_taken_away() {
        let new = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let limit = |socket: &Socket| sockopt::rto_max(socket.as_fd()).ok();
        let (left, other) = (new(), new());
        let has_limits = sockopt::set_rto_max(left.as_fd(), 1000).is_ok();
        let mut leg = Leg::kernel_defaults("wan");
        settle(left.as_fd(), &leg).unwrap();
        assert_eq!(limit(&left), limit(&other));
        leg.rto_max = Some(5 * SECOND);
        settle(left.as_fd(), &leg).unwrap();
        assert_eq!(limit(&left), has_limits.then_some(5000));
    }

    #[test]
    fn a_limit_is_needed_until_the_timeout_is_short_but_not_for_long() {
        let limited = TcpInfo {
            rto: SECOND,
            ..busy()
        };
        assert!(is_needed(&limited, SECOND, IN_ANY_CASE));
        assert!(!is_needed(&limited, SECOND, AT_MOST));
        let short = TcpInfo {
            rto: SECOND / 3,
            ..busy()
        };
        // What was sent before the outage may not have been acknowledged yet.
        assert!(is_needed(&short, SECOND, SECOND));
        assert!(!is_needed(&short, SECOND, IN_ANY_CASE));
        let unanswered = TcpInfo {
            timeouts: 3,
            ..short
        };
        assert!(is_needed(&unanswered, SECOND, IN_ANY_CASE));
    }
}
