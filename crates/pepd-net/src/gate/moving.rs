//! What belongs to connections that move to another box: dropped while they are under way, and sent on to that
//! box afterwards. Elements with a timeout: a box that dies meanwhile drops nothing for long.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use pepd_packet::FourTuple;

use super::sets::{BRIEF, Elements, GateError, Sets};
use crate::nft::names::{DynamicSet, MOVED_SECONDS};
use crate::prefix::Family;

/// A handle on the sets of connections that move.
///
/// It works on the table that [`install`](crate::install()) made, for a request that has
/// [`neighbors`](crate::Request::neighbors). What is said here of a connection's packets is said of those of
/// both directions. Some hundred connections are one transaction, whose time does not depend on how many they are.
#[derive(Debug)]
pub struct Moving {
    sets: Sets,
    /// The number of neighbors.
    neighbors: usize,
}

impl Moving {
    /// Opens a netlink socket of its own, for so many neighbors. It needs no table yet.
    ///
    /// # Errors
    ///
    /// [`GateError`] if there is no such socket.
    pub fn open(neighbors: usize) -> Result<Moving, GateError> {
        Sets::open().map(|sets| Moving { sets, neighbors })
    }

    /// Has what is sent be dropped for `ttl` from now, and what comes, too, unless it is [sent on](Moving::send_on) or
    /// [held](Moving::expect).
    ///
    /// # Errors
    ///
    /// [`GateError`]; ENOENT means that the table is gone, or has no neighbors.
    pub fn freeze(&self, flows: &[FourTuple], ttl: Duration) -> Result<(), GateError> {
        self.put(flows, ttl, |flows| elements(flows, DynamicSet::Frozen))
    }

    /// Has what is sent be dropped no longer. It is no error if it is not, or if there is no table.
    ///
    /// # Errors
    ///
    /// [`GateError`].
    pub fn thaw(&self, flows: &[FourTuple]) -> Result<(), GateError> {
        self.take(flows, |flows| elements(flows, DynamicSet::Frozen))
    }

    /// Has what comes for these connections be held, for `ttl` from now, or dropped where nothing holds it
    /// ([`hold_coming`](crate::Request::hold_coming)): they are on their way here.
    ///
    /// # Errors
    ///
    /// As [`Moving::freeze`].
    pub fn expect(&self, flows: &[FourTuple], ttl: Duration) -> Result<(), GateError> {
        self.put(flows, ttl, |flows| elements(flows, DynamicSet::Coming))
    }

    /// Has it be held no longer. It is no error if it is not, or if there is no table.
    ///
    /// # Errors
    ///
    /// [`GateError`].
    pub fn dismiss(&self, flows: &[FourTuple]) -> Result<(), GateError> {
        self.take(flows, |flows| elements(flows, DynamicSet::Coming))
    }

    /// Has what comes for these connections be sent on to a neighbor, by its place in the request, and to no
    /// other, until nothing has come for three hours.
    ///
    /// # Errors
    ///
    /// As [`Moving::freeze`].
    pub fn send_on(&self, neighbor: usize, flows: &[FourTuple]) -> Result<(), GateError> {
        let ttl = Duration::from_secs(MOVED_SECONDS);
        self.some(flows, |flows| {
            let put = moved(neighbor, flows);
            self.sets.change_together(&put, &self.elsewhere(flows), ttl)
        })
    }

    /// Has what comes for these connections be sent on no longer. It is no error if it is not.
    ///
    /// # Errors
    ///
    /// [`GateError`].
    pub fn stay(&self, flows: &[FourTuple]) -> Result<(), GateError> {
        self.take(flows, |flows| self.elsewhere(flows))
    }

    /// Returns the connections of which what comes is sent on, each once and with the neighbor's place, whichever process
    /// has said so: its lower end is first, as the sets do not tell which is the client. None if there is no table.
    ///
    /// # Errors
    ///
    /// As [`Moving::freeze`].
    pub fn sent_on(&self) -> Result<BTreeMap<FourTuple, usize>, GateError> {
        let mut all = BTreeMap::new();
        for neighbor in 0..self.neighbors {
            for family in Family::ALL {
                let place = u8::try_from(neighbor).unwrap_or(u8::MAX);
                let set = DynamicSet::Moved(family, place);
                let keys = self.sets.keys(set)?;
                let flows = keys.iter().filter_map(|key| connection(family, key));
                all.extend(flows.map(|flow| (flow, neighbor)));
            }
        }
        Ok(all)
    }

    /// Returns the connections of which what comes is held or dropped, whichever process has said so, as [`Moving::sent_on`]
    /// has them.
    ///
    /// # Errors
    ///
    /// As [`Moving::freeze`].
    pub fn expected(&self) -> Result<BTreeSet<FourTuple>, GateError> {
        let mut all = BTreeSet::new();
        for family in Family::ALL {
            let keys = self.sets.keys(DynamicSet::Coming(family))?;
            all.extend(keys.iter().filter_map(|key| connection(family, key)));
        }
        Ok(all)
    }

    /// Does something for so many connections at a time that the socket has room for the request (net.core.wmem_default):
    /// a connection takes some 300 bytes for each set that it may be in.
    fn some(
        &self,
        flows: &[FourTuple],
        mut change: impl FnMut(&[FourTuple]) -> Result<(), GateError>,
    ) -> Result<(), GateError> {
        let at_once = 384 / (self.neighbors + 2);
        flows.chunks(at_once.max(1)).try_for_each(&mut change)
    }

    fn elsewhere(&self, flows: &[FourTuple]) -> Elements {
        (0..self.neighbors)
            .flat_map(|it| moved(it, flows))
            .collect()
    }

    /// Has sets hold these elements.
    fn put(
        &self,
        flows: &[FourTuple],
        ttl: Duration,
        elements: impl Fn(&[FourTuple]) -> Elements,
    ) -> Result<(), GateError> {
        self.some(flows, |flows| {
            self.sets.change_together(&elements(flows), &[], ttl)
        })
    }

    /// Has sets not hold these elements. It is no error if there is no table.
    fn take(
        &self,
        flows: &[FourTuple],
        elements: impl Fn(&[FourTuple]) -> Elements,
    ) -> Result<(), GateError> {
        self.some(flows, |flows| {
            match self.sets.change_together(&[], &elements(flows), BRIEF) {
                Err(error) if error.is_of_no_table() => Ok(()),
                changed => changed,
            }
        })
    }
}

fn moved(neighbor: usize, flows: &[FourTuple]) -> Elements {
    let neighbor = u8::try_from(neighbor).unwrap_or(u8::MAX);
    elements(flows, |family| DynamicSet::Moved(family, neighbor))
}

/// Gives the elements of both directions.
fn elements(flows: &[FourTuple], set: impl Fn(Family) -> DynamicSet) -> Elements {
    let of = |family: Family| {
        let flows = flows.iter();
        let flows = flows.filter(|flow| Family::of(flow.client.ip()) == family);
        let keys = flows.flat_map(|flow| {
            let (client, server) = (flow.client, flow.server);
            [key(client, server), key(server, client)]
        });
        (set(family), keys.collect::<Vec<_>>())
    };
    // A family without campuses has no set.
    let families = Family::ALL.iter().map(|family| of(*family));
    families.filter(|(_, keys)| !keys.is_empty()).collect()
}

/// Writes the key of what goes from one end to the other: each field takes whole words of 32 bits
/// (NFT_REG32_SIZE, include/net/netfilter/nf_tables.h).
fn key(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut key = Vec::new();
    for address in [from.ip(), to.ip()] {
        match address {
            IpAddr::V4(v4) => key.extend(v4.octets()),
            IpAddr::V6(v6) => key.extend(v6.octets()),
        }
    }
    for port in [from.port(), to.port()] {
        key.extend(port.to_be_bytes());
        key.extend([0, 0]);
    }
    key
}

/// Reads a key that [`key`] has written: of both directions' the one whose lower end comes first.
fn connection(family: Family, key: &[u8]) -> Option<FourTuple> {
    let (addresses, ports) = match family {
        Family::V4 => addresses::<4>(key),
        Family::V6 => addresses::<16>(key),
    }?;
    let &[a, b, _, _, c, d, _, _] = ports else {
        return None;
    };
    let from = SocketAddr::new(addresses[0], u16::from_be_bytes([a, b]));
    let to = SocketAddr::new(addresses[1], u16::from_be_bytes([c, d]));
    Some(FourTuple {
        client: from.min(to),
        server: from.max(to),
    })
}

/// Reads the two addresses that a key begins with; gives what comes after them, too.
fn addresses<const BYTES: usize>(key: &[u8]) -> Option<([IpAddr; 2], &[u8])>
where
    IpAddr: From<[u8; BYTES]>,
{
    let (from, rest) = key.split_first_chunk::<BYTES>()?;
    let (to, rest) = rest.split_first_chunk::<BYTES>()?;
    Some(([IpAddr::from(*from), IpAddr::from(*to)], rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_of_a_connection_have_an_element() {
        let flow = FourTuple {
            client: "10.1.0.2:40000".parse().unwrap(),
            server: "10.2.0.2:80".parse().unwrap(),
        };
        let elements = elements(&[flow], DynamicSet::Frozen);
        let [(set, keys)] = elements.as_slice() else {
            panic!("{elements:?}");
        };
        assert_eq!(*set, DynamicSet::Frozen(Family::V4));
        let forth = [10, 1, 0, 2, 10, 2, 0, 2, 0x9c, 0x40, 0, 0, 0, 80, 0, 0];
        let back = [10, 2, 0, 2, 10, 1, 0, 2, 0, 80, 0, 0, 0x9c, 0x40, 0, 0];
        assert_eq!(*keys, [forth, back]);
        // The server's address is the higher one.
        for key in keys {
            assert_eq!(connection(Family::V4, key), Some(flow));
        }
    }

    #[test]
    fn a_key_is_read_back_and_nothing_else_is() {
        let flow = FourTuple {
            client: "[fd00:1::2]:40000".parse().unwrap(),
            server: "[fd00:2::2]:80".parse().unwrap(),
        };
        let key = key(flow.server, flow.client);
        assert_eq!(connection(Family::V6, &key), Some(flow));
        assert_eq!(connection(Family::V4, &key), None);
        for length in 0..key.len() {
            assert_eq!(connection(Family::V6, &key[..length]), None);
        }
    }
}
