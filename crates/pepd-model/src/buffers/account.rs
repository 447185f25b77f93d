//! What all connections together are counted with, against what they may hold.

use super::{LEAST, Memory};

/// What a connection is counted with at least, however little it holds: both buffers of a direction,
/// as small as they are when memory is short, each with the segment that was the last to fit. It may hold
/// that at any moment, before it is sampled again. (A limit of 2 GiB has room for 5,461 connections.)
pub const RESERVE: u64 = 3 * LEAST;

/// What a worker uses beside its connections' sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerUse {
    /// Bytes in pipes: each counts as full that is lent.
    pub pipes: u64,
    /// Connections in which something happens.
    pub active: u64,
}

/// The sum over all connections, and whether there is room for another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    counted: u64,
    held: u64,
    active: u64,
    full: bool,
}

impl Account {
    /// What connections and pipes are counted with, in bytes.
    pub const fn counted(&self) -> u64 {
        self.counted
    }

    /// Whether there is no room for another connection.
    pub const fn is_full(&self) -> bool {
        self.full
    }

    /// Returns how it stands against the `limit`, within which each of the `connections` has its
    /// reserve; or, without one, what they hold against `most` bytes, which they share with nobody's
    /// promise.
    pub fn memory(&self, limit: Option<u64>, most: u64, connections: u64) -> Memory {
        let (most, held) = match limit {
            Some(limit) => (limit.min(most), self.counted),
            None => (most, self.held),
        };
        Memory {
            most,
            held,
            active: self.active,
            connections,
        }
    }

    /// Takes a connection in, and tells whether that changed whether there is room within `limit`.
    pub fn enter(&mut self, limit: Option<u64>) -> bool {
        self.held += RESERVE;
        self.counted += RESERVE;
        self.judge(limit)
    }

    /// Lets one go that held so much.
    pub fn leave(&mut self, held: u64, limit: Option<u64>) -> bool {
        self.held = self.held.saturating_sub(held);
        self.counted = self.counted.saturating_sub(held.max(RESERVE));
        self.judge(limit)
    }

    /// Notes that one holds `after` bytes, and no longer `before`.
    pub fn change(&mut self, before: u64, after: u64, limit: Option<u64>) -> bool {
        self.held = self.held.saturating_sub(before) + after;
        let before = before.max(RESERVE);
        self.counted = self.counted.saturating_sub(before) + after.max(RESERVE);
        self.judge(limit)
    }

    /// Notes what a worker uses.
    pub fn change_use(&mut self, before: WorkerUse, after: WorkerUse, limit: Option<u64>) -> bool {
        self.active = self.active.saturating_sub(before.active) + after.active;
        self.held = self.held.saturating_sub(before.pipes) + after.pipes;
        self.counted = self.counted.saturating_sub(before.pipes) + after.pipes;
        self.judge(limit)
    }

    /// Judges by another limit. It is full where a new connection would not fit; and no longer a
    /// sixteenth below that, so that the capture is not told twice per connection.
    pub fn judge(&mut self, limit: Option<u64>) -> bool {
        let with_another = self.counted.saturating_add(RESERVE);
        let full = limit.is_some_and(|limit| {
            let most = if self.full { limit - limit / 16 } else { limit };
            with_another > most
        });
        std::mem::replace(&mut self.full, full) != full
    }
}
