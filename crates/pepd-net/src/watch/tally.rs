//! What entered the kernel's hooks and what left them, read from the table's counters.
//!
//! Sources: include/uapi/linux/netfilter/nf_tables.h (NFT_MSG_GETOBJ, NFTA_OBJ_…, NFTA_COUNTER_…).

use std::fs::File;
use std::io::{self, Read as _, Seek as _};

use pepd_sys::nfnetlink::{
    Family as NfFamily, Flags, Header, Message, MessageType, Socket, Subsystem, attributes,
    message, messages,
};

use crate::nft::names::{COMPLETING, PASSAGE_COUNTERS, TABLE};
use crate::prefix::Family;

const NFT_MSG_NEWOBJ: u8 = 18;
const NFT_MSG_GETOBJ: u8 = 19;
const NFTA_OBJ_TABLE: u16 = 1;
const NFTA_OBJ_NAME: u16 = 2;
const NFTA_OBJ_TYPE: u16 = 3;
const NFTA_OBJ_DATA: u16 = 4;
const NFTA_COUNTER_PACKETS: u16 = 2;
const NFT_OBJECT_COUNTER: u32 = 1;

/// A part of this host that packets of split connections pass through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Passage {
    /// A captured SYN, from the capture to the listener.
    Input,
    /// A SYN-ACK to a client, from the listener to the wire.
    Answers,
    /// A SYN of an upstream leg, from its socket to the wire.
    Dials,
    /// A destination's SYN-ACK, from the wire to the upstream leg.
    Returns,
    /// The packet that ends a client's handshake, from the wire to the listener.
    Completion,
    /// A connection, from the listener's queue to the relay.
    Listener,
}

/// Packets since the table was made, by [`Passage`] and family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Those that entered and those that left: input, answers, dials, returns; each IPv4, then IPv6.
    counts: [[(u64, u64); 2]; 4],
    /// Packets that came to handshakes. Those that were lost on their way show in what the relay
    /// accepts.
    pub completing: u64,
    /// SYNs that found the queue of a listener full, of whatever program's (ListenOverflows).
    pub overflows: u64,
    /// Packets whose source the reverse-path check refused (IPReversePathFilter).
    pub martians: u64,
}

impl Tally {
    /// Gives the SYN-ACKs of both families.
    pub fn answering(&self) -> u64 {
        self.counts[1].iter().map(|(entered, _)| entered).sum()
    }

    /// Gives the SYNs of both families that were delivered.
    pub fn delivered(&self) -> u64 {
        self.counts[0].iter().map(|(_, left)| left).sum()
    }

    /// Gives what entered a passage and what left it. For [`Passage::Completion`] only the first is
    /// known here.
    pub fn of(&self, passage: Passage, family: Family) -> (u64, u64) {
        let place = match passage {
            Passage::Input => 0,
            Passage::Answers => 1,
            Passage::Dials => 2,
            Passage::Returns => 3,
            Passage::Completion => return (self.completing, 0),
            Passage::Listener => return (self.overflows, self.answering()),
        };
        let [v4, v6] = self.counts[place];
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// Makes one with given counts, for those who judge them.
    pub fn with(mut self, passage: Passage, family: Family, counts: (u64, u64)) -> Self {
        let place = match passage {
            Passage::Input => 0,
            Passage::Answers => 1,
            Passage::Dials => 2,
            Passage::Returns => 3,
            Passage::Completion => {
                self.completing = counts.0;
                return self;
            }
            Passage::Listener => {
                self.overflows = counts.0;
                return self;
            }
        };
        self.counts[place][usize::from(family == Family::V6)] = counts;
        self
    }

    fn set(&mut self, name: &str, packets: u64) {
        if name == COMPLETING.0 {
            self.completing = packets;
        } else if let Some(index) = PASSAGE_COUNTERS
            .iter()
            .position(|(known, _)| *known == name)
        {
            // In their order: a passage has four, of which the first two are what entered.
            let (left, v6) = (index % 4 >= 2, index % 2);
            let pair = &mut self.counts[index / 4][v6];
            if left {
                pair.1 = packets;
            } else {
                pair.0 = packets;
            }
        }
    }
}

/// A socket that the counters are read by.
#[derive(Debug)]
pub(super) struct Counters {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
    /// The kernel's statistics of this namespace, kept open: a descriptor may be what has run out.
    statistics: File,
}

impl Counters {
    pub(super) fn open() -> io::Result<Counters> {
        Ok(Counters {
            socket: Socket::open()?,
            sequence: 0,
            buffer: vec![0; 32 * 1024],
            statistics: File::open("/proc/self/net/netstat")?,
        })
    }

    /// Reads the statistics; none where they cannot be read now, which is not to be taken for 0.
    fn statistics(&self) -> Option<String> {
        let (mut file, mut text) = (&self.statistics, String::new());
        file.rewind().ok()?;
        file.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Reads all of them; none if the kernel does not give them, or not all.
    pub(super) fn read(&mut self) -> Option<Tally> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&request(self.sequence)).ok()?;
        let mut tally = Tally::default();
        loop {
            let length = self.socket.receive(&mut self.buffer).ok()?;
            for message in messages(self.buffer.get(..length)?) {
                // What belongs to an earlier question, which was given up, is passed over.
                if message.sequence != self.sequence {
                    continue;
                }
                match message.kind {
                    MessageType::DONE => {
                        let statistics = self.statistics()?;
                        let statistic = |name| find(&statistics, name).unwrap_or_default();
                        tally.overflows = statistic("ListenOverflows");
                        tally.martians = statistic("IPReversePathFilter");
                        return Some(tally);
                    }
                    kind if kind.within(Subsystem::NFTABLES) == Some(NFT_MSG_NEWOBJ) => {
                        if let Some((name, packets)) = counter(&message) {
                            tally.set(&name, packets);
                        }
                    }
                    // Refused: there is no such table.
                    _ => return None,
                }
            }
        }
    }
}

/// Finds a value in pairs of lines: the names, and below each its value.
pub(super) fn find(table: &str, name: &str) -> Option<u64> {
    let lines: Vec<&str> = table.lines().collect();
    lines.chunks(2).find_map(|pair| {
        let [names, values] = pair else { return None };
        let place = names.split_whitespace().position(|known| known == name)?;
        values.split_whitespace().nth(place)?.parse().ok()
    })
}

fn request(sequence: u32) -> Vec<u8> {
    let header = Header {
        kind: MessageType::of(Subsystem::NFTABLES, NFT_MSG_GETOBJ),
        flags: Flags::DUMP,
        sequence,
        family: NfFamily::INET,
        resource: 0,
    };
    message(header, |body| {
        body.put_text(NFTA_OBJ_TABLE, TABLE);
        body.put(NFTA_OBJ_TYPE, &NFT_OBJECT_COUNTER.to_be_bytes());
    })
}

/// Reads a counter's name and packets.
pub(super) fn counter(message: &Message<'_>) -> Option<(String, u64)> {
    let (mut name, mut packets) = (None, None);
    for (kind, value) in message.attributes()? {
        match kind {
            NFTA_OBJ_NAME => {
                let text = std::str::from_utf8(value).ok()?;
                name = Some(text.trim_end_matches('\0').to_owned());
            }
            NFTA_OBJ_DATA => {
                packets = attributes::find(value, NFTA_COUNTER_PACKETS)
                    .and_then(|value| Some(u64::from_be_bytes(value.try_into().ok()?)));
            }
            _ => {}
        }
    }
    Some((name?, packets?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_found_below_their_names() {
        let table = "TcpExt: A ListenOverflows B\nTcpExt: 1 23 4\nIpExt: C D\nIpExt: 5 6\n";
        assert_eq!(find(table, "ListenOverflows"), Some(23));
        assert_eq!(find(table, "D"), Some(6));
        assert_eq!(find(table, "E"), None);
    }

    #[test]
    fn each_counter_has_its_place() {
        let mut tally = Tally::default();
        for (count, (name, _)) in (1..).zip(PASSAGE_COUNTERS) {
            tally.set(name, count);
        }
        tally.set(COMPLETING.0, 99);
        tally.set("captured", 1000);
        let of = |passage, family| tally.of(passage, family);
        assert_eq!(of(Passage::Input, Family::V4), (1, 3));
        assert_eq!(of(Passage::Input, Family::V6), (2, 4));
        assert_eq!(of(Passage::Answers, Family::V4), (5, 7));
        assert_eq!(of(Passage::Dials, Family::V6), (10, 12));
        assert_eq!(of(Passage::Completion, Family::V4), (99, 0));
    }
}
