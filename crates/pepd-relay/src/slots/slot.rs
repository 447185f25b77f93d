//! One connection's notes.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use pepd_sys::pipe::Pipe;
use pepd_sys::sockopt;
use pepd_telemetry::HandshakeMode;

use super::Slots;
use super::address::words;
use super::layout::{
    ACCEPTED, BROUGHT, CLIENT, CLIENT_COOKIE, COPIES, EARLY, FAILURES, FREE, HAD_FIN, ID, IS_V6,
    MOVE, PLACE_SHIFT, PORTS, RELAYED, SERVER, SOCKETS, STATE, STATE_MASK, UPSTREAM_COOKIE, URGENT,
    URGENT_SHIFT, WAY_INODE, WAY_PIPE, WAY_STATE, WAYS,
};
use crate::connection::leg::Failure;
use crate::connection::memo::Memo;
use crate::connection::state::{State, Way};

/// What a connection is, for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Its id in the table of flows.
    pub(crate) id: u64,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) handshake: HandshakeMode,
    /// When it was accepted (CLOCK_MONOTONIC).
    pub(crate) accepted: Duration,
}

/// What a connection has come with from another box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Came {
    /// The bytes that its sockets were given with it, to be sent: nobody has read them here.
    pub(crate) brought: [u64; 2],
    /// Whether the FIN of each leg's peer had come.
    pub(crate) had_fin: [bool; 2],
    /// The move, and the connection's place in it.
    pub(crate) with: [u64; 2],
    pub(crate) place: u16,
}

/// The place of one connection's notes, free again when dropped: before its sockets are closed.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<Slots>,
    /// None where all were taken: if this process dies, the connection does.
    index: Option<u32>,
}

impl Slot {
    /// Begins the notes of a connection that has both its legs, the client's first; of one that has come from
    /// another box with what it `came` with.
    pub(crate) fn begin(
        slots: &Arc<Slots>,
        identity: &Identity,
        legs: [BorrowedFd<'_>; 2],
        came: Option<&Came>,
    ) -> Self {
        let slot = Self {
            slots: Arc::clone(slots),
            index: slots.next_free(),
        };
        slot.store(SOCKETS, halves(legs[0].as_raw_fd(), legs[1].as_raw_fd()));
        for (word, leg) in [CLIENT_COOKIE, UPSTREAM_COOKIE].into_iter().zip(legs) {
            // A socket has one. Where it does not say, nobody will take the connection over.
            slot.store(word, sockopt::cookie(leg).unwrap_or(0));
        }
        for (leg, way) in WAYS.into_iter().enumerate() {
            let had_fin = came.is_some_and(|came| came.had_fin[leg]);
            let flags = if had_fin { HAD_FIN } else { 0 };
            slot.store(way + WAY_STATE, code(State::Running) | flags);
            slot.store(way + WAY_PIPE, 0);
            let brought = came.map_or(0, |came| {
                let place = u64::from(came.place) << PLACE_SHIFT;
                (came.brought[leg] + 1) | place
            });
            slot.store(BROUGHT[leg], brought);
            slot.store(MOVE + leg, came.map_or(0, |came| came.with[leg]));
        }
        slot.store(FAILURES, 0);
        slot.identify(identity);
        slot.set_state(RELAYED);
        slot
    }

    /// Returns what it came with, if it has come from another box.
    pub(super) fn came(&self) -> Option<Came> {
        let bytes = |word| (self.load(word) & ((1 << PLACE_SHIFT) - 1)).checked_sub(1);
        let [client, upstream] = BROUGHT.map(bytes);
        let place = self.load(BROUGHT[0]) >> PLACE_SHIFT;
        let had_fin = WAYS.map(|way| self.load(way + WAY_STATE) & HAD_FIN != 0);
        Some(Came {
            brought: [client?, upstream?],
            had_fin,
            with: [self.load(MOVE), self.load(MOVE + 1)],
            place: u16::try_from(place).unwrap_or(u16::MAX),
        })
    }

    /// Notes that another box may serve it from now on, or that none does: if this process dies it is closed
    /// without a word in the first case.
    pub(crate) fn note_given(&self, given: bool) {
        self.set_state(if given { FREE } else { RELAYED });
    }

    /// Takes over the notes of a connection that another process has left.
    pub(super) fn found(slots: &Arc<Slots>, index: u32) -> Self {
        Self {
            slots: Arc::clone(slots),
            index: Some(index),
        }
    }

    /// Returns which it is among all of them.
    pub(crate) fn index(&self) -> Option<u32> {
        self.index
    }

    fn identify(&self, identity: &Identity) {
        let nanoseconds = u64::try_from(identity.accepted.as_nanos()).unwrap_or(u64::MAX);
        self.store(ACCEPTED, nanoseconds);
        self.store(ID, identity.id);
        for (first, address) in [(CLIENT, identity.client), (SERVER, identity.server)] {
            for (word, value) in (first..).zip(words(address.ip())) {
                self.store(word, value);
            }
        }
        let ports = u64::from(identity.client.port()) | u64::from(identity.server.port()) << 16;
        let family = if identity.client.is_ipv6() { IS_V6 } else { 0 };
        let handshake = match identity.handshake {
            HandshakeMode::Early => EARLY,
            HandshakeMode::EndToEnd => 0,
        };
        self.store(PORTS, ports | family | handshake);
    }

    /// All that was stored before is there when this is.
    fn set_state(&self, state: u64) {
        if let Some(word) = self.index.and_then(|index| self.slots.word(index, STATE)) {
            word.store(state, Release);
        }
    }

    pub(super) fn load(&self, word: usize) -> u64 {
        let word = self.index.and_then(|index| self.slots.word(index, word));
        word.map_or(0, |word| word.load(Relaxed))
    }

    fn store(&self, word: usize, value: u64) {
        if let Some(word) = self.index.and_then(|index| self.slots.word(index, word)) {
            word.store(value, Release);
        }
    }

    /// Changes the bits of `mask` in a direction's first word. Nobody else writes it.
    fn change(&self, way: Way, mask: u64, bits: u64) {
        let word = WAYS[number(way)] + WAY_STATE;
        if let Some(word) = self.index.and_then(|index| self.slots.word(index, word)) {
            word.store(word.load(Relaxed) & !mask | bits, Release);
        }
    }
}

impl Memo for Slot {
    type Pipe = Pipe;

    fn note_pipe(&self, way: Way, pipe: Option<&Pipe>) {
        let first = WAYS[number(way)];
        let ends = pipe.map_or(0, |pipe| {
            self.store(first + WAY_INODE, pipe.inode());
            let (read, write) = pipe.ends();
            halves(read, write)
        });
        self.store(first + WAY_PIPE, ends);
    }

    fn note_urgent(&self, way: Way, byte: Option<u8>) {
        let bits = byte.map_or(0, |byte| URGENT | u64::from(byte) << URGENT_SHIFT);
        self.change(way, URGENT | 0xff << URGENT_SHIFT, bits);
    }

    fn note_copying(&self, way: Way, copies: bool) {
        self.change(way, COPIES, if copies { COPIES } else { 0 });
    }

    fn note_state(&self, way: Way, state: State) {
        self.change(way, STATE_MASK, code(state));
    }

    fn note_failures(&self, failures: [Option<Failure>; 2]) {
        let [client, upstream] = failures.map(|failure| failure.map_or(0, |failure| failure.0));
        self.store(FAILURES, halves(client, upstream));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.set_state(FREE);
        if let Some(index) = self.index {
            self.slots.free().again.push(index);
        }
    }
}

fn number(way: Way) -> usize {
    match way {
        Way::Up => 0,
        Way::Down => 1,
    }
}

/// Two numbers that are not negative in one word, the first in the lower half.
fn halves(low: RawFd, high: RawFd) -> u64 {
    u64::from(low.unsigned_abs()) | u64::from(high.unsigned_abs()) << 32
}

fn code(state: State) -> u64 {
    match state {
        State::Running => 0,
        State::ShuttingDown => 1,
        State::Done => 2,
        State::SourceFailed => 3,
        State::SinkFailed => 4,
    }
}
