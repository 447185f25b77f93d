//! Segments that pass between two other hosts (RFC 9293, section 3.1), read.

use crate::four_tuple::FourTuple;
use crate::ip::Packet;
use crate::protocol::Protocol;
use crate::tcp::{FIXED_HEADER, option};

/// A segment on its way from one host to another, of which the data need not be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passing<'a> {
    /// The connection, its sender taken for the client.
    pub four_tuple: FourTuple,
    /// The control bits, of [`segment::flag`](crate::segment::flag), and those of RFC 3168.
    pub flags: u8,
    /// The sequence number.
    pub sequence: u32,
    /// The acknowledgement number.
    pub acknowledgement: u32,
    /// The window as it is written, before it is scaled.
    pub window: u16,
    /// The bytes of data, as the IP header has them.
    pub length: u32,
    /// The options.
    pub options: &'a [u8],
    /// Whether it is all there and its checksum is right.
    pub is_intact: bool,
}

/// The two values of a timestamps option (RFC 7323, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// What the sender's clock says.
    pub value: u32,
    /// What the receiver's said last.
    pub echo: u32,
}

impl<'a> Passing<'a> {
    /// Reads a segment from an IP packet that may be cut off behind the headers; none where the packet is
    /// something else.
    pub fn read(packet: &'a [u8]) -> Option<Self> {
        let ip = Packet::read(packet)?;
        let segment = ip.payload;
        let offset = usize::from(*segment.get(12)? >> 4) * 4;
        if ip.protocol != Protocol::TCP || offset < FIXED_HEADER {
            return None;
        }
        let options = segment.get(FIXED_HEADER..offset)?;
        let headers = packet.len() - segment.len() + offset;
        let length = total(packet)?.checked_sub(headers)?;
        let word = |at: usize| Some(u32::from_be_bytes(*segment.get(at..)?.first_chunk()?));
        Some(Self {
            four_tuple: ip.four_tuple()?,
            flags: *segment.get(13)?,
            sequence: word(4)?,
            acknowledgement: word(8)?,
            window: u16::from_be_bytes(*segment.get(14..)?.first_chunk()?),
            length: u32::try_from(length).ok()?,
            options,
            is_intact: segment.len() == offset + length && ip.payload_checksum() == 0,
        })
    }

    /// Returns its timestamps, where it has any.
    pub fn timestamps(&self) -> Option<Timestamps> {
        const TIMESTAMPS: u8 = 8;
        let value = option(self.options, TIMESTAMPS)?;
        let (value, echo) = value.split_at_checked(4)?;
        let word = |bytes: &[u8]| Some(u32::from_be_bytes(bytes.try_into().ok()?));
        Some(Timestamps {
            value: word(value)?,
            echo: word(echo)?,
        })
    }

    /// Returns whether it names data that has come out of order (RFC 2018, section 3).
    pub fn has_sack(&self) -> bool {
        const SACK: u8 = 5;
        option(self.options, SACK).is_some()
    }

    /// Returns whether it is signed (RFC 2385, RFC 5925), so that nobody can make another like it.
    pub fn is_signed(&self) -> bool {
        const MD5: u8 = 19;
        const AUTHENTICATION: u8 = 29;
        [MD5, AUTHENTICATION]
            .iter()
            .any(|kind| option(self.options, *kind).is_some())
    }
}

/// Returns the length of the whole packet in bytes, as its header has it.
fn total(packet: &[u8]) -> Option<usize> {
    let at = |at: usize| Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?));
    match packet.first()? >> 4 {
        4 => Some(usize::from(at(2)?)),
        _ => Some(usize::from(at(4)?) + 40),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::segment::{Segment, flag, timestamps};

    fn segment(to: &str, from: &str) -> Segment {
        let (to, from) = (to.parse().unwrap(), from.parse().unwrap());
        Segment {
            acknowledgement: 8,
            window: 500,
            options: timestamps(3, 4),
            payload: vec![7; 1000],
            ..Segment::new(flag::ACK | flag::PSH, from, to, 7)
        }
    }

    #[test]
    fn what_passes_is_read_in_either_family_though_its_data_is_not_there() {
        for (to, from) in [
            ("10.1.0.2:4000", "10.2.0.2:80"),
            ("[fd00:a::2]:4000", "[fd00:b::2]:80"),
        ] {
            let made = segment(to, from);
            let packet = made.packet().unwrap();
            let read = Passing::read(&packet[..packet.len() - 1000]).unwrap();
            assert!(!read.is_intact);
            let whole = Passing {
                is_intact: true,
                ..read
            };
            assert_eq!(Passing::read(&packet), Some(whole));
            let mut damaged = packet.clone();
            *damaged.last_mut().unwrap() ^= 1;
            assert!(!Passing::read(&damaged).unwrap().is_intact);
            assert_eq!(
                (read.four_tuple.client, read.four_tuple.server),
                (made.from, made.to)
            );
            assert_eq!(
                (read.sequence, read.acknowledgement, read.window),
                (7, 8, 500)
            );
            assert_eq!((read.flags, read.length), (flag::ACK | flag::PSH, 1000));
            assert_eq!(read.timestamps(), Some(Timestamps { value: 3, echo: 4 }));
            assert!(!read.has_sack());
        }
    }

    #[test]
    fn a_sack_is_seen_behind_other_options() {
        let mut made = segment("10.1.0.2:4000", "10.2.0.2:80");
        made.options.extend([1, 1, 5, 10, 0, 0, 0, 9, 0, 0, 0, 10]);
        let packet = made.packet().unwrap();
        let read = Passing::read(&packet).unwrap();
        assert!(read.has_sack() && read.timestamps().is_some() && !read.is_signed());
        made.options = [vec![19, 18], vec![7; 16], vec![1, 1]].concat();
        let packet = made.packet().unwrap();
        assert!(Passing::read(&packet).unwrap().is_signed());
    }

    #[test]
    fn one_that_says_it_is_shorter_than_its_headers_is_none() {
        let mut packet = segment("10.1.0.2:4000", "10.2.0.2:80").packet().unwrap();
        packet[2..4].copy_from_slice(&40_u16.to_be_bytes());
        assert_eq!(Passing::read(&packet), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(mut bytes in prop::collection::vec(any::<u8>(), 0..120), six in any::<bool>()) {
            if let Some(first) = bytes.first_mut() {
                *first = *first & 0x0f | if six { 0x60 } else { 0x40 };
            }
            if let Some(read) = Passing::read(&bytes) {
                let _ = (read.timestamps(), read.has_sack());
            }
        }
    }
}
