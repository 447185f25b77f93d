//! The elements of the table's dynamic sets, changed on one netlink socket.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pepd_sys::nfnetlink::{Reply, Socket, replies};

use super::elements::Changes;
use crate::error::{Classify, Kind};
use crate::netlink::NetlinkError;
use crate::nft::elements;
use crate::nft::names::DynamicSet;

/// Elements, by the set that they are in.
pub(super) type Elements = Vec<(DynamicSet, Vec<Vec<u8>>)>;

/// A socket on which elements are added and deleted.
#[derive(Debug)]
pub(super) struct Sets {
    /// The socket and the last sequence number; one request at a time, so that each finds
    /// its own answer.
    inner: Mutex<(Socket, u32)>,
}

impl Sets {
    /// Opens the netlink socket. It needs no table yet.
    pub(super) fn open() -> Result<Sets, GateError> {
        let socket = Socket::open()
            .map_err(|source| GateError::new("cannot open a netfilter socket", source))?;
        Ok(Sets {
            inner: Mutex::new((socket, 0)),
        })
    }

    /// Adds each element, deletes it and adds it with its new time, in one transaction. Adding
    /// alone would do nothing: kernels before 6.12 keep the timeout of an element that is
    /// there, and deleting alone fails where it is not.
    pub(super) fn put(
        &self,
        elements: &[(DynamicSet, Vec<u8>)],
        ttl: Duration,
    ) -> Result<(), GateError> {
        self.change_all("add to", elements, |changes, set, key| {
            changes.add(set.name(), key, ttl);
            changes.delete(set.name(), key);
            changes.add(set.name(), key, ttl);
        })
    }

    /// Changes elements, so many in one transaction.
    pub(super) fn change_all(
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

    /// Has a set of ranges hold these and no others, each given by its first key and its last, in one
    /// transaction.
    pub(super) fn replace(
        &self,
        set: DynamicSet,
        ranges: &[[Vec<u8>; 2]],
        ttl: Duration,
    ) -> Result<(), GateError> {
        let replaced = self.transact(|changes| {
            changes.flush(set.name());
            changes.add_ranges(set.name(), ranges, ttl);
        });
        replaced.map_err(|source| {
            GateError::new(
                format!("cannot replace what the nft set {set} holds"),
                source,
            )
        })
    }

    /// Has sets hold these elements, with their new time, or not hold them; all in one transaction, which is as
    /// long as one element's. As in [`Sets::put`]: what is not there cannot be deleted.
    pub(super) fn change_together(
        &self,
        put: &[(DynamicSet, Vec<Vec<u8>>)],
        take: &[(DynamicSet, Vec<Vec<u8>>)],
        ttl: Duration,
    ) -> Result<(), GateError> {
        let is_empty =
            |sets: &[(DynamicSet, Vec<Vec<u8>>)]| sets.iter().all(|(_, keys)| keys.is_empty());
        if is_empty(put) && is_empty(take) {
            return Ok(());
        }
        let changed = self.transact(|changes| {
            for (set, keys) in take {
                for _ in 0..TWINS {
                    changes.add_all(set.name(), keys, BRIEF);
                    changes.delete_all(set.name(), keys);
                }
            }
            for (set, keys) in put {
                changes.add_all(set.name(), keys, ttl);
                changes.delete_all(set.name(), keys);
                changes.add_all(set.name(), keys, ttl);
            }
        });
        changed.map_err(|source| {
            let sets = put.iter().chain(take).map(|(set, _)| set.name());
            let sets = sets.collect::<Vec<_>>().join(", ");
            GateError::new(format!("cannot change the nft sets {sets}"), source)
        })
    }

    /// Deletes an element that may be gone already, or whose table is.
    pub(super) fn take(&self, set: DynamicSet, key: &[u8]) -> Result<(), GateError> {
        self.delete_from(set, |changes| changes.delete(set.name(), key))
    }

    /// Deletes what may be gone already.
    pub(super) fn delete_from(
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

    /// Returns the keys that a set holds; none where there is no such set.
    pub(super) fn keys(&self, set: DynamicSet) -> Result<Vec<Vec<u8>>, GateError> {
        let name = set.name().to_owned();
        match elements::read([name]) {
            Ok(sets) => Ok(sets
                .values()
                .flat_map(|elements| elements.keys().map(<[u8]>::to_vec))
                .collect()),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
            Err(source) => Err(GateError::new(
                format!("cannot read what the nft set {set} holds"),
                source,
            )),
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

    /// Returns whether the table is gone.
    #[must_use]
    pub fn is_of_no_table(&self) -> bool {
        self.0.source.raw_os_error() == Some(libc::ENOENT)
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

/// How many elements of one key a set may have: where a rule updates an element just as that comes into force, or goes, the
/// kernel makes another one (nft_rhash_update, net/netfilter/nft_set_hash.c, finds none that is in force for both
/// generations), and deletes one at a time.
const TWINS: usize = 2;

/// The time that an element gets which is deleted at once.
pub(super) const BRIEF: Duration = Duration::from_secs(1);

/// The key of the elements that say that something is so, the gate's among them: IPPROTO_TCP, as `meta l4proto` has it.
pub(super) const TCP: [u8; 1] = [6];

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
