//! The elements of the sets and maps that stay as they are, read without the program nft: it reads
//! those of all sets where it is asked for one table's, however full the dynamic ones are.
//!
//! Sources: include/uapi/linux/netfilter/nf_tables.h and net/netfilter/nf_tables_api.c
//! (nf_tables_getsetelem).

use std::collections::BTreeMap;
use std::io;

use pepd_sys::nfnetlink::{
    Family, Flags, Header, Message, MessageType, Reply, Socket, Subsystem, attributes, message,
    messages, replies,
};

use super::names::TABLE;
use crate::prefix::Range;

const NFT_MSG_NEWSETELEM: u8 = 12;
const NFT_MSG_GETSETELEM: u8 = 13;

const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_DATA: u16 = 2;
const NFTA_SET_ELEM_FLAGS: u16 = 3;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CHAIN: u16 = 2;
const NFT_SET_ELEM_INTERVAL_END: u32 = 1;

/// The most that the kernel sends at once (netlink_dump, net/netlink/af_netlink.c).
const DATAGRAM_BYTES: usize = 32 * 1024;

/// A dump that meets a change of the ruleset, such as a renewal of the gate, is made again.
const ATTEMPTS: u32 = 32;

/// The elements of one set or map, as the kernel has them, in a fixed order.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Elements(Vec<Vec<u8>>);

/// Addresses in a set, or in a map from them to a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interval {
    /// The first address, as it is in a packet.
    first: Vec<u8>,
    /// The first that is in it no more; none if there are no others.
    end: Option<Vec<u8>>,
    /// The chain that a map leads to.
    chain: Option<Vec<u8>>,
}

impl Interval {
    /// Describes a range, and where a map leads from it.
    pub(super) fn new(range: &Range, chain: Option<&str>) -> Self {
        Self {
            first: range.first_bytes(),
            end: range.end_bytes(),
            chain: chain.map(|chain| chain.as_bytes().to_vec()),
        }
    }
}

/// Returns the key of an element.
fn key(element: &[u8]) -> Option<&[u8]> {
    attributes::find(
        attributes::find(element, NFTA_SET_ELEM_KEY)?,
        NFTA_DATA_VALUE,
    )
}

/// Returns the chain that an element of a map leads to.
fn chain(element: &[u8]) -> Option<&[u8]> {
    let data = attributes::find(element, NFTA_SET_ELEM_DATA)?;
    let verdict = attributes::find(data, NFTA_DATA_VERDICT)?;
    let name = attributes::find(verdict, NFTA_VERDICT_CHAIN)?;
    name.split(|byte| *byte == 0).next()
}

/// Returns whether an element is there only to say where the one before it ends.
fn is_end(element: &[u8]) -> bool {
    let flags = attributes::find(element, NFTA_SET_ELEM_FLAGS);
    let flags = flags.and_then(|value| value.first_chunk());
    flags.is_some_and(|it| u32::from_be_bytes(*it) & NFT_SET_ELEM_INTERVAL_END != 0)
}

impl Elements {
    /// Returns how many there are, an interval being one.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().filter(|element| !is_end(element)).count()
    }

    /// Gives the addresses of a set of intervals that do not overlap, in ascending order.
    pub(super) fn intervals(&self) -> Vec<Interval> {
        let (ends, begins): (Vec<_>, Vec<_>) = self.0.iter().partition(|element| is_end(element));
        let mut ends: Vec<&[u8]> = ends.iter().filter_map(|end| key(end)).collect();
        ends.sort_unstable();
        let interval = |begin: &&Vec<u8>| {
            let first = key(begin).unwrap_or_default();
            Interval {
                first: first.to_vec(),
                end: ends
                    .get(ends.partition_point(|end| *end <= first))
                    .map(|end| end.to_vec()),
                chain: chain(begin).map(<[u8]>::to_vec),
            }
        };
        let mut intervals: Vec<Interval> = begins.iter().map(interval).collect();
        intervals.sort_unstable_by(|one, other| one.first.cmp(&other.first));
        intervals
    }

    /// Returns their keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter_map(|element| key(element))
    }
}

/// Reads the elements of these sets and maps of pepd's table.
///
/// # Errors
/// ENOENT where there is no such set any more.
pub(crate) fn read(
    sets: impl IntoIterator<Item = String>,
) -> io::Result<BTreeMap<String, Elements>> {
    let socket = Socket::open()?;
    let mut sequence = 0;
    sets.into_iter()
        .map(|set| {
            for _ in 0..ATTEMPTS {
                sequence += 1;
                if let Some(elements) = dump(&socket, &set, sequence)? {
                    return Ok((set, elements));
                }
            }
            Err(io::Error::from(io::ErrorKind::Interrupted))
        })
        .collect()
}

/// Reads the elements of one; none where the ruleset has changed meanwhile.
fn dump(socket: &Socket, set: &str, sequence: u32) -> io::Result<Option<Elements>> {
    let header = Header {
        kind: MessageType::of(Subsystem::NFTABLES, NFT_MSG_GETSETELEM),
        flags: Flags::DUMP,
        sequence,
        family: Family::INET,
        resource: 0,
    };
    socket.send(&message(header, |list| {
        list.put_text(NFTA_SET_ELEM_LIST_TABLE, TABLE);
        list.put_text(NFTA_SET_ELEM_LIST_SET, set);
    }))?;
    let mut buffer = vec![0; DATAGRAM_BYTES];
    let (mut elements, mut is_whole) = (Vec::new(), true);
    loop {
        let len = socket.receive(&mut buffer)?;
        let datagram = buffer.get(..len).unwrap_or_default();
        for reply in replies(datagram) {
            match reply {
                Reply::Refused { errno, .. } => return Err(io::Error::from_raw_os_error(errno)),
                Reply::Done { .. } => {}
            }
        }
        for message in messages(datagram).filter(|message| message.sequence == sequence) {
            is_whole &= !message.is_inconsistent;
            if message.kind == MessageType::DONE {
                elements.sort_unstable();
                return Ok(is_whole.then_some(Elements(elements)));
            }
            elements.extend(of(&message));
        }
    }
}

/// Reads the elements that a message has; none where it is about something else.
fn of(message: &Message<'_>) -> Vec<Vec<u8>> {
    if message.kind != MessageType::of(Subsystem::NFTABLES, NFT_MSG_NEWSETELEM) {
        return Vec::new();
    }
    let attributes = message.attributes().into_iter().flatten();
    attributes
        .filter(|(kind, _)| *kind == NFTA_SET_ELEM_LIST_ELEMENTS)
        .flat_map(|(_, list)| attributes::read(list))
        .filter(|(kind, _)| *kind == NFTA_LIST_ELEM)
        .map(|(_, element)| element.to_vec())
        .collect()
}

/// Reads a datagram of a dump, for a fuzzer: an interval's end is no element, and is one of them.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzzed(datagram: &[u8]) -> Elements {
    let found = Elements(
        messages(datagram)
            .flat_map(|message| of(&message))
            .collect(),
    );
    assert!(found.count() <= found.0.len());
    assert_eq!(found.intervals().len(), found.count());
    assert!(found.0.iter().map(Vec::len).sum::<usize>() <= datagram.len());
    found
}
