//! What the kernel has counted by itself.

use std::collections::BTreeMap;

use crate::nft::names::{GUARD, SENT_ON, STRANGERS, UNREACHABLE, UNSPLIT};

/// The table's counters, since the daemon's start.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Counts {
    /// SYNs between campuses that the kernel routed, for each reason that there is.
    pub unsplit: Vec<Unsplit>,
    /// The packets that the guards of the tunnels have dropped; empty if there is no tunnel.
    pub guards: Vec<Guard>,
    /// The packets of connections that have moved to other boxes, which were sent on.
    pub sent_on: u64,
}

/// SYNs that were routed for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsplit {
    /// The counter's name in the table `inet pepd`.
    pub counter: &'static str,
    /// The reason, for people.
    pub meaning: &'static str,
    /// The number of SYNs; a client that repeats its SYN counts again.
    pub syns: u64,
}

/// The packets that the guard of one tunnel has dropped since it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// The peer's name; none for IP-in-IP packets to this box from no peer's address.
    pub peer: Option<String>,
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// ICMP errors that said that the peer cannot be reached.
    pub unreachable: u64,
}

impl Counts {
    pub(crate) fn new(counters: &BTreeMap<&str, (u64, u64)>) -> Self {
        let unsplit = UNSPLIT.iter().filter_map(|&(counter, meaning)| {
            let &(syns, _) = counters.get(counter)?;
            Some(Unsplit {
                counter,
                meaning,
                syns,
            })
        });
        let guards = counters.iter().filter_map(|(name, &(packets, bytes))| {
            let peer = match name.strip_prefix(GUARD) {
                Some(peer) => Some(peer.to_owned()),
                None if *name == STRANGERS => None,
                None => return None,
            };
            let errors = |peer: &String| counters.get(format!("{UNREACHABLE}{peer}").as_str());
            let unreachable = peer
                .as_ref()
                .and_then(errors)
                .map_or(0, |&(packets, _)| packets);
            Some(Guard {
                peer,
                packets,
                bytes,
                unreachable,
            })
        });
        Self {
            unsplit: unsplit.collect(),
            guards: guards.collect(),
            sent_on: counters.get(SENT_ON.0).map_or(0, |&(packets, _)| packets),
        }
    }
}
