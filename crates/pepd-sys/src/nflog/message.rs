//! The messages of NFLOG: written here, and read from bytes of which nothing is trusted.
//!
//! Sources: include/uapi/linux/netfilter/nfnetlink_log.h and net/netfilter/nfnetlink_log.c.

use pepd_packet::LogGroup;

use crate::nfnetlink::{self, Attributes, Family, Flags, Header, MessageType, Subsystem, messages};

const NFULNL_MSG_PACKET: MessageType = MessageType::of(Subsystem::LOG, 0);
const NFULNL_MSG_CONFIG: MessageType = MessageType::of(Subsystem::LOG, 1);

const NFULA_CFG_CMD: u16 = 1;
const NFULA_CFG_MODE: u16 = 2;
const NFULA_CFG_QTHRESH: u16 = 5;
const NFULNL_CFG_CMD_BIND: u8 = 1;
const NFULNL_COPY_PACKET: u8 = 2;

const NFULA_PACKET_HDR: u16 = 1;
const NFULA_PAYLOAD: u16 = 9;
const NFULA_PREFIX: u16 = 10;

const NF_INET_LOCAL_IN: u8 = 1;
const NF_INET_FORWARD: u8 = 2;
const NF_INET_LOCAL_OUT: u8 = 3;

/// The bytes that are copied of a packet: the longest headers.
pub(super) const COPIED_BYTES: u32 = 128;

/// A packet that was passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged<'a> {
    /// The way that it went.
    pub way: Way,
    /// What the rule says that passed it on.
    pub prefix: &'a [u8],
    /// The packet, from the IP header on, cut off.
    pub payload: &'a [u8],
}

/// The way of a packet through the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It came for the host itself (NF_INET_LOCAL_IN).
    In,
    /// It was routed (NF_INET_FORWARD).
    Through,
    /// The host made it (NF_INET_LOCAL_OUT).
    Out,
}

/// Returns the packets in a datagram from the kernel; anything else is passed over.
pub fn packets(datagram: &[u8]) -> impl Iterator<Item = Logged<'_>> {
    messages(datagram)
        .filter(|message| message.kind == NFULNL_MSG_PACKET)
        .filter_map(|message| packet(message.attributes()?))
}

fn packet<'a>(attributes: impl Iterator<Item = (u16, &'a [u8])>) -> Option<Logged<'a>> {
    let (mut way, mut prefix, mut payload) = (None, &[][..], None);
    for (kind, value) in attributes {
        match kind {
            NFULA_PACKET_HDR => {
                way = Some(match *value.get(2)? {
                    NF_INET_LOCAL_IN => Way::In,
                    NF_INET_FORWARD => Way::Through,
                    NF_INET_LOCAL_OUT => Way::Out,
                    _ => return None,
                });
            }
            // A text with a zero behind it.
            NFULA_PREFIX => prefix = value.strip_suffix(&[0]).unwrap_or(value),
            NFULA_PAYLOAD => payload = Some(value),
            _ => {}
        }
    }
    Some(Logged {
        way: way?,
        prefix,
        payload: payload?,
    })
}

/// Binds the group, and then says how much of each packet is copied, each at once: there is nobody to wait
/// for.
pub(super) fn configure(group: LogGroup) -> [Vec<u8>; 2] {
    let mut mode = COPIED_BYTES.to_be_bytes().to_vec();
    mode.extend([NFULNL_COPY_PACKET, 0]);
    [
        message(NFULNL_MSG_CONFIG, Flags::ACK, group, |attributes| {
            attributes.put(NFULA_CFG_CMD, &[NFULNL_CFG_CMD_BIND]);
        }),
        message(NFULNL_MSG_CONFIG, Flags::ACK, group, |attributes| {
            attributes.put(NFULA_CFG_MODE, &mode);
            attributes.put(NFULA_CFG_QTHRESH, &1u32.to_be_bytes());
        }),
    ]
}

fn message(
    kind: MessageType,
    flags: Flags,
    group: LogGroup,
    body: impl FnOnce(&mut Attributes<'_>),
) -> Vec<u8> {
    let header = Header {
        kind,
        flags,
        sequence: 0,
        family: Family::UNSPECIFIED,
        resource: group.0,
    };
    nfnetlink::message(header, body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn datagram(hook: u8, prefix: &[u8], payload: &[u8]) -> Vec<u8> {
        message(NFULNL_MSG_PACKET, Flags::NONE, LogGroup(7), |attributes| {
            attributes.put(NFULA_PACKET_HDR, &[8, 0, hook, 0]);
            if !prefix.is_empty() {
                attributes.put(NFULA_PREFIX, prefix);
            }
            attributes.put(NFULA_PAYLOAD, payload);
        })
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn requests_are_encoded_as_the_kernel_reads_them() {
        let [bind, mode] = configure(LogGroup(7301));
        #[rustfmt::skip]
        assert_eq!(bind, [
            0x1c, 0, 0, 0,  1, 4, 5, 0,  0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0x1c, 0x85,
            5, 0, 1, 0,  1, 0, 0, 0,
        ]);
        #[rustfmt::skip]
        assert_eq!(mode, [
            0x28, 0, 0, 0,  1, 4, 5, 0,  0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0x1c, 0x85,
            10, 0, 2, 0,  0, 0, 0, 128,  2, 0, 0, 0,
            8, 0, 5, 0,  0, 0, 0, 1,
        ]);
    }

    #[test]
    fn packets_are_read_one_after_the_other() {
        let mut bytes = datagram(2, b"pepd\0", b"first");
        bytes.extend(datagram(3, b"", b"second"));
        bytes.extend(datagram(4, b"", b"on its way out"));
        let read: Vec<_> = packets(&bytes).collect();
        let [first, second] = read[..] else {
            panic!("{read:?}");
        };
        assert_eq!(
            (first.way, first.prefix, first.payload),
            (Way::Through, &b"pepd"[..], &b"first"[..])
        );
        assert_eq!(
            (second.way, second.prefix, second.payload),
            (Way::Out, &b""[..], &b"second"[..])
        );
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
            let mut bytes = datagram(1, b"u\0", b"some payload of a packet");
            bytes.extend(datagram(2, b"", b"more"));
            bytes.truncate(cut);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            prop_assert!(packets(&bytes).count() <= 2 + bytes.len() / 16);
        }
    }
}
