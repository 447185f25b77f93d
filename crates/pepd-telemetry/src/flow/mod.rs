//! One live connection, as its worker tells it and others see it.

mod look;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

pub use self::look::{CongestionName, LegLook, Look, Wanted};
use self::look::{NOTHING_SEEN, Pace};
use crate::history::{Budget, DirectionSecond, History, LegSecond, Point, millis};
use crate::pairs::{Done, Pair};
use crate::phase::{Doing, PhaseClock, Spent};
use crate::{
    DirectionSnapshot, FlowSnapshot, Goodput, HandshakeMode, HistoryPoint, LegSnapshot, QueueBytes,
    TcpFigures,
};

/// A socket that may be looked at while it is open. The table holds it weakly: it is closed
/// when its connection drops it, and not a moment later.
pub type Socket = dyn AsFd + Send + Sync;

/// What is known of a connection when both its legs are there.
#[derive(Debug)]
pub struct Opening {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The original destination.
    pub server: SocketAddr,
    /// The campus that the client is in.
    pub client_campus: Arc<str>,
    /// The campus that the server is in.
    pub server_campus: Arc<str>,
    /// The `[leg.NAME]` of the client leg.
    pub client_profile: Arc<str>,
    /// The `[leg.NAME]` of the upstream leg.
    pub upstream_profile: Arc<str>,
    /// How it was established.
    pub handshake: HandshakeMode,
    /// When it was accepted.
    pub accepted: Instant,
}

/// What became of one direction in one turn of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Bytes delivered since the start.
    pub bytes: u64,
    /// Bytes in the pipe.
    pub pipe: usize,
    /// What the outgoing socket had left to send when data came that ended a wait for it.
    pub unsent_then: u64,
    /// What it does now.
    pub doing: Doing,
}

/// A connection that came shortly before its turn is first checked a second later: figures of a
/// few milliseconds are not those of a second.
const SHORTEST_SECOND: Duration = Duration::from_millis(500);

/// One live connection.
pub(crate) struct Flow {
    pub(crate) id: u64,
    pub(crate) opening: Opening,
    pub(crate) pair: Arc<Pair>,
    client_socket: Weak<Socket>,
    upstream_socket: Weak<Socket>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    up: Track,
    down: Track,
    first_byte: Option<Duration>,
    /// Something has happened since the last check.
    turned: bool,
    checked: Instant,
    /// There from the first look on: a short connection never has one.
    seen: Option<Box<Seen>>,
}

/// One direction.
#[derive(Debug)]
struct Track {
    clock: PhaseClock,
    bytes: u64,
    pipe: u32,
    queue_max: u32,
    /// What the pair has been told.
    told: Done,
}

/// What looks at the sockets have shown.
#[derive(Debug)]
struct Seen {
    client: LegLook,
    upstream: LegLook,
    up: Seconds,
    down: Seconds,
    /// Which of the seconds is the newest.
    newest: usize,
    /// How long that was.
    span: Duration,
    history: History,
}

/// One direction's last seconds.
#[derive(Debug, Default)]
struct Seconds {
    bytes: [u32; 10],
    /// All bytes and all time at the last check.
    before: (u64, Spent),
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow")
            .field("id", &self.id)
            .field("opening", &self.opening)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Flow {
    pub(crate) fn new(
        id: u64,
        opening: Opening,
        pair: Arc<Pair>,
        (client_socket, upstream_socket): (Weak<Socket>, Weak<Socket>),
        now: Instant,
    ) -> Self {
        let track = || Track {
            clock: PhaseClock::new(now),
            bytes: 0,
            pipe: 0,
            queue_max: 0,
            told: Done::default(),
        };
        Self {
            id,
            opening,
            pair,
            client_socket,
            upstream_socket,
            state: Mutex::new(State {
                up: track(),
                down: track(),
                first_byte: None,
                turned: true,
                checked: now,
                seen: None,
            }),
        }
    }

    /// What became of both directions in a turn that began at `woke` and ended at `done`.
    pub(crate) fn turn(&self, woke: Instant, done: Instant, up: Turn, down: Turn) {
        let mut state = self.lock();
        let (client, upstream) = state.legs();
        let turned = state.up.turn(woke, done, up, &client, &upstream)
            | state.down.turn(woke, done, down, &upstream, &client);
        state.turned |= turned;
        if state.first_byte.is_none() && state.down.bytes > 0 {
            state.first_byte = Some(done.saturating_duration_since(self.opening.accepted));
        }
    }

    /// The once-a-second check: looks at the sockets if anything can have changed, and gives
    /// the bytes (up, down) that came since the last.
    pub(crate) fn check(
        &self,
        now: Instant,
        centiseconds: u32,
        budget: &Arc<Budget>,
        look: impl FnOnce(&Socket, &Socket, Wanted) -> Look,
    ) -> (u64, u64) {
        let mut state = self.lock();
        if now.saturating_duration_since(state.checked) < SHORTEST_SECOND {
            return (0, 0);
        }
        if state.is_due() {
            let (Some(client), Some(upstream)) =
                (self.client_socket.upgrade(), self.upstream_socket.upgrade())
            else {
                return (0, 0);
            };
            let wanted = state.wanted();
            let look = look(&*client, &*upstream, wanted);
            self.pair.seen(look.client.tcp, look.upstream.tcp);
            state.look(now, centiseconds, look, budget);
        } else {
            state.pass(now);
        }
        state.turned = false;
        state.checked = now;
        state.tell(&self.pair, now)
    }

    /// Tells the pair what it does not know yet, and gives the bytes (up, down) of that.
    pub(crate) fn finish(&self, now: Instant) -> (u64, u64) {
        let mut state = self.lock();
        state.settle(now);
        state.tell(&self.pair, now)
    }

    /// Whether its sockets have been looked at.
    pub(crate) fn was_seen(&self) -> bool {
        self.lock().seen.is_some()
    }

    /// A look in between; history and seconds go on as if there had been none.
    pub(crate) fn look(&self, now: Instant, look: Look, budget: &Arc<Budget>) {
        let mut state = self.lock();
        let (client_unsent, upstream_unsent) = (look.client.unsent, look.upstream.unsent);
        state.see(look, budget);
        state.settle_with(now, client_unsent, upstream_unsent);
    }

    /// What was last seen of the client leg and of the upstream leg.
    pub(crate) fn figures(&self) -> (Option<TcpFigures>, Option<TcpFigures>) {
        let state = self.lock();
        let seen = state.seen.as_deref();
        (
            seen.and_then(|seen| seen.client.tcp),
            seen.and_then(|seen| seen.upstream.tcp),
        )
    }

    pub(crate) fn history(&self, epoch: f64) -> Vec<HistoryPoint> {
        let state = self.lock();
        state
            .seen
            .as_ref()
            .map(|seen| seen.history.expand(epoch))
            .unwrap_or_default()
    }

    /// As the API gives it; `epoch` is that of `began`, in seconds since the Unix epoch.
    pub(crate) fn snapshot(&self, now: Instant, began: Instant, epoch: f64) -> FlowSnapshot {
        let state = self.lock();
        let Opening {
            client,
            server,
            ref client_campus,
            ref server_campus,
            ref client_profile,
            ref upstream_profile,
            handshake,
            accepted,
        } = self.opening;
        let age = now.saturating_duration_since(accepted);
        let leg = |profile: &Arc<str>, look: Option<&LegLook>| LegSnapshot {
            profile: profile.to_string(),
            congestion: look.and_then(|look| look.congestion.map(|name| name.to_string())),
            tcp: look.and_then(|look| look.tcp),
        };
        let seen = state.seen.as_deref();
        FlowSnapshot {
            id: self.id,
            client,
            server,
            client_campus: client_campus.to_string(),
            server_campus: server_campus.to_string(),
            handshake,
            started: epoch + accepted.saturating_duration_since(began).as_secs_f64(),
            age: age.as_secs_f64(),
            first_byte: state.first_byte.map(|time| time.as_secs_f64()),
            up: state.direction(now, age, &state.up, |seen| {
                (&seen.up, &seen.client, &seen.upstream)
            }),
            down: state.direction(now, age, &state.down, |seen| {
                (&seen.down, &seen.upstream, &seen.client)
            }),
            client_leg: leg(client_profile, seen.map(|seen| &seen.client)),
            upstream_leg: leg(upstream_profile, seen.map(|seen| &seen.upstream)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held leaves at worst a figure that is off.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn legs(&self) -> (Pace, Pace) {
        self.seen.as_ref().map_or_else(Default::default, |seen| {
            (seen.client.pace(), seen.upstream.pace())
        })
    }

    fn is_due(&self) -> bool {
        let in_flight = |leg: &LegLook| leg.tcp.is_some_and(|tcp| tcp.unacked > 0);
        self.turned
            || !self.up.clock.at_rest()
            || !self.down.clock.at_rest()
            || self
                .seen
                .as_ref()
                .is_some_and(|seen| in_flight(&seen.client) || in_flight(&seen.upstream))
    }

    fn wanted(&self) -> Wanted {
        // One that waits for its source has read all there was.
        let unread =
            |track: &Track| matches!(track.clock.doing(), Doing::AwaitsSink | Doing::Moving);
        Wanted {
            congestion: self.seen.is_none(),
            client_unread: unread(&self.up),
            upstream_unread: unread(&self.down),
        }
    }

    fn see(&mut self, look: Look, budget: &Arc<Budget>) -> &mut Seen {
        let seen = self.seen.get_or_insert_with(|| {
            Box::new(Seen {
                client: LegLook::default(),
                upstream: LegLook::default(),
                up: Seconds::default(),
                down: Seconds::default(),
                newest: 0,
                span: Duration::ZERO,
                history: History::new(Arc::clone(budget)),
            })
        });
        seen.client.replace(look.client);
        seen.upstream.replace(look.upstream);
        seen
    }

    fn look(&mut self, now: Instant, centiseconds: u32, look: Look, budget: &Arc<Budget>) {
        let span = now.saturating_duration_since(self.checked);
        let (client_unsent, upstream_unsent) = (look.client.unsent, look.upstream.unsent);
        let before = self.seen.as_ref().map(|seen| {
            [&seen.client, &seen.upstream]
                .map(|leg| leg.tcp.map_or(0, |tcp| tcp.retransmitted_segments))
        });
        self.see(look, budget);
        self.settle_with(now, client_unsent, upstream_unsent);
        let Self { up, down, seen, .. } = self;
        let Some(seen) = seen else { return };
        let up_queue = up.queue(&seen.client, &seen.upstream);
        let down_queue = down.queue(&seen.upstream, &seen.client);
        up.note_queue(up_queue.total());
        down.note_queue(down_queue.total());
        seen.newest = (seen.newest + 1) % 10;
        seen.span = span;
        let leg = |leg: &LegLook, before: u32| {
            let tcp = leg.tcp.unwrap_or_default();
            let rtt = Duration::try_from_secs_f64(tcp.rtt).unwrap_or_default();
            let retransmitted = tcp.retransmitted_segments.saturating_sub(before);
            LegSecond {
                rtt: u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX),
                cwnd: tcp.cwnd,
                retransmitted_segments: u16::try_from(retransmitted).unwrap_or(u16::MAX),
            }
        };
        let [client_before, upstream_before] = before.unwrap_or_default();
        let point = Point {
            time: centiseconds,
            span: millis(span),
            up: seen.up.advance(seen.newest, now, up, up_queue),
            down: seen.down.advance(seen.newest, now, down, down_queue),
            client_leg: leg(&seen.client, client_before),
            upstream_leg: leg(&seen.upstream, upstream_before),
        };
        seen.history.push(point);
    }

    /// A second in which nothing happened.
    fn pass(&mut self, now: Instant) {
        self.settle(now);
        let Self { up, down, seen, .. } = self;
        if let Some(seen) = seen {
            seen.newest = (seen.newest + 1) % 10;
            seen.span = now.saturating_duration_since(self.checked);
            seen.up.advance(seen.newest, now, up, QueueBytes::default());
            seen.down
                .advance(seen.newest, now, down, QueueBytes::default());
        }
    }

    /// Settles with what was last seen unsent.
    fn settle(&mut self, now: Instant) {
        let unsent = |track: &Track| match track.clock.doing() {
            Doing::AwaitsSource { unsent } => unsent,
            _ => 0,
        };
        let (up, down) = (unsent(&self.up), unsent(&self.down));
        self.settle_with(now, down, up);
    }

    fn settle_with(&mut self, now: Instant, client_unsent: u64, upstream_unsent: u64) {
        let (client, upstream) = self.legs();
        let (up, down) = (
            upstream.waiting(upstream_unsent),
            client.waiting(client_unsent),
        );
        self.up.clock.settle(now, up, upstream.rate);
        self.down.clock.settle(now, down, client.rate);
    }

    fn tell(&mut self, pair: &Pair, now: Instant) -> (u64, u64) {
        let (up, down) = (self.up.tell(), self.down.tell());
        pair.add(now, up, down);
        (up.bytes, down.bytes)
    }

    fn direction<'a>(
        &'a self,
        now: Instant,
        age: Duration,
        track: &Track,
        select: impl Fn(&'a Seen) -> (&'a Seconds, &'a LegLook, &'a LegLook),
    ) -> DirectionSnapshot {
        let selected = self.seen.as_deref().map(&select);
        let (_, incoming, outgoing) = match selected {
            Some((seconds, incoming, outgoing)) => (Some(seconds), incoming, outgoing),
            None => (None, &NOTHING_SEEN, &NOTHING_SEEN),
        };
        let (spent, idle) = track.clock.at(now, incoming.pace().rtt);
        let life = rate(track.bytes, age);
        let goodput = match (selected, self.seen.as_deref()) {
            (Some((seconds, ..)), Some(seen)) => {
                let running = now.saturating_duration_since(self.checked);
                let ten: u64 = seconds.bytes.iter().map(|bytes| u64::from(*bytes)).sum();
                let since = track.bytes.saturating_sub(seconds.before.0);
                let window = (Duration::from_secs(10) + running).min(age);
                Goodput {
                    last_second: rate(seconds.bytes[seen.newest].into(), seen.span),
                    last_ten_seconds: rate(ten + since, window),
                    life,
                }
            }
            _ => Goodput {
                last_second: life,
                last_ten_seconds: life,
                life,
            },
        };
        DirectionSnapshot {
            bytes: track.bytes,
            goodput,
            phase: track.clock.phase(),
            phases: spent.into(),
            idle: idle.as_secs_f64(),
            queue: track.queue(incoming, outgoing),
            queue_max: track.queue_max.into(),
        }
    }
}

/// Bits per second.
fn rate(bytes: u64, time: Duration) -> f64 {
    // Below a millisecond the quotient says more about the clock than about the network.
    bytes as f64 * 8.0 / time.max(Duration::from_millis(1)).as_secs_f64()
}

impl Track {
    /// Whether anything happened.
    fn turn(
        &mut self,
        woke: Instant,
        done: Instant,
        turn: Turn,
        incoming: &Pace,
        outgoing: &Pace,
    ) -> bool {
        let before = self.clock.doing();
        let same = std::mem::discriminant(&before) == std::mem::discriminant(&turn.doing);
        if turn.bytes == self.bytes && same {
            return false;
        }
        self.bytes = turn.bytes;
        self.pipe = u32::try_from(turn.pipe).unwrap_or(u32::MAX);
        let unsent_then = outgoing.waiting(turn.unsent_then);
        self.clock.settle(woke, unsent_then, outgoing.rate);
        self.clock.begin(woke, Doing::Moving, incoming.rtt);
        self.clock.settle(done, 0, None);
        let doing = match turn.doing {
            Doing::AwaitsSource { unsent } => {
                self.note_queue(unsent);
                Doing::AwaitsSource {
                    unsent: outgoing.waiting(unsent),
                }
            }
            other => other,
        };
        self.clock.begin(done, doing, incoming.rtt);
        true
    }

    fn note_queue(&mut self, bytes: u64) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.queue_max = self.queue_max.max(bytes).max(self.pipe);
    }

    fn queue(&self, incoming: &LegLook, outgoing: &LegLook) -> QueueBytes {
        let doing = self.clock.doing();
        let waits = matches!(doing, Doing::AwaitsSource { .. } | Doing::Ended);
        QueueBytes {
            unread: if waits { 0 } else { incoming.unread },
            pipe: self.pipe.into(),
            unsent: match doing {
                Doing::AwaitsSource { unsent } => unsent,
                _ => outgoing.unsent,
            },
        }
    }

    /// What the pair does not know yet.
    fn tell(&mut self) -> Done {
        let all = Done {
            bytes: self.bytes,
            spent: self.clock.carrying(),
        };
        let before = std::mem::replace(&mut self.told, all);
        Done {
            bytes: all.bytes.saturating_sub(before.bytes),
            spent: all.spent.since(before.spent),
        }
    }
}

impl Seconds {
    fn advance(
        &mut self,
        newest: usize,
        now: Instant,
        track: &Track,
        queue: QueueBytes,
    ) -> DirectionSecond {
        let spent = track.clock.at(now, Duration::ZERO).0;
        let (bytes, before) = std::mem::replace(&mut self.before, (track.bytes, spent));
        let bytes = track.bytes.saturating_sub(bytes);
        self.bytes[newest] = u32::try_from(bytes).unwrap_or(u32::MAX);
        DirectionSecond::new(bytes, queue.total(), spent.since(before))
    }
}

#[cfg(test)]
mod tests;
