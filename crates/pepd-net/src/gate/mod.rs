//! The gate: new connections are split only while it is open.
//!
//! It is an element with a timeout in either of two sets of pepd's table. The daemon renews them in
//! turn while all is well, and a daemon that is paused, hung, killed or out of descriptors lets
//! them expire: from then on connections are routed. So the renewal must not itself need what may
//! have run out, a descriptor or a process; it is one message on a socket that was opened at start.
//!
//! What is needed of nf_tables is two message types with six attributes ([`elements`]), on a socket of
//! its own ([`sets`]). What is held while a link is away, and what is
//! routed because splitting does not pay, is switched in the same way ([`away`], [`choices`]), and so is what
//! belongs to connections that move to other boxes ([`moving`]).

pub(crate) mod away;
pub(crate) mod choices;
mod elements;
pub(crate) mod moving;
mod sets;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use pepd_packet::Source;

use crate::nft::names::{DynamicSet, GATES};
use crate::prefix::Family;
pub use sets::GateError;
use sets::{BRIEF, Sets, TCP};

/// A handle on the gate and on the sets of sources that are over their limit.
///
/// It works on the table that [`install`](crate::install()) made, whichever process did so,
/// and may be shared between threads.
#[derive(Debug)]
pub struct Gate {
    sets: Sets,
    /// Whether both sets had their element when it was last told anything.
    is_open: AtomicBool,
    /// Whether it is the second set that is renewed next.
    is_seconds_turn: AtomicBool,
}

impl Gate {
    /// Opens the netlink socket. It needs no table yet.
    ///
    /// # Errors
    ///
    /// [`GateError`] if there is no such socket.
    pub fn open() -> Result<Gate, GateError> {
        Ok(Gate {
            sets: Sets::open()?,
            is_open: AtomicBool::new(false),
            is_seconds_turn: AtomicBool::new(false),
        })
    }

    /// Opens the gate for `ttl`, or keeps it open for `ttl` from now.
    ///
    /// # Errors
    ///
    /// [`GateError`]; ENOENT means that the table is gone.
    pub fn renew(&self, ttl: Duration) -> Result<(), GateError> {
        let renewed = if self.is_open.load(Relaxed) {
            let is_seconds_turn = self.is_seconds_turn.fetch_xor(true, Relaxed);
            self.sets
                .put(&[(GATES[usize::from(is_seconds_turn)], TCP.to_vec())], ttl)
        } else {
            GATES
                .into_iter()
                .try_for_each(|set| self.sets.put(&[(set, TCP.to_vec())], ttl))
        };
        self.is_open.store(renewed.is_ok(), Relaxed);
        renewed
    }

    /// Says that somebody reads the SYNs that are held, for `ttl` from now: those that repeat them
    /// are held, too, whether the gate is open or closed.
    ///
    /// # Errors
    ///
    /// [`GateError`]; ENOENT means that the table is gone.
    pub fn attend(&self, ttl: Duration) -> Result<(), GateError> {
        self.sets.put(&[(DynamicSet::Readers, TCP.to_vec())], ttl)
    }

    /// Closes the gate. It is no error if it is closed already, or if there is no table.
    ///
    /// # Errors
    ///
    /// [`GateError`].
    pub fn close(&self) -> Result<(), GateError> {
        self.is_open.store(false, Relaxed);
        GATES
            .into_iter()
            .try_for_each(|set| self.sets.take(set, &TCP))
    }

    /// Routes new connections from `sources` for `ttl` instead of splitting them. Each call starts
    /// the time again.
    ///
    /// # Errors
    ///
    /// [`GateError`]; ENOENT means that the table is gone, ENFILE that there are more than
    /// [`FULL_SOURCES`](crate::FULL_SOURCES).
    pub fn shut_out(&self, sources: &[Source], ttl: Duration) -> Result<(), GateError> {
        let elements: Vec<_> = sources.iter().copied().map(source_key).collect();
        self.sets.put(&elements, ttl)
    }

    /// Splits new connections from `source` again. It is no error if it was not shut out.
    ///
    /// # Errors
    ///
    /// [`GateError`].
    pub fn let_in(&self, source: Source) -> Result<(), GateError> {
        let (set, key) = source_key(source);
        self.sets.take(set, &key)
    }

    /// Routes new connections between these pairs of source and destination for `ttl` instead of
    /// splitting them. Addresses of two families are no pair, and are passed over.
    ///
    /// # Errors
    ///
    /// [`GateError`]; ENOENT means that the table is gone, ENFILE that there are more than
    /// [`ASYMMETRIC_ROUTES`](crate::ASYMMETRIC_ROUTES).
    pub fn route_asymmetric(
        &self,
        pairs: &[(IpAddr, IpAddr)],
        ttl: Duration,
    ) -> Result<(), GateError> {
        let elements: Vec<_> = pairs.iter().copied().filter_map(pair_key).collect();
        self.sets.put(&elements, ttl)
    }

    /// Routes new connections to these destinations for `ttl` instead of splitting them.
    ///
    /// # Errors
    ///
    /// [`GateError`]; ENOENT means that the table is gone or holds no SYNs, ENFILE that there are
    /// more than [`FLOODED_DESTINATIONS`](crate::FLOODED_DESTINATIONS).
    pub fn route_flooded(&self, destinations: &[IpAddr], ttl: Duration) -> Result<(), GateError> {
        let key = |to: &IpAddr| address_key(to.to_canonical(), DynamicSet::FloodedDestinations);
        let elements: Vec<_> = destinations.iter().map(key).collect();
        self.sets.put(&elements, ttl)
    }

    /// Splits new connections between these pairs of addresses again. It is no error if they were
    /// not routed.
    ///
    /// # Errors
    ///
    /// [`GateError`].
    pub fn split_again(&self, pairs: &[(IpAddr, IpAddr)]) -> Result<(), GateError> {
        let elements: Vec<_> = pairs.iter().copied().filter_map(pair_key).collect();
        self.sets
            .change_all("delete from", &elements, |changes, set, key| {
                // Deleting alone fails where it has expired.
                changes.add(set.name(), key, BRIEF);
                changes.delete(set.name(), key);
            })
    }

    /// Forgets which clients have been answered and have not finished their handshake: what they send
    /// is no more taken for the acknowledgement of a SYN cookie. It is no error if there is no table.
    ///
    /// # Errors
    ///
    /// [`GateError`].
    pub fn forget_half_open(&self) -> Result<(), GateError> {
        Family::ALL.into_iter().try_for_each(|family| {
            let set = DynamicSet::HalfOpen(family);
            self.sets
                .delete_from(set, |changes| changes.flush(set.name()))
        })
    }
}

/// Gives the set and key for a source, as the plan's prefix has it.
fn source_key(source: Source) -> (DynamicSet, Vec<u8>) {
    address_key(source.network(), DynamicSet::FullSources)
}

/// Gives the set of the address's family, and the key.
fn address_key(address: IpAddr, set: impl Fn(Family) -> DynamicSet) -> (DynamicSet, Vec<u8>) {
    let key = match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    (set(Family::of(address)), key)
}

/// Gives the set and key for a pair of addresses; none if they are of two families.
fn pair_key((source, destination): (IpAddr, IpAddr)) -> Option<(DynamicSet, Vec<u8>)> {
    let (family, key) = match (source.to_canonical(), destination.to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => (Family::V4, [from.octets(), to.octets()].concat()),
        (IpAddr::V6(from), IpAddr::V6(to)) => (Family::V6, [from.octets(), to.octets()].concat()),
        _ => return None,
    };
    Some((DynamicSet::AsymmetricRoutes(family), key))
}
