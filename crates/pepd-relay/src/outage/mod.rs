//! What becomes of a leg's connections while its link is gone, and when it is back.
//!
//! While it is gone ([`endure`]) none of them is given up: the time for which a socket may wait for an
//! acknowledgement counts only while the link is up. What their other ends send is held back as ever,
//! by backpressure.
//!
//! When it is back ([`restart`]) each of them goes on at once. By itself the kernel would only when its
//! retransmission timer runs out, which an outage has doubled again and again, up to two minutes. Two
//! things make it look at once:
//!
//! - Where segments are under way, the message that there was no route to the peer, with the sequence
//!   number of the first of them, undoes a doubling (RFC 6069; `tcp_ld_RTO_revert`,
//!   net/ipv4/tcp_ipv4.c), and sends it again if the time that is left has passed. The box sends that
//!   message to its own socket (`injector`), as often as there are doublings.
//! - Where the peer had no room, the kernel asks it again when the socket leaves repair mode.
//!
//! The connections of a leg begin one after the other, no faster than its rate (`pace`).

mod injector;
mod links;
mod pace;

use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_packet::{FourTuple, SequenceNumber, icmp};
use pepd_sys::sockopt::OptionError;
use pepd_sys::tcp_info::{TcpInfo, tcp_info};
use pepd_sys::{repair, stream};
use pepd_telemetry::{LiveLeg, Socket};
use socket2::SockRef;

pub use injector::Injector;
pub(crate) use links::Links;
use pace::Pace;

use crate::shared::{Context, Shared};

/// The time for which nothing is given up: longer than any outage, and what the option takes, 24 days
/// (`TCP_USER_TIMEOUT`, milliseconds in an int).
const FOR_EVER: Duration = Duration::from_millis(i32::MAX as u64);

/// The interval at which connections are looked for that have begun during an outage.
const NEWCOMERS: Duration = Duration::from_millis(500);

/// The messages that a socket gets at most: as often as the kernel doubles a timer, up to two minutes
/// from the least that there is (TCP_RTO_MIN, TCP_RTO_MAX), and some to spare.
const MOST_MESSAGES: u32 = 16;

/// The times after the first attempt at which those are restarted again that have not gone on: what
/// was sent may be lost.
const AGAIN: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(900),
];

/// The interval at which those are looked at that have got their own user timeout not back.
const RECOVERY: Duration = Duration::from_secs(1);

/// Has no connection of the leg given up, for as long as this runs.
pub(crate) async fn endure(context: Arc<Context>, leg: Arc<str>) {
    let legs = context.shared.flows.legs(context.index, &leg);
    let rates = legs.iter().filter_map(|live| {
        let socket = live.socket.upgrade()?;
        tcp_info(socket.as_fd()).ok()?.delivery_rate
    });
    context
        .shared
        .links
        .note_rate(context.index, &leg, rates.sum());
    let mut known = HashSet::new();
    loop {
        let legs = context.shared.flows.legs(context.index, &leg);
        let mut there = HashSet::new();
        for live in &legs {
            let key = (live.flow, live.side);
            there.insert(key);
            if !known.contains(&key) {
                set_user_timeout(live, Some(FOR_EVER));
            }
        }
        known = there;
        tokio::time::sleep(NEWCOMERS).await;
    }
}

/// Has the leg's connections go on where they had stopped, and ends with each of them as it was before
/// the outage.
pub(crate) async fn restart(context: Arc<Context>, leg: Arc<str>) {
    let shared = &context.shared;
    let up_since = Instant::now();
    let legs = shared.flows.legs(context.index, &leg);
    let mut stalled: Vec<_> = legs.iter().filter_map(Stalled::of).collect();
    let mut pace = Pace::new(rate(&context, &leg), up_since);
    if !stalled.is_empty() {
        let (worker, legs) = (context.index, stalled.len());
        shared.counters.restarted.add(legs as u64);
        tracing::info!(leg = &*leg, worker, legs, "legs are restarted");
    }
    for again in [Duration::ZERO].into_iter().chain(AGAIN) {
        tokio::time::sleep_until((up_since + again).into()).await;
        stalled.retain(Stalled::is_stalled);
        for one in &stalled {
            tokio::time::sleep_until(pace.next(one.info.mss, Instant::now()).into()).await;
            one.restart(shared);
        }
    }
    recover(shared, &leg, legs, up_since).await;
}

/// Returns the bytes a second at which this worker may begin.
fn rate(context: &Context, leg: &str) -> u64 {
    let shared = &context.shared;
    let settings = shared.settings.load();
    let named = settings.legs.iter().find(|named| *named.name == *leg);
    let configured = named
        .and_then(|leg| leg.rate)
        .map(|rate| rate.bytes_per_second());
    match configured {
        Some(rate) => rate / shared.workers as u64,
        None => shared.links.rate(context.index, leg),
    }
}

/// Gives each its user timeout back, once something has been acknowledged again, or that time has
/// passed with the link up: earlier the kernel would count the outage, and give it up.
async fn recover(shared: &Shared, leg: &str, mut legs: Vec<LiveLeg>, up_since: Instant) {
    while !legs.is_empty() {
        let settings = shared.settings.load_full();
        let named = settings.legs.iter().find(|named| *named.name == *leg);
        let user_timeout = named.and_then(|leg| leg.user_timeout);
        let patience = user_timeout.unwrap_or_default();
        legs.retain(|live| {
            let waits = is_waiting(live) && up_since.elapsed() < patience;
            if !waits {
                set_user_timeout(live, user_timeout);
            }
            waits
        });
        tokio::time::sleep(RECOVERY).await;
    }
}

/// Returns whether what it has sent has not been acknowledged since the last timeout.
fn is_waiting(live: &LiveLeg) -> bool {
    let info = live
        .socket
        .upgrade()
        .and_then(|socket| tcp_info(socket.as_fd()).ok());
    info.is_some_and(|info| info.timeouts > 0)
}

fn set_user_timeout(live: &LiveLeg, time: Option<Duration>) {
    if let Some(socket) = live.socket.upgrade() {
        // One that has just failed needs none.
        let _ = SockRef::from(&socket.as_fd()).set_tcp_user_timeout(time);
    }
}

/// A leg that has stopped because nothing is acknowledged.
struct Stalled<'l> {
    live: &'l LiveLeg,
    /// How it was when the link came back.
    info: TcpInfo,
}

impl<'l> Stalled<'l> {
    fn of(live: &'l LiveLeg) -> Option<Self> {
        let info = tcp_info(live.socket.upgrade()?.as_fd()).ok()?;
        (info.backoff > 0).then_some(Self { live, info })
    }

    /// Returns whether nothing has been acknowledged since.
    fn is_stalled(&self) -> bool {
        let socket = self.live.socket.upgrade();
        let info = socket.and_then(|socket| tcp_info(socket.as_fd()).ok());
        info.is_some_and(|now| {
            now.acknowledged_bytes == self.info.acknowledged_bytes
                && (now.unacked > 0 || now.unsent > 0)
        })
    }

    fn restart(&self, shared: &Shared) {
        let Some(socket) = self.live.socket.upgrade() else {
            return;
        };
        if let Err(error) = restart_socket(&*socket, shared) {
            tracing::debug!(flow = self.live.flow, %error, "restart a leg");
        }
    }
}

/// What kept a leg from being restarted.
#[derive(Debug, thiserror::Error)]
enum RestartError {
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error(transparent)]
    Call(#[from] io::Error),
}

fn restart_socket(socket: &Socket, shared: &Shared) -> Result<(), RestartError> {
    let fd = socket.as_fd();
    let Some(injector) = &shared.injector else {
        return Ok(());
    };
    if tcp_info(fd)?.unacked == 0 {
        return Ok(repair::probe_window(fd)?);
    }
    // SND.UNA (RFC 9293, section 3.3.1). A FIN counts as one byte in both.
    let unacknowledged = u32::try_from(stream::unacknowledged(fd)?).unwrap_or_default();
    let number = repair::next_sequence(fd)?.wrapping_sub(unacknowledged);
    let number = SequenceNumber(number);
    let reference = SockRef::from(&fd);
    let (ours, theirs) = (reference.local_addr()?, reference.peer_addr()?);
    let (Some(client), Some(server)) = (ours.as_socket(), theirs.as_socket()) else {
        return Ok(());
    };
    let segment = FourTuple { client, server };
    let Some(message) = icmp::no_route(segment, number) else {
        return Ok(());
    };
    let mark = shared.settings.load().mark;
    for _ in 0..MOST_MESSAGES {
        injector.send(&message, segment.client.ip(), mark)?;
        // The loopback device has delivered it by now, or will do so soon: one too many is nothing.
        if tcp_info(fd)?.backoff == 0 {
            break;
        }
    }
    Ok(())
}
