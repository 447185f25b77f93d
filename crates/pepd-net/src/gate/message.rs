//! The netlink messages of the gate: set elements added and deleted in one transaction.
//!
//! Sources: include/uapi/linux/netfilter/{nfnetlink,nf_tables}.h and
//! net/netfilter/{nfnetlink,nf_tables_api}.c. Message headers are in the host's byte order,
//! the values of nf_tables' attributes in network byte order.

use std::time::Duration;

use crate::nft::names::TABLE;

const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_CREATE: u16 = 0x400;

const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_NEWSETELEM: u16 = (NFNL_SUBSYS_NFTABLES << 8) | 12;
const NFT_MSG_DELSETELEM: u16 = (NFNL_SUBSYS_NFTABLES << 8) | 14;

const NFPROTO_UNSPEC: u8 = 0;
const NFPROTO_INET: u8 = 1;

const NLA_F_NESTED: u16 = 0x8000;
const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_TIMEOUT: u16 = 4;
const NFTA_DATA_VALUE: u16 = 1;

/// A transaction in the making.
pub(super) struct Batch {
    bytes: Vec<u8>,
    sequence: u32,
}

/// A transaction, ready to send.
pub(super) struct Finished {
    /// The messages, one after the other.
    pub(super) bytes: Vec<u8>,
    /// The sequence number of the last change: its acknowledgement means that all were made.
    pub(super) last_change: u32,
    /// The last sequence number used.
    pub(super) last_sequence: u32,
}

impl Batch {
    /// Starts a transaction; its messages are numbered from `sequence` on.
    pub(super) fn begin(sequence: u32) -> Batch {
        let mut batch = Batch {
            bytes: Vec::with_capacity(512),
            sequence,
        };
        batch.boundary(NFNL_MSG_BATCH_BEGIN);
        batch
    }

    /// Adds an element that expires after `ttl`; does nothing if it is there.
    pub(super) fn add(&mut self, set: &str, key: &[u8], ttl: Duration) {
        // A timeout of 0 would mean "never": a gate that stays open for good.
        let milliseconds = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
        self.element(NFT_MSG_NEWSETELEM, NLM_F_CREATE, set, key, |bytes| {
            attribute(bytes, NFTA_SET_ELEM_TIMEOUT, &milliseconds.to_be_bytes());
        });
    }

    /// Deletes an element; the transaction fails with ENOENT if it is not there.
    pub(super) fn delete(&mut self, set: &str, key: &[u8]) {
        self.element(NFT_MSG_DELSETELEM, 0, set, key, |_| {});
    }

    /// Ends the transaction.
    pub(super) fn end(mut self) -> Finished {
        let last_change = self.sequence.wrapping_sub(1);
        let last_sequence = self.sequence;
        self.boundary(NFNL_MSG_BATCH_END);
        Finished {
            bytes: self.bytes,
            last_change,
            last_sequence,
        }
    }

    fn boundary(&mut self, kind: u16) {
        // The resource id says which subsystem the transaction is for.
        self.message(
            kind,
            NLM_F_REQUEST,
            NFPROTO_UNSPEC,
            NFNL_SUBSYS_NFTABLES,
            |_| {},
        );
    }

    fn element(
        &mut self,
        kind: u16,
        flags: u16,
        set: &str,
        key: &[u8],
        more: impl FnOnce(&mut Vec<u8>),
    ) {
        let flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        self.message(kind, flags, NFPROTO_INET, 0, |bytes| {
            attribute(bytes, NFTA_SET_ELEM_LIST_TABLE, &c_string(TABLE));
            attribute(bytes, NFTA_SET_ELEM_LIST_SET, &c_string(set));
            nested(bytes, NFTA_SET_ELEM_LIST_ELEMENTS, |bytes| {
                nested(bytes, NFTA_LIST_ELEM, |bytes| {
                    nested(bytes, NFTA_SET_ELEM_KEY, |bytes| {
                        attribute(bytes, NFTA_DATA_VALUE, key);
                    });
                    more(bytes);
                });
            });
        });
    }

    fn message(
        &mut self,
        kind: u16,
        flags: u16,
        family: u8,
        resource: u16,
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&self.sequence.to_ne_bytes());
        // The port: 0 is the kernel's to fill in.
        self.bytes.extend_from_slice(&[0; 4]);
        // nfgenmsg: family, NFNETLINK_V0, resource id.
        self.bytes.extend_from_slice(&[family, 0]);
        self.bytes.extend_from_slice(&resource.to_be_bytes());
        body(&mut self.bytes);
        let length = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
        if let Some(field) = self.bytes.get_mut(start..start + 4) {
            field.copy_from_slice(&length.to_ne_bytes());
        }
        self.sequence = self.sequence.wrapping_add(1);
    }
}

/// What the kernel says about one message of a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// It is done.
    Done { sequence: u32 },
    /// It was refused, and with it the transaction.
    Refused { sequence: u32, errno: i32 },
}

/// The replies in a datagram. Anything that is not one, or is cut short, ends it.
pub(super) fn replies(datagram: &[u8]) -> Vec<Reply> {
    let mut replies = Vec::new();
    let mut rest = datagram;
    while let Some((reply, next)) = reply(rest) {
        replies.extend(reply);
        rest = next;
    }
    replies
}

/// The first message of `bytes`, if it is a reply, and what follows.
fn reply(bytes: &[u8]) -> Option<(Option<Reply>, &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(field(bytes, 0)?)).ok()?;
    let kind = u16::from_ne_bytes(field(bytes, 4)?);
    let sequence = u32::from_ne_bytes(field(bytes, 8)?);
    let message = bytes.get(..length).filter(|message| message.len() >= 16)?;
    let reply = match (kind, field(message, 16)) {
        (NLMSG_ERROR, Some(code)) => Some(match i32::from_ne_bytes(code) {
            0 => Reply::Done { sequence },
            code => Reply::Refused {
                sequence,
                errno: code.saturating_neg(),
            },
        }),
        _ => None,
    };
    let next = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((reply, next))
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    framed(bytes, kind, |bytes| bytes.extend_from_slice(value));
}

fn nested(bytes: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    framed(bytes, kind | NLA_F_NESTED, body);
}

/// The length counts the header and the value, not the padding to 4 bytes.
fn framed(bytes: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&kind.to_ne_bytes());
    body(bytes);
    let length = u16::try_from(bytes.len() - start).unwrap_or(u16::MAX);
    if let Some(field) = bytes.get_mut(start..start + 2) {
        field.copy_from_slice(&length.to_ne_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn c_string(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// nlmsghdr (16 bytes) and nfgenmsg (4).
    const HEADER: usize = 20;

    #[test]
    fn a_renewal_is_encoded_as_the_kernel_reads_it() {
        let mut batch = Batch::begin(7);
        batch.add("gate", &[6], Duration::from_millis(2500));
        let batch = batch.end();
        assert_eq!((batch.last_change, batch.last_sequence), (8, 9));

        #[rustfmt::skip]
        let attributes: Vec<u8> = [
            header(9, 1), b"pepd\0\0\0\0".to_vec(),
            header(9, 2), b"gate\0\0\0\0".to_vec(),
            header(32, 3 | 0x8000),
            header(28, 1 | 0x8000),
            header(12, 1 | 0x8000),
            header(5, 1), vec![6, 0, 0, 0],
            header(12, 4), 2500u64.to_be_bytes().to_vec(),
        ].concat();
        let element = message(10 << 8 | 12, 0x405, 8, [1, 0, 0, 0], &attributes);
        let begin = message(0x10, 1, 7, [0, 0, 0, 10], &[]);
        let end = message(0x11, 1, 9, [0, 0, 0, 10], &[]);
        assert_eq!(batch.bytes, [begin, element, end].concat());
    }

    #[test]
    fn no_ttl_means_never() {
        let mut batch = Batch::begin(0);
        batch.add("gate", &[6], Duration::ZERO);
        let bytes = batch.end().bytes;
        let timeout = [header(12, 4), 1u64.to_be_bytes().to_vec()].concat();
        assert!(bytes.windows(timeout.len()).any(|window| window == timeout));
    }

    #[test]
    fn sequence_numbers_wrap() {
        let mut batch = Batch::begin(u32::MAX);
        batch.delete("gate", &[6]);
        let batch = batch.end();
        assert_eq!((batch.last_change, batch.last_sequence), (0, 1));
    }

    #[test]
    fn replies_are_read_one_after_the_other() {
        let datagram = [error(3, 0), error(4, -2), error(5, i32::MIN)].concat();
        assert_eq!(
            replies(&datagram),
            [
                Reply::Done { sequence: 3 },
                Reply::Refused {
                    sequence: 4,
                    errno: 2
                },
                Reply::Refused {
                    sequence: 5,
                    errno: i32::MAX
                },
            ]
        );
    }

    #[test]
    fn a_reply_cut_anywhere_does_no_harm() {
        let datagram = [error(3, 0), error(4, -2)].concat();
        for length in 0..datagram.len() {
            assert!(replies(&datagram[..length]).len() < 2, "{length}");
        }
        // Lengths that lead nowhere must not be followed for ever.
        for length in [0u32, 1, 15, 16, u32::MAX] {
            let mut broken = error(3, 0);
            broken[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(replies(&broken), []);
        }
    }

    fn header(length: u16, kind: u16) -> Vec<u8> {
        [length.to_ne_bytes(), kind.to_ne_bytes()].concat()
    }

    fn message(kind: u16, flags: u16, sequence: u32, family: [u8; 4], body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER + body.len()).unwrap();
        [
            &length.to_ne_bytes()[..],
            &kind.to_ne_bytes(),
            &flags.to_ne_bytes(),
            &sequence.to_ne_bytes(),
            &[0; 4],
            &family,
            body,
        ]
        .concat()
    }

    fn error(sequence: u32, code: i32) -> Vec<u8> {
        let nlmsgerr = [&code.to_ne_bytes()[..], &[0; 16]].concat();
        let length = u32::try_from(16 + nlmsgerr.len()).unwrap();
        [
            &length.to_ne_bytes()[..],
            &NLMSG_ERROR.to_ne_bytes(),
            &0u16.to_ne_bytes(),
            &sequence.to_ne_bytes(),
            &[0; 4],
            &nlmsgerr,
        ]
        .concat()
    }
}
