//! The messages of NFQUEUE: written here, and read from bytes of which nothing is trusted.
//!
//! Sources: include/uapi/linux/netfilter/nfnetlink_queue.h and
//! net/netfilter/nfnetlink_queue.c.

use pepd_packet::{PacketMark, QueueNumber};

use super::queue::{Kind, Room};
use crate::nfnetlink::{self, Attributes, Family, Flags, Header, MessageType, Subsystem, messages};

const NFQNL_MSG_PACKET: MessageType = MessageType::of(Subsystem::QUEUE, 0);
const NFQNL_MSG_VERDICT: MessageType = MessageType::of(Subsystem::QUEUE, 1);
const NFQNL_MSG_CONFIG: MessageType = MessageType::of(Subsystem::QUEUE, 2);

const NFQA_CFG_CMD: u16 = 1;
const NFQA_CFG_PARAMS: u16 = 2;
const NFQA_CFG_QUEUE_MAXLEN: u16 = 3;
const NFQA_CFG_MASK: u16 = 4;
const NFQA_CFG_FLAGS: u16 = 5;
const NFQNL_CFG_CMD_BIND: u8 = 1;
const NFQNL_COPY_PACKET: u8 = 2;
const NFQA_CFG_F_FAIL_OPEN: u32 = 1;
const NFQA_CFG_F_GSO: u32 = 4;

const NFQA_PACKET_HDR: u16 = 1;
const NFQA_VERDICT_HDR: u16 = 2;
const NFQA_MARK: u16 = 3;
const NFQA_PAYLOAD: u16 = 10;

const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
const NF_INET_LOCAL_OUT: u8 = 3;

/// A packet that waits for its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The number by which [`Queue::decide`](super::Queue::decide) is to name it.
    pub id: u32,
    /// The hook at which it was taken.
    pub hook: Hook,
    /// Its packet mark.
    pub mark: PacketMark,
    /// The packet, from the IP header on; cut where it is longer than what is copied.
    pub payload: &'a [u8],
}

/// The place in its way through the host at which a packet was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The packet was taken on its way in.
    In,
    /// Made by this host (NF_INET_LOCAL_OUT).
    Out,
}

/// The verdict on a held packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on to the next chain, with this packet mark (all 32 bits).
    Accept(PacketMark),
    /// It is dropped, and its sender told nothing.
    Drop,
}

/// Returns the packets in a datagram from the kernel; anything else is passed over.
pub fn packets(datagram: &[u8]) -> impl Iterator<Item = Packet<'_>> {
    messages(datagram)
        .filter(|message| message.kind == NFQNL_MSG_PACKET)
        .filter_map(|message| packet(message.attributes()?))
}

fn packet<'a>(attributes: impl Iterator<Item = (u16, &'a [u8])>) -> Option<Packet<'a>> {
    let (mut header, mut mark, mut payload) = (None, PacketMark::default(), None);
    for (kind, value) in attributes {
        match kind {
            NFQA_PACKET_HDR => header = Some((be32(value)?, *value.get(6)?)),
            NFQA_MARK => mark = PacketMark(be32(value)?),
            NFQA_PAYLOAD => payload = Some(value),
            _ => {}
        }
    }
    let (id, hook) = header?;
    let hook = if hook == NF_INET_LOCAL_OUT {
        Hook::Out
    } else {
        Hook::In
    };
    // A packet without payload waits for its verdict all the same.
    let payload = payload.unwrap_or_default();
    Some(Packet {
        id,
        hook,
        mark,
        payload,
    })
}

/// Binds the queue, all settings at once.
pub(super) fn configure(queue: QueueNumber, room: Room) -> Vec<u8> {
    let mut params = room.copied.to_be_bytes().to_vec();
    params.push(NFQNL_COPY_PACKET);
    let flags = match room.kind {
        Kind::Single => NFQA_CFG_F_FAIL_OPEN,
        Kind::Merged => NFQA_CFG_F_GSO,
    };
    let mask = (NFQA_CFG_F_FAIL_OPEN | NFQA_CFG_F_GSO).to_be_bytes();
    message(NFQNL_MSG_CONFIG, Flags::ACK, queue, |attributes| {
        attributes.put(NFQA_CFG_CMD, &[NFQNL_CFG_CMD_BIND, 0, 0, 0]);
        attributes.put(NFQA_CFG_PARAMS, &params);
        attributes.put(NFQA_CFG_QUEUE_MAXLEN, &room.packets.to_be_bytes());
        attributes.put(NFQA_CFG_FLAGS, &flags.to_be_bytes());
        attributes.put(NFQA_CFG_MASK, &mask);
    })
}

/// Writes a verdict, which the kernel does not acknowledge.
pub(super) fn decide(queue: QueueNumber, packet: u32, verdict: Verdict) -> Vec<u8> {
    let (code, mark) = match verdict {
        Verdict::Accept(mark) => (NF_ACCEPT, Some(mark)),
        Verdict::Drop => (NF_DROP, None),
    };
    let mut header = [0; 8];
    header[..4].copy_from_slice(&code.to_be_bytes());
    header[4..].copy_from_slice(&packet.to_be_bytes());
    message(NFQNL_MSG_VERDICT, Flags::NONE, queue, |attributes| {
        attributes.put(NFQA_VERDICT_HDR, &header);
        if let Some(mark) = mark {
            attributes.put(NFQA_MARK, &mark.0.to_be_bytes());
        }
    })
}

/// Requests here need not be distinguished: all have the number 0.
fn message(
    kind: MessageType,
    flags: Flags,
    queue: QueueNumber,
    body: impl FnOnce(&mut Attributes<'_>),
) -> Vec<u8> {
    let header = Header {
        kind,
        flags,
        sequence: 0,
        family: Family::UNSPECIFIED,
        resource: queue.0,
    };
    nfnetlink::message(header, body)
}

fn be32(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(*value.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `struct nlmsghdr`.
    const HEADER_BYTES: usize = 16;

    fn datagram(id: u32, hook: u8, mark: Option<u32>, payload: &[u8]) -> Vec<u8> {
        message(
            NFQNL_MSG_PACKET,
            Flags::NONE,
            QueueNumber(7),
            |attributes| {
                let mut header = id.to_be_bytes().to_vec();
                header.extend([8, 0, hook]);
                attributes.put(NFQA_PACKET_HDR, &header);
                if let Some(mark) = mark {
                    attributes.put(NFQA_MARK, &mark.to_be_bytes());
                }
                attributes.put(NFQA_PAYLOAD, payload);
            },
        )
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn requests_are_encoded_as_the_kernel_reads_them() {
        const QUEUE: QueueNumber = QueueNumber(7300);
        #[rustfmt::skip]
        assert_eq!(configure(QUEUE, Room::SYNS), [
            0x40, 0, 0, 0,  2, 3, 5, 0,  0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0x1c, 0x84,
            8, 0, 1, 0,  1, 0, 0, 0,
            9, 0, 2, 0,  0, 0, 8, 0,  2, 0, 0, 0,
            8, 0, 3, 0,  0, 0, 0x40, 0,
            8, 0, 5, 0,  0, 0, 0, 1,
            8, 0, 4, 0,  0, 0, 0, 5,
        ]);
        let merged = Room {
            kind: Kind::Merged,
            ..Room::SYNS
        };
        let flags = [8, 0, 5, 0, 0, 0, 0, 4];
        assert!(configure(QUEUE, merged).windows(8).any(|it| it == flags));
        let accept = Verdict::Accept(PacketMark(0x7000_00aa));
        #[rustfmt::skip]
        assert_eq!(decide(QUEUE, 0x0102_0304, accept), [
            0x28, 0, 0, 0,  1, 3, 1, 0,  0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0x1c, 0x84,
            12, 0, 2, 0,  0, 0, 0, 1,  1, 2, 3, 4,
            8, 0, 3, 0,  0x70, 0, 0, 0xaa,
        ]);
        #[rustfmt::skip]
        assert_eq!(decide(QUEUE, 0x0102_0304, Verdict::Drop), [
            0x20, 0, 0, 0,  1, 3, 1, 0,  0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0x1c, 0x84,
            12, 0, 2, 0,  0, 0, 0, 0,  1, 2, 3, 4,
        ]);
    }

    #[test]
    fn packets_are_read_one_after_the_other() {
        let mut bytes = datagram(1, 0, None, b"first");
        bytes.extend(datagram(2, 3, Some(0x7000_0001), b"second!!"));
        let read: Vec<_> = packets(&bytes).collect();
        assert_eq!(read.len(), 2);
        assert_eq!(
            (read[0].id, read[0].hook, read[0].mark),
            (1, Hook::In, PacketMark(0))
        );
        assert_eq!(read[0].payload, b"first");
        assert_eq!(read[1].hook, Hook::Out);
        assert_eq!(read[1].mark, PacketMark(0x7000_0001));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_their_end(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            prop_assert!(packets(&bytes).count() <= bytes.len());
        }

        #[test]
        fn a_cut_or_damaged_datagram_is_survived(
            cut in 0usize..120,
            at in 0usize..60,
            value in any::<u8>(),
        ) {
            let mut bytes = datagram(1, 0, Some(2), b"some payload of a packet");
            bytes.extend(datagram(2, 0, None, b"more"));
            bytes.truncate(cut);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            prop_assert!(packets(&bytes).count() <= 2 + bytes.len() / HEADER_BYTES);
        }
    }
}
