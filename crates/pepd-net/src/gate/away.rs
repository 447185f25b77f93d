//! Packets that are held while a link is gone.

use std::time::Duration;

use super::{Gate, GateError, TCP};
use crate::nft::names::DynamicSet;

/// A handle on the set that says whether packets go to the queue in which they are held.
#[derive(Debug)]
pub struct Away(Gate);

impl Away {
    /// Opens the netlink socket. It needs no table yet.
    ///
    /// # Errors
    ///
    /// [`GateError`] if there is no such socket.
    pub fn open() -> Result<Self, GateError> {
        Gate::open().map(Self)
    }

    /// Has packets go to the queue for `ttl` from now.
    ///
    /// # Errors
    ///
    /// [`GateError`]; ENOENT means that the table is gone, or holds none.
    pub fn hold(&self, ttl: Duration) -> Result<(), GateError> {
        self.0.put(&[(DynamicSet::Away, TCP.to_vec())], ttl)
    }

    /// Has packets pass. It is no error if they did.
    ///
    /// # Errors
    ///
    /// [`GateError`].
    pub fn pass(&self) -> Result<(), GateError> {
        self.0.take(DynamicSet::Away, &TCP)
    }
}
