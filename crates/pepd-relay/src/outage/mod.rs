//! What becomes of a leg's connections while its link is gone, and when it is back.
//!
//! While it is gone ([`endure`]) none of them is given up: the time for which a socket may wait for an
//! acknowledgement counts only while the link is up. What their other ends send is held back as ever,
//! by backpressure.
//!
//! When it is back ([`restart`]) each of them goes on at once, in what the box sends (`stalled`) and in
//! what it receives (`waiting`), and once more when that is answered (`answered`); and for some seconds
//! its timer is not let wait for as long as the outage was (`limit`). By itself the kernel would only when its retransmission timer runs out,
//! which an outage has doubled again and again, up to two minutes.
//!
//! The connections of a leg begin one after the other, no faster than its rate (`beginning`).

mod answered;
mod beginning;
mod claim;
mod injector;
mod limit;
mod links;
mod pace;
mod recovery;
mod segment;
mod share;
mod stalled;
mod tasks;
mod waiting;
mod window;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_packet::MarkValue;
use pepd_sys::tcp_info::{TcpInfo, tcp_info};
use pepd_telemetry::{LiveLeg, Side};
use socket2::{SockAddr, SockRef};

use answered::{Next, Unanswered};
use beginning::Beginning;
use claim::{Claim, Claimed};
pub use injector::Injector;
use limit::Limits;
pub(crate) use limit::settle as settle_limit;
pub(crate) use links::{Links, Returns};
use recovery::recover;
pub(crate) use recovery::recover_left;
use stalled::Stalled;
pub(crate) use tasks::{LinkTasks, Went};
use waiting::{Silence, Waiting};
use window::Paced;
pub(crate) use window::{control_of, name, settle};

use crate::shared::{Context, Shared};

/// The time for which nothing is given up: longer than any outage, and no more than half of what the option takes
/// (`TCP_USER_TIMEOUT`, milliseconds in an int). The kernel takes from it, as a signed number, the time since a segment was
/// first sent again (`tcp_clamp_rto_to_user_timeout` and `retransmits_timed_out`, net/ipv4/tcp_timer.c); a paced one is sent
/// some milliseconds after its timer has expired, so that this is less than nothing, and with the most that the option takes
/// the sum overflows: the connection was given up at once, in 5 of 180 runs of an upload over an outage.
const FOR_EVER: Duration = Duration::from_millis(i32::MAX as u64 / 2);

/// The interval at which connections are looked for that have begun during an outage.
const NEWCOMERS: Duration = Duration::from_millis(500);

/// The times after the first attempt at which those are restarted again that have not gone on, where a
/// round trip has passed: what was sent may be lost.
const AGAIN: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(900),
    Duration::from_millis(2700),
];

const LAST_AGAIN: Duration = AGAIN[AGAIN.len() - 1];

/// Those after which they are restarted once more if nothing at all had come by the time before: what said that the link is up
/// may have said so before packets passed.
const IF_SILENT: [Duration; 2] = [Duration::from_secs(6), Duration::from_secs(12)];

/// Has no connection of the leg given up, for as long as this runs.
async fn endure(context: Arc<Context>, leg: Arc<str>) {
    let mut known = HashSet::new();
    loop {
        let legs = legs_of(&context, &leg);
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

/// What is known of a leg when its link goes.
#[derive(Clone, Debug)]
struct Before {
    /// When it went.
    gone: Instant,
    /// Since when nothing may have come.
    silence: Silence,
    /// What each of the worker's connections delivered then, in bytes a second.
    delivered: Arc<HashMap<(u64, Side), u64>>,
    /// What the leg carried in all, in bytes a second, in the two seconds of the last minute of its link in which it was most;
    /// none where nobody was looking.
    carried: Option<u64>,
}

impl Before {
    /// Looks at the leg, whose link went then, and may be silent for longer, or was about to go when it was looked at
    /// `earlier`, or was gone a moment before.
    fn look(
        context: &Context,
        leg: &str,
        (went, silence): (Went, Silence),
        earlier: Option<&Self>,
    ) -> Self {
        let shared = &context.shared;
        let legs = legs_of(context, leg);
        // Of another process's connections the kernel may have measured since how fast what was lost is sent again.
        let workers = shared.workers.max(1) * legs.len().max(1);
        let least = went.carried.map_or(0, |carried| carried / workers as u64);
        let known = legs.iter().filter_map(|live| {
            let info = info(live)?;
            let before = earlier.and_then(|it| it.delivered(live));
            let known = info.delivery_rate?.max(before.unwrap_or_default());
            let known = known.max(least);
            let claimed = Claim::of(live, &info, known).now();
            Some((((live.flow, live.side), known), claimed))
        });
        let (delivered, claimed): (HashMap<_, _>, Vec<_>) = known.unzip();
        let claimed = claimed.into_iter().sum();
        shared.links.note(leg, context.index, claimed);
        let lately = shared.flows.most_delivered(leg);
        let carried = earlier.and_then(|it| it.carried);
        // Of legs that have just begun nobody has seen what they carry together: it is what one of them did, at least.
        let of_one = delivered.values().max().copied();
        Self {
            gone: went.since,
            silence,
            delivered: Arc::new(delivered),
            carried: carried.max(lately).max(went.carried).or(of_one),
        }
    }

    /// Returns what a connection delivered, in bytes a second, if that is known.
    fn delivered(&self, live: &LiveLeg) -> Option<u64> {
        self.delivered.get(&(live.flow, live.side)).copied()
    }
}

/// Has the leg's connections go on where they had stopped, and ends with each of them as it was before
/// the outage.
async fn restart(context: Arc<Context>, leg: Arc<str>, before: Before) {
    let up_since = Instant::now();
    let legs = legs_of(&context, &leg);
    // Before anything is sent, since the answer to it may be what makes a timeout long.
    let limits = Limits::set(&legs);
    tokio::join!(
        limits.lift(),
        go_on(&context, &leg, &before, &legs, up_since)
    );
    recover(&context.shared, &leg, legs, up_since).await;
}

/// Has these connections of the leg go on.
async fn go_on(context: &Context, leg: &str, before: &Before, legs: &[LiveLeg], up_since: Instant) {
    let shared = &context.shared;
    let outage = up_since - before.gone;
    let mut stalled: Vec<_> = legs
        .iter()
        .filter_map(|live| Stalled::of(live, before))
        .collect();
    let silence = up_since - before.silence.since;
    let waiting = legs
        .iter()
        .filter_map(|live| Waiting::of(live, outage, silence));
    let mut waiting: Vec<_> = waiting.collect();
    let mut beginning = Beginning::new(context, leg, before, &stalled, up_since);
    for one in &mut stalled {
        one.hold(beginning.opener());
    }
    tell(context, leg, stalled.len(), waiting.len());
    let mut answers = Answers {
        shared,
        unanswered: stalled
            .iter()
            .filter_map(|one| Unanswered::of(one.live))
            .collect(),
        paced: Vec::new(),
    };
    let mut heard = false;
    for again in [Duration::ZERO].into_iter().chain(AGAIN).chain(IF_SILENT) {
        let is_done = stalled.is_empty() && waiting.is_empty() && answers.unanswered.is_empty();
        if is_done || heard && IF_SILENT.contains(&again) {
            break;
        }
        answers.await_until(up_since + again, &mut beginning).await;
        // Thousands are not looked at before the first of them goes on.
        heard = again >= LAST_AGAIN && legs.iter().any(|live| is_heard(live, up_since));
        stalled.retain(Stalled::is_stalled);
        for one in stalled.iter_mut().filter(|one| is_due(&one.info, again)) {
            let at = beginning.next(one);
            answers.await_until(at, &mut beginning).await;
            let outage = again.is_zero().then_some(outage);
            let paced = one.restart(shared, outage, beginning.opener());
            answers.paced.extend(paced);
            beginning.note(one);
        }
        waiting.retain(|one| one.is_waiting(up_since.elapsed()));
        for one in waiting.iter().filter(|one| is_due(&one.info, again)) {
            let at = beginning.pace.next(one.bytes(), Instant::now());
            answers.await_until(at, &mut beginning).await;
            one.wake(shared);
        }
    }
    answers.end_pacing(&mut beginning).await;
}

/// Counts the legs that are restarted, and says so.
fn tell(context: &Context, leg: &str, legs: usize, peers: usize) {
    if legs + peers > 0 {
        let worker = context.index;
        context.shared.counters.restarted.add(legs as u64);
        tracing::info!(leg, worker, legs, peers, "legs are restarted");
    }
}

/// The legs that have been restarted, until they are answered.
struct Answers<'l> {
    shared: &'l Shared,
    unanswered: Vec<Unanswered<'l>>,
    /// Those that keep to a rate, for a while.
    paced: Vec<Paced<'l>>,
}

impl<'l> Answers<'l> {
    /// Waits until this time, and sends meanwhile what is missing of those that are answered.
    async fn await_until(&mut self, until: Instant, beginning: &mut Beginning<'_, 'l>) {
        loop {
            let mut at = 0;
            while let Some(one) = self.unanswered.get_mut(at) {
                let next = one.look(Instant::now());
                if next == Next::Wait {
                    at += 1;
                    continue;
                }
                let mut one = self.unanswered.swap_remove(at);
                if next == Next::Send {
                    let when = beginning.pace.next(one.bytes(), Instant::now());
                    tokio::time::sleep_until(when.into()).await;
                    // The kernel may have sent it meanwhile.
                    if one.look(Instant::now()) == Next::Send {
                        one.send(self.shared);
                    }
                }
            }
            let now = Instant::now();
            let next = self.look_at_paced(beginning, now);
            if now >= until {
                return;
            }
            let again = now + answered::interval(self.unanswered.len());
            let again = if self.unanswered.is_empty() {
                next.map_or(until, |next| until.min(next))
            } else {
                again.min(until)
            };
            tokio::time::sleep_until(again.into()).await;
        }
    }

    /// Waits until none has to keep to a rate any more.
    async fn end_pacing(mut self, beginning: &mut Beginning<'_, 'l>) {
        while let Some(next) = self.look_at_paced(beginning, Instant::now()) {
            tokio::time::sleep_until(next.into()).await;
        }
    }

    /// Looks at those that keep to a rate, and returns when to do so next; none where none does any more.
    fn look_at_paced(
        &mut self,
        beginning: &mut Beginning<'_, 'l>,
        now: Instant,
    ) -> Option<Instant> {
        self.paced.retain_mut(|one| one.look(now));
        let next = self.paced.iter().map(Paced::next).min()?;
        Some(next.min(beginning.share_again(&mut self.paced, now)))
    }
}

/// Returns whether anything has come from its peer since the link is up.
fn is_heard(live: &LiveLeg, up_since: Instant) -> bool {
    let is_since = |silence| silence < up_since.elapsed();
    info(live).is_some_and(|info| is_since(info.since_data.min(info.since_acknowledgement)))
}

/// Returns whether an attempt would have been answered by now, `after` so long.
fn is_due(info: &TcpInfo, after: Duration) -> bool {
    after.is_zero() || after > info.rtt + 4 * info.rtt_variation
}

/// Returns those of a worker's connections that go over a leg: a reload may have given it another name since they began.
fn legs_of(context: &Context, leg: &str) -> Vec<LiveLeg> {
    let shared = &context.shared;
    let settings = shared.settings.load();
    let all = |is_meant: &dyn Fn(&str) -> bool| shared.flows.legs(context.index, is_meant);
    let renamed = all(&|name| settings.leg_named(name).is_none());
    let renamed = renamed.into_iter().filter(|live| {
        let now = peer(live).and_then(|peer| settings.leg_towards(peer));
        now.is_some_and(|now| *now.name == *leg)
    });
    let mut legs = all(&|name| name == leg);
    legs.extend(renamed);
    legs
}

/// Returns the address at the other end of a leg.
fn peer(live: &LiveLeg) -> Option<IpAddr> {
    let socket = live.socket.upgrade()?;
    let address = SockRef::from(&socket.as_fd()).peer_addr().ok()?;
    Some(address.as_socket()?.ip())
}

/// Returns the figures of a leg's socket, while it is open.
fn info(live: &LiveLeg) -> Option<TcpInfo> {
    tcp_info(live.socket.upgrade()?.as_fd()).ok()
}

fn set_user_timeout(live: &LiveLeg, time: Option<Duration>) {
    if let Some(socket) = live.socket.upgrade() {
        // One that has just failed needs none.
        let _ = SockRef::from(&socket.as_fd()).set_tcp_user_timeout(time);
    }
}

/// The two ends of a leg, and the mark of what it sends.
#[derive(Clone, Copy, Debug)]
struct Ends {
    ours: SocketAddr,
    theirs: SocketAddr,
    mark: MarkValue,
}

impl Ends {
    fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let socket = SockRef::from(&fd);
        let address = |address: SockAddr| address.as_socket().ok_or(io::ErrorKind::Unsupported);
        Ok(Self {
            ours: address(socket.local_addr()?)?,
            theirs: address(socket.peer_addr()?)?,
            mark: MarkValue(socket.mark()?),
        })
    }
}
