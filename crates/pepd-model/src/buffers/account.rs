//! What all connections together are counted with, against what they may hold.

use super::{BEYOND, LEAST, LEAST_SENT, Memory};

/// What a connection is counted with at least: the four buffers of its two legs, as small as they are
/// when memory is short. (A limit of 2 GiB has room for 2,730 connections beside their pipes.)
pub const RESERVE: u64 = 2 * (LEAST + LEAST_SENT + 2 * BEYOND);

/// What of the limit is for pipes, and for connections that are on their way when it is told that there
/// is no room: an eighth, of which each pipe that is lent has its bytes first.
const APART: u64 = 8;

/// The sum over all connections, and whether there is room for another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    sum: Holds,
    pipes: u64,
    full: bool,
}

/// What one connection holds, or all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// The bytes that are in its sockets.
    pub held: u64,
    /// The bytes that may be, as far as pepd keeps them small; never less than [`RESERVE`].
    pub counted: u64,
}

impl Holds {
    /// What a new one is counted with.
    pub const NEW: Self = Self {
        held: 0,
        counted: RESERVE,
    };
}

impl Account {
    /// What connections and pipes are counted with, in bytes.
    pub const fn counted(&self) -> u64 {
        self.sum.counted + self.pipes
    }

    /// Whether there is no room for another connection.
    pub const fn is_full(&self) -> bool {
        self.full
    }

    /// Returns how it stands against the `limit`; or, without one, what is held against `most` bytes,
    /// which are nobody's promise.
    pub fn memory(&self, limit: Option<u64>, most: u64) -> Memory {
        match limit {
            Some(limit) => Memory {
                most: budget(limit),
                used: self.sum.counted,
                promised: true,
            },
            None => Memory {
                most,
                used: self.sum.held + self.pipes,
                promised: false,
            },
        }
    }

    /// Takes a connection in, and tells whether that changed whether there is room within `limit`.
    pub fn enter(&mut self, limit: Option<u64>) -> bool {
        self.change(Holds::default(), Holds::NEW, limit)
    }

    /// Lets one go.
    pub fn leave(&mut self, holds: Holds, limit: Option<u64>) -> bool {
        self.change(holds, Holds::default(), limit)
    }

    /// Notes what one holds `after`, and no longer `before`.
    pub fn change(&mut self, before: Holds, after: Holds, limit: Option<u64>) -> bool {
        let change = |sum: u64, before, after| sum.saturating_sub(before) + after;
        self.sum = Holds {
            held: change(self.sum.held, before.held, after.held),
            counted: change(self.sum.counted, before.counted, after.counted),
        };
        self.judge(limit)
    }

    /// Returns whether what one is counted with may grow by so many bytes. Nothing but its buffers
    /// grows by leave: so all that are given leave stay within the limit together.
    pub fn has_room(&self, more: u64, limit: Option<u64>) -> bool {
        limit.is_none_or(|limit| self.sum.counted.saturating_add(more) <= budget(limit))
    }

    /// Notes the bytes of the pipes that a worker has lent.
    pub fn change_pipes(&mut self, before: u64, after: u64, limit: Option<u64>) -> bool {
        self.pipes = self.pipes.saturating_sub(before) + after;
        self.judge(limit)
    }

    /// Judges by another limit. It is full where a new connection would not fit; and no longer a
    /// sixteenth below that, so that the capture is not told twice per connection.
    pub fn judge(&mut self, limit: Option<u64>) -> bool {
        let full = limit.is_some_and(|limit| {
            let most = budget(limit);
            let most = if self.full { most - most / 16 } else { most };
            let pipes = self.pipes.saturating_sub(limit / APART);
            self.sum.counted.saturating_add(pipes + RESERVE) > most
        });
        std::mem::replace(&mut self.full, full) != full
    }
}

/// Returns what the sockets may hold of a limit.
const fn budget(limit: u64) -> u64 {
    limit - limit / APART
}
