//! The gate: new connections are split only while it is open.
//!
//! It is an element with a timeout in either of two sets of pepd's table. The daemon renews them in
//! turn while all is well, and a daemon that is paused, hung, killed or out of descriptors lets
//! them expire: from then on connections are routed. So the renewal must not itself need what may
//! have run out, a descriptor or a process; it is one message on a socket that was opened at start.
//!
//! What is needed of nf_tables is two message types with six attributes ([`elements`]).

mod away;
mod elements;

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pepd_packet::Source;
use pepd_sys::nfnetlink::{Reply, Socket, replies};

use crate::error::{Classify, Kind};
use crate::netlink::NetlinkError;
use crate::nft::names::{DynamicSet, GATES};
use crate::prefix::Family;
pub use away::Away;
use elements::Changes;

/// A handle on the gate and on the sets of sources that are over their limit.
///
/// It works on the table that [`install`](crate::install()) made, whichever process did so,
/// and may be shared between threads.
#[derive(Debug)]
pub struct Gate {
    /// The socket and the last sequence number; one request at a time, so that each finds
    /// its own answer.
    inner: Mutex<(Socket, u32)>,
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
        let socket = Socket::open()
            .map_err(|source| GateError::new("cannot open a netfilter socket", source))?;
        Ok(Gate {
            inner: Mutex::new((socket, 0)),
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
            self.put(&[(GATES[usize::from(is_seconds_turn)], TCP.to_vec())], ttl)
        } else {
            GATES
                .into_iter()
                .try_for_each(|set| self.put(&[(set, TCP.to_vec())], ttl))
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
        self.put(&[(DynamicSet::Readers, TCP.to_vec())], ttl)
    }

    /// Closes the gate. It is no error if it is closed already, or if there is no table.
    ///
    /// # Errors
    ///
    /// [`GateError`].
    pub fn close(&self) -> Result<(), GateError> {
        self.is_open.store(false, Relaxed);
        GATES.into_iter().try_for_each(|set| self.take(set, &TCP))
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
        self.put(&elements, ttl)
    }

    /// Splits new connections from `source` again. It is no error if it was not shut out.
    ///
    /// # Errors
    ///
    /// [`GateError`].
    pub fn let_in(&self, source: Source) -> Result<(), GateError> {
        let (set, key) = source_key(source);
        self.take(set, &key)
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
        self.put(&elements, ttl)
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
        self.put(&elements, ttl)
    }

    /// Splits new connections between these pairs of addresses again. It is no error if they were
    /// not routed.
    ///
    /// # Errors
    ///
    /// [`GateError`].
    pub fn split_again(&self, pairs: &[(IpAddr, IpAddr)]) -> Result<(), GateError> {
        let elements: Vec<_> = pairs.iter().copied().filter_map(pair_key).collect();
        self.change_all("delete from", &elements, |changes, set, key| {
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
            self.delete_from(set, |changes| changes.flush(set.name()))
        })
    }

    /// Adds each element, deletes it and adds it with its new time, in one transaction. Adding
    /// alone would do nothing: kernels before 6.12 keep the timeout of an element that is
    /// there, and deleting alone fails where it is not.
    fn put(&self, elements: &[(DynamicSet, Vec<u8>)], ttl: Duration) -> Result<(), GateError> {
        self.change_all("add to", elements, |changes, set, key| {
            changes.add(set.name(), key, ttl);
            changes.delete(set.name(), key);
            changes.add(set.name(), key, ttl);
        })
    }

    /// Changes elements, so many in one transaction.
    fn change_all(
        &self,
        what: &str,
        elements: &[(DynamicSet, Vec<u8>)],
        mut change: impl FnMut(&mut Changes, DynamicSet, &[u8]),
    ) -> Result<(), GateError> {
        for some in elements.chunks(ELEMENTS_AT_ONCE) {
            self.transact(|changes| {
                for (set, key) in some {
                    change(changes, *set, key);
                }
            })
            .map_err(|source| {
                let set = some.first().map_or("", |(set, _)| set.name());
                GateError::new(format!("cannot {what} the nft set {set}"), source)
            })?;
        }
        Ok(())
    }

    fn take(&self, set: DynamicSet, key: &[u8]) -> Result<(), GateError> {
        self.delete_from(set, |changes| changes.delete(set.name(), key))
    }

    /// Deletes what may be gone already.
    fn delete_from(
        &self,
        set: DynamicSet,
        delete: impl FnOnce(&mut Changes),
    ) -> Result<(), GateError> {
        match self.transact(delete) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result.map_err(|source| {
                GateError::new(format!("cannot delete from the nft set {set}"), source)
            }),
        }
    }

    fn transact(&self, fill: impl FnOnce(&mut Changes)) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (socket, sequence) = &mut *inner;
        let mut changes = Changes::begin(sequence.wrapping_add(1));
        fill(&mut changes);
        let batch = changes.end();
        let expected = sequence.wrapping_add(1)..=batch.last_sequence;
        *sequence = batch.last_sequence;
        socket.send(&batch.bytes)?;
        receive(socket, batch.last_change, |sequence| {
            expected.contains(&sequence)
        })
    }
}

/// A gate that could not be opened, renewed or closed, or a set that could not be changed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct GateError(NetlinkError);

impl GateError {
    fn new(what: impl Into<String>, source: io::Error) -> Self {
        GateError(NetlinkError::new(what, source))
    }
}

impl Classify for GateError {
    fn kind(&self) -> Kind {
        self.0.kind()
    }
}

/// Elements that are changed in one transaction: the socket's buffer has room for the answers to
/// three messages about each.
const ELEMENTS_AT_ONCE: usize = 32;

/// The time that an element gets which is deleted at once.
const BRIEF: Duration = Duration::from_secs(1);

/// The key of the gate's element: IPPROTO_TCP, as `meta l4proto` has it.
const TCP: [u8; 1] = [6];

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

/// Reads answers until the batch's last change is acknowledged or anything in it is refused.
///
/// The kernel handles the whole batch within send(2), so the answers are there already and
/// nothing is waited for. What belongs to an earlier request (one that was given up on) is
/// skipped.
fn receive(socket: &Socket, last: u32, is_ours: impl Fn(u32) -> bool) -> io::Result<()> {
    let mut outcome: Option<io::Result<()>> = None;
    let mut buffer = [0; 8192];
    loop {
        let len = match socket.receive(&mut buffer) {
            Ok(len) => len,
            // Everything has been read, including the answers to what followed a refusal.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        };
        for reply in replies(buffer.get(..len).unwrap_or_default()) {
            match reply {
                Reply::Refused { sequence, errno } if is_ours(sequence) => {
                    // The first refusal is the cause.
                    if !matches!(outcome, Some(Err(_))) {
                        outcome = Some(Err(io::Error::from_raw_os_error(errno)));
                    }
                }
                Reply::Done { sequence } if sequence == last && outcome.is_none() => {
                    outcome = Some(Ok(()));
                }
                Reply::Refused { .. } | Reply::Done { .. } => {}
            }
        }
    }
    outcome.unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::ENOMSG)))
}
