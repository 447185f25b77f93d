//! What is held while a link is away: an element with a timeout, as the gate's, so that a daemon which
//! no longer reads the queue, or has gone, holds nothing for long.

use std::time::Duration;

use super::sets::{GateError, Sets, TCP};
use crate::nft::names::DynamicSet;

/// A handle on the set that says that a link is away, and that the ACKs and packets of
/// [`Action::HoldAcks`](crate::Action::HoldAcks) go into their queue.
///
/// It works on the table that [`install`](crate::install()) made, and may be shared between
/// threads.
#[derive(Debug)]
pub struct Away {
    sets: Sets,
}

impl Away {
    /// Opens a netlink socket of its own. It needs no table yet.
    ///
    /// # Errors
    ///
    /// [`GateError`] if there is no such socket.
    pub fn open() -> Result<Away, GateError> {
        Sets::open().map(|sets| Away { sets })
    }

    /// Has packets go into the queue for `ttl` from now. Each call starts the time again.
    ///
    /// # Errors
    ///
    /// [`GateError`]; ENOENT means that the table is gone, or holds no ACKs.
    pub fn hold(&self, ttl: Duration) -> Result<(), GateError> {
        self.sets.put(&[(DynamicSet::Away, TCP.to_vec())], ttl)
    }

    /// Lets packets pass again. It is no error if they do, or if there is no table.
    ///
    /// # Errors
    ///
    /// [`GateError`].
    pub fn pass(&self) -> Result<(), GateError> {
        self.sets.take(DynamicSet::Away, &TCP)
    }
}
