//! The handshakes that clients have begun and not ended, at the listeners.

use std::collections::HashMap;
use std::time::Instant;

use pepd_packet::FourTuple;

/// The room in the queues of the listeners, which the SYNs that go on to them share.
///
/// A listener whose queue is full answers with SYN cookies (RFC 4987, section 3.6): the client's
/// options are lost, and where the kernel has no cookies its SYN is dropped. Therefore no more SYNs
/// go on to the listeners than their queues have room for. A place there is free again when the
/// client has been accepted, or when the listener has given it up: not when its upstream leg is
/// closed.
#[derive(Debug)]
pub(super) struct HalfOpen {
    room: usize,
    /// Those that have no place in the table (any more), and until when a listener may keep them.
    others: HashMap<FourTuple, Instant>,
}

impl HalfOpen {
    /// Makes one without a bound.
    pub(super) fn new() -> Self {
        Self {
            room: usize::MAX,
            others: HashMap::new(),
        }
    }

    pub(super) fn set_room(&mut self, room: usize) {
        self.room = room;
    }

    /// Returns whether one more may go on to a listener, where `placed` in the table may do so.
    pub(super) fn has_room(&self, placed: usize) -> bool {
        placed + self.others.len() < self.room
    }

    /// Returns whether a listener has none but those of the table.
    pub(super) fn is_empty(&self) -> bool {
        self.others.is_empty()
    }

    /// Notes that a listener may keep a handshake until then, though its flow has no place.
    pub(super) fn note(&mut self, flow: FourTuple, until: Instant) {
        self.others.insert(flow, until);
    }

    /// Notes that a client has ended its handshake.
    pub(super) fn ended(&mut self, flow: FourTuple) {
        if !self.others.is_empty() {
            self.others.remove(&flow);
        }
    }

    /// Forgets those that the listeners have given up.
    pub(super) fn expire(&mut self, now: Instant) {
        self.others.retain(|_, until| *until > now);
    }
}
