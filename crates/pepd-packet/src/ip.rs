//! IPv4 and IPv6 headers, read and written.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::checksum::Checksum;
use crate::four_tuple::FourTuple;
use crate::protocol::Protocol;

/// The TTL or hop limit of packets made here (RFC 1122, section 3.2.1.7).
const HOP_LIMIT: u8 = 64;

/// An IP packet: what its header says, and what follows the header and its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The address that it comes from.
    pub source: IpAddr,
    /// The address that it goes to.
    pub destination: IpAddr,
    /// The differentiated services code point, 0 to 63 (RFC 2474).
    pub dscp: u8,
    /// The protocol of the payload.
    pub protocol: Protocol,
    /// The bytes that follow the header and its extensions, as far as they are there.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a packet of either family. None where it is cut off within the header, where the
    /// header says that it is shorter than a header is, or where it is a later fragment, which lacks
    /// the header of what it carries.
    pub fn read(packet: &'a [u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::read_v4(packet),
            6 => Self::read_v6(packet),
            _ => None,
        }
    }

    /// Reads an IPv4 packet (RFC 791, section 3.1).
    fn read_v4(packet: &'a [u8]) -> Option<Self> {
        let header = packet.first_chunk::<20>()?;
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
        let length = usize::from(header[0] & 0x0f) * 4;
        (fragment == 0 && length >= header.len()).then_some(())?;
        let address = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?));
        Some(Self {
            source: address(12)?.into(),
            destination: address(16)?.into(),
            dscp: dscp(packet)?,
            protocol: Protocol(header[9]),
            payload: packet.get(length..)?,
        })
    }

    /// Reads an IPv6 packet (RFC 8200, section 3).
    fn read_v6(packet: &'a [u8]) -> Option<Self> {
        const HOP_BY_HOP: u8 = 0;
        const ROUTING: u8 = 43;
        const DESTINATION: u8 = 60;
        let header = packet.first_chunk::<40>()?;
        let address = |at: usize| Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?));
        let (mut protocol, mut payload) = (header[6], packet.get(40..)?);
        while matches!(protocol, HOP_BY_HOP | ROUTING | DESTINATION) {
            // In units of eight bytes, the first not counted (RFC 8200, section 4).
            let len = (usize::from(*payload.get(1)?) + 1) * 8;
            protocol = *payload.first()?;
            payload = payload.get(len..)?;
        }
        Some(Self {
            source: address(8)?.into(),
            destination: address(24)?.into(),
            dscp: dscp(packet)?,
            protocol: Protocol(protocol),
            payload,
        })
    }

    /// Returns the checksum of the payload, including the one in its header, and of the pseudo
    /// header: 0 where it is right.
    pub fn payload_checksum(&self) -> u16 {
        Checksum::with_pseudo_header(self.source, self.destination, self.protocol, self.payload)
            .value()
    }

    /// Returns the connection that a payload of TCP belongs to, its sender taken for the client.
    pub(crate) fn four_tuple(&self) -> Option<FourTuple> {
        let ports = self.payload.first_chunk::<4>()?;
        let port = |high, low| u16::from_be_bytes([high, low]);
        Some(FourTuple {
            client: SocketAddr::new(self.source, port(ports[0], ports[1])),
            server: SocketAddr::new(self.destination, port(ports[2], ports[3])),
        })
    }
}

/// Reads the differentiated services code point, 0 to 63 (RFC 2474), of a header that may be
/// cut off behind it: the upper six bits of the TOS byte (RFC 791) or of the traffic class (RFC
/// 8200).
pub fn dscp(header: &[u8]) -> Option<u8> {
    let (&first, &second) = (header.first()?, header.get(1)?);
    match first >> 4 {
        4 => Some(second >> 2),
        6 => Some((first & 0x0f) << 2 | second >> 6),
        _ => None,
    }
}

/// The most payload that fits into an IPv4 packet without options, and so into either.
pub const LARGEST_PAYLOAD: usize = u16::MAX as usize - 20;

/// Makes an IPv4 packet that is not to be fragmented (RFC 791, section 3.1), of at most
/// [`LARGEST_PAYLOAD`].
pub fn in_ipv4(from: Ipv4Addr, to: Ipv4Addr, protocol: Protocol, payload: &[u8]) -> Vec<u8> {
    const DO_NOT_FRAGMENT: u8 = 0x40;
    let length = u16::try_from(20 + payload.len()).unwrap_or(u16::MAX);
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, DO_NOT_FRAGMENT, 0, HOP_LIMIT, protocol.0, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    let checksum = Checksum::of(&packet).value();
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(payload);
    packet
}

/// Makes an IPv6 packet (RFC 8200, section 3), of at most 65,535 bytes of payload.
pub fn in_ipv6(from: Ipv6Addr, to: Ipv6Addr, protocol: Protocol, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([protocol.0, HOP_LIMIT]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(payload);
    packet
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_dscp_is_read_from_either_family() {
        assert_eq!(dscp(&[0x45, 46 << 2 | 1]), Some(46));
        // Traffic class 0xb8 (DSCP 46), spread over two bytes.
        assert_eq!(dscp(&[0x6b, 0x80]), Some(46));
        assert_eq!(dscp(&[0x45]), None);
        assert_eq!(dscp(&[0, 0]), None);
    }

    #[test]
    fn a_header_is_no_part_of_what_it_carries() {
        let mut packet = in_ipv4(
            Ipv4Addr::LOCALHOST,
            Ipv4Addr::LOCALHOST,
            Protocol::TCP,
            &[0; 20],
        );
        assert!(Packet::read(&packet).is_some());
        for length in 0..5 {
            packet[0] = 0x40 | length;
            assert_eq!(Packet::read(&packet), None, "{length}");
        }
    }

    proptest! {
        #[test]
        fn what_is_made_is_read(
            from4: Ipv4Addr,
            to4: Ipv4Addr,
            from6: Ipv6Addr,
            to6: Ipv6Addr,
            payload in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let v4 = in_ipv4(from4, to4, Protocol::TCP, &payload);
            prop_assert_eq!(Checksum::of(&v4[..20]).value(), 0);
            prop_assert_eq!(usize::from(u16::from_be_bytes([v4[2], v4[3]])), v4.len());
            let v6 = in_ipv6(from6, to6, Protocol::TCP, &payload);
            prop_assert_eq!(usize::from(u16::from_be_bytes([v6[4], v6[5]])), payload.len());
            for (packet, source, destination) in [
                (v4, IpAddr::V4(from4), IpAddr::V4(to4)),
                (v6, IpAddr::V6(from6), IpAddr::V6(to6)),
            ] {
                let read = Packet { source, destination, dscp: 0, protocol: Protocol::TCP, payload: &payload };
                prop_assert_eq!(Packet::read(&packet), Some(read));
            }
        }
    }
}
