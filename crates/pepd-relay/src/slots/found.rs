//! Connections that a process has left that has died.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pepd_sys::descriptors::Left;
use pepd_sys::pipe::Pipe;
use pepd_sys::tcp_info::{self, TcpInfo};
use pepd_sys::{repair, sockopt, stream};
use pepd_telemetry::{Arrival, HandshakeMode};

use super::Slots;
use super::address::address;
use super::layout::{
    ACCEPTED, BROUGHT, CLIENT, CLIENT_COOKIE, COPIES, DEATHS_SHIFT, EARLY, FAILURES, HANDS, ID,
    IS_V6, MOVE, PER_HAND, PLACE_SHIFT, PORTS, RELAYED, SERVER, SOCKETS, STATE, STATE_MASK,
    UPSTREAM_COOKIE, URGENT, URGENT_SHIFT, WAY_INODE, WAY_PIPE, WAY_STATE, WAYS,
};
use super::slot::{Identity, Slot};
use crate::connection::leg::{Failure, Fate};
use crate::connection::memo::Memo as _;
use crate::connection::recovery::{Both, Figures, Noted, Recovered, Stage, Unclear, recover};
use crate::connection::state::{State, Way};
use crate::limits::Permit;

/// The deaths in a row for which a connection is held to be the cause.
const MOST_DEATHS: u64 = 2;

/// A connection that another process has left, with all that is needed to go on.
#[derive(Debug)]
pub(crate) struct FoundConnection {
    pub(crate) identity: Identity,
    pub(crate) slot: Slot,
    /// The client leg's socket and the upstream leg's, and what has become of them.
    pub(crate) legs: Both<OwnedFd>,
    pub(crate) fates: Both<Fate>,
    /// The direction from the client and the other one, each with its pipe.
    pub(crate) ways: Both<(Recovered, Option<Pipe>)>,
    /// The bytes that wait in it to be delivered.
    pub(crate) waiting: u64,
    /// Whether a link has been gone while the process lived.
    pub(crate) after_an_outage: bool,
    /// How it has come from another box, where it has just done so.
    pub(crate) came: Option<Arrival>,
    /// What counts it, where it has been counted all the while.
    pub(crate) permit: Option<Permit>,
}

/// What a process has left that has died.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) connections: Vec<FoundConnection>,
    pub(crate) lost: Vec<LostConnection>,
}

impl Found {
    fn add(&mut self, more: Self) {
        self.connections.extend(more.connections);
        self.lost.extend(more.lost);
    }
}

/// A connection that cannot go on, and is reset.
#[derive(Debug)]
pub struct LostConnection {
    /// The client.
    pub client: SocketAddr,
    /// Where it was connected to.
    pub server: SocketAddr,
    /// Why it is reset.
    pub why: LostBecause,
}

/// The reasons why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LostBecause {
    /// Its descriptors are not what the notes say.
    #[error("its sockets are not there any more")]
    NotThere,
    /// It was in hand when the process died, and when the one before did.
    #[error("two processes in a row have died with it in hand")]
    Deadly,
    /// Something is missing.
    #[error("what has become of its bytes is not to be known: {0}")]
    Unclear(#[source] UnclearBytes),
}

/// Why it is not to be known what has become of a connection's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct UnclearBytes(#[from] Unclear);

impl Slots {
    /// Takes the connections that are noted out of what is `left`. If the process died `of` something
    /// that it did itself, those that it had in hand may be the cause.
    pub(crate) fn find(self: &Arc<Self>, left: &mut Left, of_itself: bool) -> Found {
        let in_hand = self.take_hands();
        let mut noted = Vec::new();
        for index in 0..self.used() {
            let Some(state) = self.word(index, STATE) else {
                continue;
            };
            let value = state.load(Acquire);
            if value & STATE_MASK != RELAYED {
                continue;
            }
            let deaths = match of_itself && in_hand.contains(&index) {
                true => (value >> DEATHS_SHIFT) + 1,
                false => 0,
            };
            state.store(RELAYED | deaths << DEATHS_SHIFT, Relaxed);
            // From here on it is free again when it is dropped.
            let slot = Slot::found(self, index);
            noted.push(NotedConnection {
                descriptors: Descriptors::take(&slot, left),
                slot,
                deaths,
            });
        }
        look_at_all(noted)
    }

    /// Returns the moves with which connections have come that are noted here, with the place that each has in it.
    pub fn moves(self: &Arc<Self>) -> Vec<([u64; 2], u16)> {
        let relayed = |index: &u32| {
            let state = self.word(*index, STATE);
            state.is_some_and(|state| state.load(Acquire) & STATE_MASK == RELAYED)
        };
        let word = |index, word| self.word(index, word).map_or(0, |word| word.load(Relaxed));
        let moves = (0..self.used()).filter(relayed);
        let moves = moves.map(|index| {
            let place = word(index, BROUGHT[0]) >> PLACE_SHIFT;
            let id = [word(index, MOVE), word(index, MOVE + 1)];
            (id, u16::try_from(place).unwrap_or(u16::MAX))
        });
        moves.filter(|(id, _)| *id != [0, 0]).collect()
    }

    /// Returns what the workers had in hand, which they have no longer.
    pub(super) fn take_hands(&self) -> HashSet<u32> {
        let hands = (1..=HANDS).filter_map(|hand| self.words.get(hand * PER_HAND));
        hands
            .filter_map(|hand| hand.swap(0, Relaxed).checked_sub(1))
            .filter_map(|index| u32::try_from(index).ok())
            .collect()
    }
}

/// A connection's descriptors, as the notes have them.
struct Descriptors {
    legs: Both<Option<OwnedFd>>,
    /// The ends of the pipes, that to read from first; none where there is no pipe.
    pipes: Both<Option<Both<Option<OwnedFd>>>>,
}

impl Descriptors {
    fn take(slot: &Slot, left: &mut Left) -> Self {
        let legs = halves(slot.load(SOCKETS)).map(|number| left.take(number));
        let ends = WAYS.map(|way| slot.load(way + WAY_PIPE));
        let pipes =
            ends.map(|ends| (ends != 0).then(|| halves(ends).map(|number| left.take(number))));
        Self { legs, pipes }
    }

    /// Returns the sockets, if they are those of the notes.
    fn legs(&mut self, slot: &Slot) -> Result<Both<OwnedFd>, LostBecause> {
        let [client, upstream] = std::mem::take(&mut self.legs);
        let is_it = |socket: &OwnedFd, cookie| {
            sockopt::cookie(socket.as_fd()).is_ok_and(|it| it == slot.load(cookie))
        };
        let client = client.filter(|socket| is_it(socket, CLIENT_COOKIE));
        let upstream = upstream.filter(|socket| is_it(socket, UPSTREAM_COOKIE));
        client
            .zip(upstream)
            .map(<[_; 2]>::from)
            .ok_or(LostBecause::NotThere)
    }

    /// Returns the pipe of each direction, if it has one.
    fn pipes(&mut self, slot: &Slot) -> Result<Both<Option<Pipe>>, LostBecause> {
        let [up, down] = std::mem::take(&mut self.pipes);
        Ok([pipe(slot, WAYS[0], up)?, pipe(slot, WAYS[1], down)?])
    }
}

/// A connection that is noted.
struct NotedConnection {
    descriptors: Descriptors,
    slot: Slot,
    /// The deaths in a row in which it was in hand.
    deaths: u64,
}

/// Finds how the connections go on. All of them wait meanwhile, and most of the time goes into asking
/// the kernel: every processor does.
fn look_at_all(noted: Vec<NotedConnection>) -> Found {
    let mut noted: Vec<_> = noted.into_iter().map(Some).collect();
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let share = noted.len().div_ceil(processors).max(LEAST_SHARE);
    let mut found = thread::scope(|scope| {
        let mut shares = noted.chunks_mut(share);
        let own = shares.next();
        let others = shares.map(|share| {
            let thread = thread::Builder::new();
            thread.spawn_scoped(scope, move || look_at(share))
        });
        let others: Vec<_> = others.collect();
        let mut found = own.map(look_at).unwrap_or_default();
        for other in others.into_iter().flatten() {
            match other.join() {
                Ok(more) => found.add(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        found
    });
    // And those for which there was no thread to be had.
    found.add(look_at(&mut noted));
    found
}

/// Fewer connections are looked at before another thread has begun.
const LEAST_SHARE: usize = 100;

fn look_at(noted: &mut [Option<NotedConnection>]) -> Found {
    let mut found = Found::default();
    for noted in noted.iter_mut().filter_map(Option::take) {
        let identity = noted.slot.identity();
        match take(noted, identity) {
            Ok(connection) => found.connections.push(connection),
            Err(why) => found.lost.push(LostConnection {
                client: identity.client,
                server: identity.server,
                why,
            }),
        }
    }
    found
}

/// Finds how one connection goes on.
fn take(connection: NotedConnection, identity: Identity) -> Result<FoundConnection, LostBecause> {
    let NotedConnection {
        mut descriptors,
        slot,
        deaths,
    } = connection;
    let legs = descriptors.legs(&slot)?;
    let mut pipes = descriptors.pipes(&slot)?;
    if deaths >= MOST_DEATHS {
        return Err(LostBecause::Deadly);
    }
    let missing = |_| LostBecause::NotThere;
    // One that was frozen when its process died goes on.
    for leg in &legs {
        if repair::is_on(leg.as_fd()) {
            repair::give_back(leg.as_fd()).map_err(|_| LostBecause::NotThere)?;
        }
    }
    let came = slot.came();
    let mut figures = [
        figures(legs[0].as_fd(), false).map_err(missing)?,
        // One that was put together has sent no SYN.
        figures(legs[1].as_fd(), came.is_none()).map_err(missing)?,
    ];
    if let Some(came) = came {
        for (leg, figures) in figures.iter_mut().enumerate() {
            figures.leave_out(came.brought[leg], came.had_fin[leg]);
        }
    }
    let noted = [
        noted(&slot, WAYS[0], pipes[0].as_ref()),
        noted(&slot, WAYS[1], pipes[1].as_ref()),
    ];
    let failures = halves(slot.load(FAILURES)).map(|errno| (errno != 0).then_some(Failure(errno)));
    let (ways, mut fates) = recover(&noted, failures, &figures)
        .map_err(|why| LostBecause::Unclear(UnclearBytes(why)))?;
    for (leg, fate) in fates.iter_mut().enumerate() {
        fate.ended = came.is_some_and(|came| came.had_fin[leg]);
    }
    for ((way, recovered), pipe) in [Way::Up, Way::Down].into_iter().zip(&ways).zip(&mut pipes) {
        if recovered.state.is_final() {
            slot.note_pipe(way, None);
            *pipe = None;
        }
        slot.note_urgent(way, recovered.urgent);
        slot.note_copying(way, recovered.sent_ahead + recovered.sent_from_pipe > 0);
        slot.note_state(way, recovered.state);
    }
    let [up, down] = pipes;
    Ok(FoundConnection {
        identity,
        slot,
        legs,
        fates,
        waiting: figures.iter().map(|leg| leg.unread).sum::<u64>()
            + ways.iter().map(|way| way.in_pipe as u64).sum::<u64>(),
        ways: [(ways[0], up), (ways[1], down)],
        after_an_outage: false,
        came: None,
        permit: None,
    })
}

fn pipe(
    slot: &Slot,
    way: usize,
    ends: Option<Both<Option<OwnedFd>>>,
) -> Result<Option<Pipe>, LostBecause> {
    let Some([read, write]) = ends else {
        return Ok(None);
    };
    let (read, write) = read.zip(write).ok_or(LostBecause::NotThere)?;
    let pipe = Pipe::adopt(read, write).map_err(|_| LostBecause::NotThere)?;
    match pipe.inode() == slot.load(way + WAY_INODE) {
        true => Ok(Some(pipe)),
        false => Err(LostBecause::NotThere),
    }
}

pub(super) fn noted(slot: &Slot, way: usize, pipe: Option<&Pipe>) -> Noted {
    let word = slot.load(way + WAY_STATE);
    let byte = u8::try_from(word >> URGENT_SHIFT & 0xff).unwrap_or(0);
    Noted {
        state: match word & STATE_MASK {
            1 => State::ShuttingDown,
            2 => State::Done,
            3 => State::SourceFailed,
            4 => State::SinkFailed,
            _ => State::Running,
        },
        urgent: (word & URGENT != 0).then_some(byte),
        copies: word & COPIES != 0,
        in_pipe: pipe.map(|pipe| pipe.held().unwrap_or(0)),
    }
}

/// Asks the kernel about a leg's socket; `connected` is whether it has connected, and not been
/// accepted: then the kernel counts its SYN.
///
/// The leg is alive: it is asked until nothing has come or been acknowledged between two answers.
pub(crate) fn figures(fd: BorrowedFd<'_>, connected: bool) -> std::io::Result<Figures> {
    // include/net/tcp_states.h
    const SYN_RECV: u8 = 3;
    const MOST_QUESTIONS: usize = 100;
    let changing = |info: &TcpInfo| (info.state, info.acknowledged_bytes, info.received_bytes);
    let mut info = tcp_info::tcp_info(fd)?;
    let mut counted = (0, 0);
    for _ in 0..MOST_QUESTIONS {
        let before = changing(&info);
        counted = match info.state {
            SYN_RECV => in_handshake(fd, &info),
            _ => (
                stream::unread(fd)? as u64,
                stream::unacknowledged(fd)? as u64,
            ),
        };
        info = tcp_info::tcp_info(fd)?;
        if changing(&info) == before {
            break;
        }
    }
    let (unread, unacknowledged) = counted;
    let written = info.acknowledged_bytes + unacknowledged;
    let stage = |fin_sent, fin_received| Stage::Connected {
        fin_sent,
        fin_received,
    };
    let mut polled = [PollFd::new(fd, PollFlags::empty())];
    poll(&mut polled, PollTimeout::ZERO)?;
    let events = polled[0].revents().unwrap_or(PollFlags::empty());
    Ok(Figures {
        stage: match info.state {
            7 => Stage::Closed,
            4 | 5 => stage(true, false),
            8 => stage(false, true),
            6 | 9 | 11 => stage(true, true),
            _ => stage(false, false),
        },
        error_waits: events.contains(PollFlags::POLLERR),
        written: written.saturating_sub(u64::from(connected)),
        unacknowledged,
        read: info.received_bytes.saturating_sub(unread),
        unread,
    })
}

/// Gives how much is unread, and how much unacknowledged, of a socket whose client has sent data in its
/// SYN and nothing since (RFC 7413). The kernel says of neither that there is any (tcp_ioctl,
/// net/ipv4/tcp.c), but it gives the data, which is no more than one segment, and counts what it sends.
fn in_handshake(fd: BorrowedFd<'_>, info: &TcpInfo) -> (u64, u64) {
    let mut segment = vec![0; usize::from(u16::MAX)];
    let unread = stream::peek(fd, &mut segment).unwrap_or(0);
    let sent = info.sent_bytes.unwrap_or(0) - info.retransmitted_bytes.unwrap_or(0);
    (unread as u64, sent + u64::from(info.unsent))
}

impl Slot {
    pub(super) fn identity(&self) -> Identity {
        let ports = self.load(PORTS);
        let port = |shift: u32| u16::try_from(ports >> shift & 0xffff).unwrap_or(0);
        let parties = |first, port| {
            let words = [self.load(first), self.load(first + 1)];
            address(words, port, ports & IS_V6 != 0)
        };
        Identity {
            id: self.load(ID),
            client: parties(CLIENT, port(0)),
            server: parties(SERVER, port(16)),
            handshake: match ports & EARLY {
                0 => HandshakeMode::EndToEnd,
                _ => HandshakeMode::Early,
            },
            accepted: Duration::from_nanos(self.load(ACCEPTED)),
        }
    }
}

/// The two numbers of a word, that in the lower half first.
fn halves(word: u64) -> [RawFd; 2] {
    [word & u64::from(u32::MAX), word >> 32].map(|half| RawFd::try_from(half).unwrap_or(-1))
}
