//! ICMP: errors that quote a TCP segment, and echo messages.

use std::net::{IpAddr, Ipv6Addr};

use crate::checksum::Checksum;
use crate::four_tuple::FourTuple;
use crate::ip::{self, Packet};
use crate::protocol::Protocol;
use crate::tcp::SequenceNumber;

/// The bytes of an ICMP header: type, code, checksum, and four bytes that depend on the type
/// (RFC 792, and RFC 4443, section 2.1).
const HEADER: usize = 8;

/// The type of an echo request (RFC 792).
pub const REQUEST: u8 = 8;

/// The type of an echo request in ICMPv6 (RFC 4443, section 4.1).
pub const REQUEST_V6: u8 = 128;

/// The type of an echo reply (RFC 792).
pub const REPLY: u8 = 0;

/// The type of an echo reply in ICMPv6 (RFC 4443, section 4.2).
pub const REPLY_V6: u8 = 129;

/// An ICMP error: why a packet has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// Type and code of RFC 792.
    V4 {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
    },
    /// Type and code of RFC 4443.
    V6 {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
    },
}

/// Reads from an IP packet an ICMP error that quotes a TCP segment: the connection that the
/// segment belongs to, its sender taken for the client, and what the error is.
pub fn read_error(packet: &[u8]) -> Option<(FourTuple, IcmpError)> {
    let ip = Packet::read(packet)?;
    let (kind, code) = (*ip.payload.first()?, *ip.payload.get(1)?);
    let error = match ip.protocol {
        Protocol::ICMP => IcmpError::V4 { kind, code },
        Protocol::ICMPV6 => IcmpError::V6 { kind, code },
        _ => return None,
    };
    let quoted = Packet::read(ip.payload.get(HEADER..)?)?;
    (quoted.protocol == Protocol::TCP).then_some(())?;
    Some((quoted.four_tuple()?, error))
}

/// Makes an ICMP error, in an IP packet to the sender of a TCP segment: there is no route to the
/// receiver (type 3 code 0 of RFC 792, type 1 code 0 of RFC 4443). It quotes the segment as far as
/// both RFCs ask for: its addresses, its ports and its sequence number.
///
/// `segment` has its sender for the client. None if its addresses are of two families.
pub fn no_route(segment: FourTuple, number: SequenceNumber) -> Option<Vec<u8>> {
    let FourTuple { client, server } = segment;
    let mut quoted = client.port().to_be_bytes().to_vec();
    quoted.extend(server.port().to_be_bytes());
    quoted.extend(number.0.to_be_bytes());
    match (client.ip(), server.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut message = vec![3, 0, 0, 0, 0, 0, 0, 0];
            message.extend(ip::in_ipv4(from, to, Protocol::TCP, &quoted));
            let checksum = Checksum::of(&message);
            let message = with_checksum(message, checksum);
            Some(ip::in_ipv4(to, from, Protocol::ICMP, &message))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut message = vec![1, 0, 0, 0, 0, 0, 0, 0];
            message.extend(ip::in_ipv6(from, to, Protocol::TCP, &quoted));
            let (sender, receiver) = (to.into(), from.into());
            let checksum =
                Checksum::with_pseudo_header(sender, receiver, Protocol::ICMPV6, &message);
            let message = with_checksum(message, checksum);
            Some(ip::in_ipv6(to, from, Protocol::ICMPV6, &message))
        }
        _ => None,
    }
}

/// An echo request, or the reply to it (RFC 792, and RFC 4443, sections 4.1 and 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// The number that tells the requests of one sender from those of another.
    pub identifier: u16,
    /// Counts one sender's requests.
    pub sequence: u16,
    /// The data that the reply has to repeat.
    pub data: &'a [u8],
}

impl<'a> Echo<'a> {
    /// Makes the request as an ICMP message.
    pub fn request(&self) -> Vec<u8> {
        let message = self.message(REQUEST);
        let checksum = Checksum::of(&message);
        with_checksum(message, checksum)
    }

    /// Makes the request as an ICMPv6 message, whose checksum covers both addresses.
    pub fn request_v6(&self, from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
        let message = self.message(REQUEST_V6);
        let checksum =
            Checksum::with_pseudo_header(from.into(), to.into(), Protocol::ICMPV6, &message);
        with_checksum(message, checksum)
    }

    /// Reads a reply from an ICMP message; its checksum is not looked at.
    pub fn read_reply(message: &'a [u8]) -> Option<Self> {
        Self::read(message, REPLY)
    }

    /// Reads a reply from an ICMPv6 message; its checksum is not looked at.
    pub fn read_reply_v6(message: &'a [u8]) -> Option<Self> {
        Self::read(message, REPLY_V6)
    }

    /// Reads a request from an ICMP message; its checksum is not looked at.
    pub fn read_request(message: &'a [u8]) -> Option<Self> {
        Self::read(message, REQUEST)
    }

    /// Reads a request from an ICMPv6 message; its checksum is not looked at.
    pub fn read_request_v6(message: &'a [u8]) -> Option<Self> {
        Self::read(message, REQUEST_V6)
    }

    fn read(message: &'a [u8], wanted: u8) -> Option<Self> {
        let (header, data) = message.split_first_chunk::<HEADER>()?;
        let [kind, code, _, _, id_high, id_low, high, low] = *header;
        (kind == wanted && code == 0).then_some(Self {
            identifier: u16::from_be_bytes([id_high, id_low]),
            sequence: u16::from_be_bytes([high, low]),
            data,
        })
    }

    /// Returns the message, its checksum 0.
    fn message(&self, kind: u8) -> Vec<u8> {
        let mut message = vec![kind, 0, 0, 0];
        message.extend(self.identifier.to_be_bytes());
        message.extend(self.sequence.to_be_bytes());
        message.extend(self.data);
        message
    }
}

fn with_checksum(mut message: Vec<u8>, checksum: Checksum) -> Vec<u8> {
    message[2..4].copy_from_slice(&checksum.value().to_be_bytes());
    message
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::examples::{CLIENT, ICMP, ICMPV6, SERVER, TCP, four_tuple, segment, v4, v6};

    #[test]
    fn an_error_names_the_flow_that_it_quotes() {
        // Eight bytes of the segment are what must be quoted at least (RFC 792).
        let quoted = v4(TCP, CLIENT, SERVER, &segment(0x02, 1400)[..8]);
        let mut icmp = vec![3, 1, 0, 0, 0, 0, 0, 0];
        icmp.extend(&quoted);
        let packet = v4(ICMP, [10, 2, 0, 1], CLIENT, &icmp);
        let error = IcmpError::V4 { kind: 3, code: 1 };
        assert_eq!(read_error(&packet), Some((four_tuple(), error)));
        let quoted = v6(TCP, &segment(0x02, 1400));
        let mut icmp = vec![1, 3, 0, 0, 0, 0, 0, 0];
        icmp.extend(&quoted);
        let (_, error) = read_error(&v6(ICMPV6, &icmp)).unwrap();
        assert_eq!(error, IcmpError::V6 { kind: 1, code: 3 });
    }

    #[test]
    fn what_is_made_is_what_is_read() {
        let number = SequenceNumber(0x0102_0304);
        let packet = no_route(four_tuple(), number).unwrap();
        let error = IcmpError::V4 { kind: 3, code: 0 };
        assert_eq!(read_error(&packet), Some((four_tuple(), error)));
        assert!(packet.ends_with(&[1, 2, 3, 4]));
        assert_eq!(Checksum::of(&packet[20..]).value(), 0);
        let of_v6 = FourTuple {
            client: "[fd00:a::2]:1".parse().unwrap(),
            server: "[fd00:b::2]:2".parse().unwrap(),
        };
        let packet = no_route(of_v6, number).unwrap();
        let error = IcmpError::V6 { kind: 1, code: 0 };
        assert_eq!(read_error(&packet), Some((of_v6, error)));
        let ip = Packet::read(&packet).unwrap();
        assert_eq!(ip.payload_checksum(), 0);
        let mixed = FourTuple {
            server: four_tuple().server,
            ..of_v6
        };
        assert_eq!(no_route(mixed, number), None);
    }

    #[test]
    fn an_echo_request_is_as_the_rfc_has_it() {
        let echo = Echo {
            identifier: 0x1234,
            sequence: 1,
            data: b"pepd",
        };
        let request = echo.request();
        assert_eq!(request[..2], [8, 0]);
        assert_eq!(request[4..], *b"\x12\x34\x00\x01pepd");
        assert_eq!(Checksum::of(&request).value(), 0);
        let request = echo.request_v6(Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);
        assert_eq!(request[..2], [128, 0]);
        assert_eq!(Echo::read_reply(&request), None, "a request");
        let reply = [&[129], &request[1..]].concat();
        assert_eq!(Echo::read_reply_v6(&reply), Some(echo));
        assert_eq!(Echo::read_reply(&reply), None, "of the other family");
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(mut bytes in prop::collection::vec(any::<u8>(), 0..120), six in any::<bool>()) {
            if let Some(first) = bytes.first_mut() {
                *first = *first & 0x0f | if six { 0x60 } else { 0x40 };
            }
            let _ = (read_error(&bytes), Echo::read_reply(&bytes), Echo::read_reply_v6(&bytes));
        }
    }
}
