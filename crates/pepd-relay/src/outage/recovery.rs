//! Legs that get their own user timeout back, some time after their link is.
//!
//! The kernel counts from when something was sent again first, or a window found shut (`tcp_write_timeout` and
//! `tcp_probe_timer`, net/ipv4/tcp_timer.c), and the outage with it. So a leg has its own again once nothing waits any
//! more, or that time has passed with the link up. Without one the kernel would count the probes of an idle leg that the outage
//! has swallowed, and end it with the next, or what was sent again, by its own patience.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_sys::tcp_info::TcpInfo;
use pepd_telemetry::LiveLeg;
use socket2::SockRef;

use super::{FOR_EVER, info, peer, set_user_timeout};
use crate::essential::essential;
use crate::shared::Shared;

/// The time for which the kernel waits for an acknowledgement of what it sends again (net.ipv4.tcp_retries2).
const KERNELS_PATIENCE: Duration = Duration::from_millis(924_600);

/// The interval at which those are looked at that have got their own user timeout not back.
const INTERVAL: Duration = Duration::from_secs(1);

/// Gives each of these connections of the leg its user timeout back when it is time for that.
pub(super) async fn recover(shared: &Shared, leg: &str, mut legs: Vec<LiveLeg>, up_since: Instant) {
    // Where this is no task of its link's, that does not end it.
    while !legs.is_empty() && !shared.links.is_gone(leg) {
        let settings = shared.settings.load_full();
        let named = settings.leg_named(leg);
        legs.retain(|live| {
            // A reload may have given it another name.
            let of_leg = named.or_else(|| settings.leg_towards(peer(live)?));
            let user_timeout = of_leg.and_then(|leg| leg.user_timeout);
            let keepalive = of_leg.map_or(Duration::ZERO, |leg| leg.keepalive.interval);
            let patience = info(live).map(|info| patience(&info, user_timeout, keepalive));
            let waits = patience.is_some_and(|patience| up_since.elapsed() < patience);
            if !waits {
                set_user_timeout(live, user_timeout);
            }
            waits
        });
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Gives a leg that another process has left its own user timeout back, if it has that of an outage, which is over: a reload may
/// have given it another name since, so that nobody would who looks after its link. While that is gone it keeps it.
pub(crate) fn recover_left(shared: &Arc<Shared>, leg: Arc<str>, live: LiveLeg) {
    let has = live.socket.upgrade().and_then(|socket| {
        let has = SockRef::from(&socket.as_fd()).tcp_user_timeout();
        has.ok()?
    });
    if has == Some(FOR_EVER) {
        let shared = Arc::clone(shared);
        let recovering = async move {
            until_tried(&live).await;
            recover(&shared, &leg, vec![live], Instant::now()).await;
        };
        tokio::spawn(essential(recovering));
    }
}

/// Waits until the kernel has tried once more where it waits for its timer, as long as an outage has made that: with a user timeout
/// it would end the leg in the place of that.
async fn until_tried(live: &LiveLeg) {
    let tries = |info: &TcpInfo| (info.retransmitted_segments, info.probes);
    let before = info(live).map(|info| tries(&info));
    let waits = |info: TcpInfo| {
        let is_doubled = info.backoff > 0 || info.probes > 0;
        is_doubled && Some(tries(&info)) == before
    };
    while info(live).is_some_and(waits) {
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Returns how long a link has to be up until the leg gets its own back: no time where it waits for nothing.
fn patience(info: &TcpInfo, user_timeout: Option<Duration>, keepalive: Duration) -> Duration {
    let has_something = info.unacked > 0 || info.unsent > 0;
    let is_shut = info.send_window == Some(0);
    if has_something && (info.timeouts > 0 || info.probes > 0 || is_shut) {
        user_timeout.unwrap_or(KERNELS_PATIENCE)
    } else if info.probes > 0 {
        // Within twice that an idle one has been probed again, and has answered.
        user_timeout.unwrap_or_default().max(2 * keepalive)
    } else {
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_outage_does_not_count_for_who_waits_when_it_is_over() {
        let of = |info: TcpInfo| patience(&info, Some(5 * SECOND), 75 * SECOND);
        let open = TcpInfo {
            unacked: 10,
            unsent: 1000,
            send_window: Some(1000),
            ..TcpInfo::default()
        };
        assert_eq!(of(open), Duration::ZERO);
        assert_eq!(
            of(TcpInfo {
                timeouts: 1,
                ..open
            }),
            5 * SECOND
        );
        // Whether the last probe was answered or not.
        let shut = TcpInfo {
            unacked: 0,
            send_window: Some(0),
            ..open
        };
        assert_eq!(of(shut), 5 * SECOND);
        assert_eq!(of(TcpInfo { probes: 3, ..shut }), 5 * SECOND);
        let before_linux_5_4 = TcpInfo {
            send_window: None,
            probes: 3,
            ..shut
        };
        assert_eq!(of(before_linux_5_4), 5 * SECOND);
    }

    #[test]
    fn an_idle_one_is_probed_before_it_is_given_up() {
        let idle = TcpInfo {
            probes: 3,
            send_window: Some(1000),
            ..TcpInfo::default()
        };
        let of = |user_timeout| patience(&idle, user_timeout, 75 * SECOND);
        assert_eq!(of(Some(5 * SECOND)), 150 * SECOND);
        assert_eq!(of(Some(200 * SECOND)), 200 * SECOND);
        assert_eq!(of(None), 150 * SECOND);
    }

    #[test]
    fn without_a_user_timeout_it_is_the_kernels_patience() {
        let waits = TcpInfo {
            unacked: 1,
            timeouts: 1,
            ..TcpInfo::default()
        };
        assert_eq!(patience(&waits, None, SECOND), KERNELS_PATIENCE);
    }
}
