//! The netlink messages of NFQUEUE: written here, and read from bytes that are trusted for
//! nothing.
//!
//! Sources: include/uapi/linux/netfilter/nfnetlink_queue.h and
//! net/netfilter/nfnetlink_queue.c. Message headers are in the host's byte order, the values
//! of attributes in network byte order.

use std::io;

use pepd_packet::{PacketMark, QueueNumber};

use super::Verdict;

const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;

const NFNL_SUBSYS_QUEUE: u16 = 3;
const NFQNL_MSG_PACKET: u16 = NFNL_SUBSYS_QUEUE << 8;
const NFQNL_MSG_VERDICT: u16 = NFNL_SUBSYS_QUEUE << 8 | 1;
const NFQNL_MSG_CONFIG: u16 = NFNL_SUBSYS_QUEUE << 8 | 2;

const NFQA_CFG_CMD: u16 = 1;
const NFQA_CFG_PARAMS: u16 = 2;
const NFQA_CFG_QUEUE_MAXLEN: u16 = 3;
const NFQA_CFG_MASK: u16 = 4;
const NFQA_CFG_FLAGS: u16 = 5;
const NFQNL_CFG_CMD_BIND: u8 = 1;
const NFQNL_COPY_PACKET: u8 = 2;
const NFQA_CFG_F_FAIL_OPEN: u32 = 1;

const NFQA_PACKET_HDR: u16 = 1;
const NFQA_VERDICT_HDR: u16 = 2;
const NFQA_MARK: u16 = 3;
const NFQA_PAYLOAD: u16 = 10;
/// Flags in an attribute's type: nested, network byte order.
const NLA_TYPE_MASK: u16 = 0x3fff;

const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
const NF_INET_LOCAL_OUT: u8 = 3;

const HEADER_BYTES: usize = 16;
/// struct nfgenmsg: family, version, resource id.
const NFGENMSG_BYTES: usize = 4;

/// A packet that waits for its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// What [`Queue::decide`](super::Queue::decide) is to call it.
    pub id: u32,
    /// Where it was taken.
    pub hook: Hook,
    /// Its packet mark.
    pub mark: PacketMark,
    /// It, from the IP header on; cut where it is longer than what is copied.
    pub payload: &'a [u8],
}

/// Where in its way through the host a packet was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// On its way in.
    In,
    /// Made by this host (NF_INET_LOCAL_OUT).
    Out,
}

/// The packets in a datagram from the kernel; what is none is passed over.
pub fn packets(datagram: &[u8]) -> impl Iterator<Item = Packet<'_>> {
    messages(datagram)
        .filter(|(kind, _)| *kind == NFQNL_MSG_PACKET)
        .filter_map(|(_, body)| packet(body.get(NFGENMSG_BYTES..)?))
}

fn packet(attributes: &[u8]) -> Option<Packet<'_>> {
    let (mut header, mut mark, mut payload) = (None, PacketMark::default(), None);
    for (kind, value) in self::attributes(attributes) {
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

/// The kernel's answer to a request.
pub(super) fn acknowledged(datagram: &[u8]) -> io::Result<()> {
    let errno = messages(datagram)
        .find(|(kind, _)| *kind == NLMSG_ERROR)
        .and_then(|(_, body)| Some(i32::from_ne_bytes(*body.first_chunk()?)));
    match errno {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno.saturating_neg())),
        None => Err(io::Error::from_raw_os_error(libc::EPROTO)),
    }
}

/// Binds the queue, all settings at once.
pub(super) fn configure(queue: QueueNumber, copied: u32, max_packets: u32) -> Vec<u8> {
    let mut params = copied.to_be_bytes().to_vec();
    params.push(NFQNL_COPY_PACKET);
    let flags = NFQA_CFG_F_FAIL_OPEN.to_be_bytes();
    message(
        NFQNL_MSG_CONFIG,
        NLM_F_REQUEST | NLM_F_ACK,
        queue,
        |bytes| {
            attribute(bytes, NFQA_CFG_CMD, &[NFQNL_CFG_CMD_BIND, 0, 0, 0]);
            attribute(bytes, NFQA_CFG_PARAMS, &params);
            attribute(bytes, NFQA_CFG_QUEUE_MAXLEN, &max_packets.to_be_bytes());
            attribute(bytes, NFQA_CFG_FLAGS, &flags);
            attribute(bytes, NFQA_CFG_MASK, &flags);
        },
    )
}

/// A verdict, which the kernel does not acknowledge.
pub(super) fn decide(queue: QueueNumber, packet: u32, verdict: Verdict) -> Vec<u8> {
    let (code, mark) = match verdict {
        Verdict::Accept(mark) => (NF_ACCEPT, Some(mark)),
        Verdict::Drop => (NF_DROP, None),
    };
    let mut header = [0; 8];
    header[..4].copy_from_slice(&code.to_be_bytes());
    header[4..].copy_from_slice(&packet.to_be_bytes());
    message(NFQNL_MSG_VERDICT, NLM_F_REQUEST, queue, |bytes| {
        attribute(bytes, NFQA_VERDICT_HDR, &header);
        if let Some(mark) = mark {
            attribute(bytes, NFQA_MARK, &mark.0.to_be_bytes());
        }
    })
}

fn message(kind: u16, flags: u16, queue: QueueNumber, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // Sequence number and port: requests here need not be told apart.
    bytes.extend([0; 8]);
    let [high, low] = queue.0.to_be_bytes();
    bytes.extend([0, 0, high, low]);
    body(&mut bytes);
    // A message here is a hundred bytes long.
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes
}

fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    bytes.extend(len.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// The messages of a datagram: type and what follows the header.
fn messages(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::try_from(u32::from_ne_bytes(*rest.first_chunk()?)).ok()?;
        let kind = u16::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
        let body = rest.get(HEADER_BYTES..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Attributes: type and value.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & NLA_TYPE_MASK, value))
    })
}

fn be32(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(*value.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn datagram(id: u32, hook: u8, mark: Option<u32>, payload: &[u8]) -> Vec<u8> {
        message(NFQNL_MSG_PACKET, 0, QueueNumber(7), |bytes| {
            let mut header = id.to_be_bytes().to_vec();
            header.extend([8, 0, hook]);
            attribute(bytes, NFQA_PACKET_HDR, &header);
            if let Some(mark) = mark {
                attribute(bytes, NFQA_MARK, &mark.to_be_bytes());
            }
            attribute(bytes, NFQA_PAYLOAD, payload);
        })
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

    #[test]
    fn an_answer_is_success_errno_or_none() {
        let answer = |errno: i32| {
            let mut bytes = message(NLMSG_ERROR, 0, QueueNumber(0), |_| {});
            bytes.truncate(HEADER_BYTES);
            bytes.extend(errno.to_ne_bytes());
            let len = u32::try_from(bytes.len()).unwrap();
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            bytes
        };
        assert!(acknowledged(&answer(0)).is_ok());
        let refused = acknowledged(&answer(-libc::EBUSY)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EBUSY));
        assert!(acknowledged(&datagram(1, 0, None, b"")).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_their_end(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            prop_assert!(packets(&bytes).count() <= bytes.len());
            let _ = acknowledged(&bytes);
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
