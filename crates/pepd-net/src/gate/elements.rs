//! The changes that the gate makes: elements of sets are added and deleted in one batch.
//!
//! Sources: include/uapi/linux/netfilter/nf_tables.h and net/netfilter/nf_tables_api.c.

use std::time::Duration;

use pepd_sys::nfnetlink::{Attributes, Batch, Family, FinishedBatch, Flags, Subsystem};

use crate::nft::names::TABLE;

const NFT_MSG_NEWSETELEM: u8 = 12;
const NFT_MSG_DELSETELEM: u8 = 14;

const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_TIMEOUT: u16 = 4;
const NFTA_SET_ELEM_KEY_END: u16 = 10;
const NFTA_DATA_VALUE: u16 = 1;

/// The ranges that are added by one message.
const RANGES_AT_ONCE: usize = 256;

/// Changes of elements, in the making.
pub(super) struct Changes(Batch);

impl Changes {
    /// Starts a batch; its messages are numbered from `sequence` on.
    pub(super) fn begin(sequence: u32) -> Self {
        Self(Batch::begin(Subsystem::NFTABLES, sequence))
    }

    /// Adds an element that expires after `ttl`; does nothing if it is there.
    pub(super) fn add(&mut self, set: &str, key: &[u8], ttl: Duration) {
        // A timeout of 0 would mean "never": a gate that stays open for good.
        let milliseconds = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
        self.element(NFT_MSG_NEWSETELEM, Flags::CREATE, set, key, |element| {
            element.put(NFTA_SET_ELEM_TIMEOUT, &milliseconds.to_be_bytes());
        });
    }

    /// Adds ranges, each given by its first key and its last, that expire after `ttl`.
    pub(super) fn add_ranges(&mut self, set: &str, ranges: &[[Vec<u8>; 2]], ttl: Duration) {
        // The length of an attribute has 16 bits, and that of a range of IPv6 is about 100.
        for some in ranges.chunks(RANGES_AT_ONCE) {
            self.add_some_ranges(set, some, ttl);
        }
    }

    fn add_some_ranges(&mut self, set: &str, ranges: &[[Vec<u8>; 2]], ttl: Duration) {
        let milliseconds = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
        self.0
            .change(NFT_MSG_NEWSETELEM, Flags::CREATE, Family::INET, |list| {
                list.put_text(NFTA_SET_ELEM_LIST_TABLE, TABLE);
                list.put_text(NFTA_SET_ELEM_LIST_SET, set);
                list.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |elements| {
                    for [first, last] in ranges {
                        elements.nest(NFTA_LIST_ELEM, |element| {
                            let ends = [(NFTA_SET_ELEM_KEY, first), (NFTA_SET_ELEM_KEY_END, last)];
                            for (kind, key) in ends {
                                element.nest(kind, |value| value.put(NFTA_DATA_VALUE, key));
                            }
                            element.put(NFTA_SET_ELEM_TIMEOUT, &milliseconds.to_be_bytes());
                        });
                    }
                });
            });
    }

    /// Adds elements that expire after `ttl`, as many as there are by one message.
    pub(super) fn add_all(&mut self, set: &str, keys: &[Vec<u8>], ttl: Duration) {
        let milliseconds = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
        self.all(NFT_MSG_NEWSETELEM, Flags::CREATE, set, keys, |element| {
            element.put(NFTA_SET_ELEM_TIMEOUT, &milliseconds.to_be_bytes());
        });
    }

    /// Deletes elements; the batch fails with ENOENT if one is not there.
    pub(super) fn delete_all(&mut self, set: &str, keys: &[Vec<u8>]) {
        self.all(NFT_MSG_DELSETELEM, Flags::NONE, set, keys, |_| {});
    }

    fn all(
        &mut self,
        message: u8,
        flags: Flags,
        set: &str,
        keys: &[Vec<u8>],
        mut more: impl FnMut(&mut Attributes<'_>),
    ) {
        for some in keys.chunks(RANGES_AT_ONCE) {
            self.0.change(message, flags, Family::INET, |list| {
                list.put_text(NFTA_SET_ELEM_LIST_TABLE, TABLE);
                list.put_text(NFTA_SET_ELEM_LIST_SET, set);
                list.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |elements| {
                    for key in some {
                        elements.nest(NFTA_LIST_ELEM, |element| {
                            element
                                .nest(NFTA_SET_ELEM_KEY, |value| value.put(NFTA_DATA_VALUE, key));
                            more(element);
                        });
                    }
                });
            });
        }
    }

    /// Deletes an element; the batch fails with ENOENT if it is not there.
    pub(super) fn delete(&mut self, set: &str, key: &[u8]) {
        self.element(NFT_MSG_DELSETELEM, Flags::NONE, set, key, |_| {});
    }

    /// Deletes all elements of a set.
    pub(super) fn flush(&mut self, set: &str) {
        // Without a list of elements it means all of them (nf_tables_delsetelem).
        self.0
            .change(NFT_MSG_DELSETELEM, Flags::NONE, Family::INET, |list| {
                list.put_text(NFTA_SET_ELEM_LIST_TABLE, TABLE);
                list.put_text(NFTA_SET_ELEM_LIST_SET, set);
            });
    }

    /// Ends the batch.
    pub(super) fn end(self) -> FinishedBatch {
        self.0.end()
    }

    fn element(
        &mut self,
        message: u8,
        flags: Flags,
        set: &str,
        key: &[u8],
        more: impl FnOnce(&mut Attributes<'_>),
    ) {
        self.0.change(message, flags, Family::INET, |list| {
            list.put_text(NFTA_SET_ELEM_LIST_TABLE, TABLE);
            list.put_text(NFTA_SET_ELEM_LIST_SET, set);
            list.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |elements| {
                elements.nest(NFTA_LIST_ELEM, |element| {
                    element.nest(NFTA_SET_ELEM_KEY, |value| value.put(NFTA_DATA_VALUE, key));
                    more(element);
                });
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// nlmsghdr (16 bytes) and nfgenmsg (4).
    const HEADER: usize = 20;

    #[test]
    fn a_renewal_is_encoded_as_the_kernel_reads_it() {
        let mut batch = Changes::begin(7);
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
    #[cfg(target_endian = "little")]
    fn an_element_that_is_renewed_is_added_deleted_and_added() {
        let (key, ttl) = ([10, 1, 0, 2], Duration::from_millis(2500));
        let mut batch = Changes::begin(7);
        batch.add("full4", &key, ttl);
        batch.delete("full4", &key);
        batch.add("full4", &key, ttl);
        #[rustfmt::skip]
        let added = |sequence| [
            0x4c, 0, 0, 0,  12, 10, 5, 4,  sequence, 0, 0, 0,  0, 0, 0, 0,  1, 0, 0, 0,
            9, 0, 1, 0,  b'p', b'e', b'p', b'd', 0, 0, 0, 0,
            10, 0, 2, 0,  b'f', b'u', b'l', b'l', b'4', 0, 0, 0,
            0x20, 0, 3, 0x80,  0x1c, 0, 1, 0x80,
            12, 0, 1, 0x80,  8, 0, 1, 0,  10, 1, 0, 2,
            12, 0, 4, 0,  0, 0, 0, 0, 0, 0, 0x09, 0xc4,
        ];
        #[rustfmt::skip]
        let deleted = [
            0x40, 0, 0, 0,  14, 10, 5, 0,  9, 0, 0, 0,  0, 0, 0, 0,  1, 0, 0, 0,
            9, 0, 1, 0,  b'p', b'e', b'p', b'd', 0, 0, 0, 0,
            10, 0, 2, 0,  b'f', b'u', b'l', b'l', b'4', 0, 0, 0,
            0x14, 0, 3, 0x80,  0x10, 0, 1, 0x80,
            12, 0, 1, 0x80,  8, 0, 1, 0,  10, 1, 0, 2,
        ];
        #[rustfmt::skip]
        let boundary = |kind, sequence| [
            0x14, 0, 0, 0,  kind, 0, 1, 0,  sequence, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 10,
        ];
        let expected = [
            &boundary(0x10, 7)[..],
            &added(8),
            &deleted,
            &added(10),
            &boundary(0x11, 11),
        ];
        assert_eq!(batch.end().bytes, expected.concat());
    }

    #[test]
    fn no_ttl_means_never() {
        let mut batch = Changes::begin(0);
        batch.add("gate", &[6], Duration::ZERO);
        let bytes = batch.end().bytes;
        let timeout = [header(12, 4), 1u64.to_be_bytes().to_vec()].concat();
        assert!(bytes.windows(timeout.len()).any(|window| window == timeout));
    }

    #[test]
    fn sequence_numbers_wrap() {
        let mut batch = Changes::begin(u32::MAX);
        batch.delete("gate", &[6]);
        let batch = batch.end();
        assert_eq!((batch.last_change, batch.last_sequence), (0, 1));
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
}
