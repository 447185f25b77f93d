//! Echo requests and the answers to them, as bytes.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};

/// RFC 792, and RFC 4443, sections 4.1 and 4.2.
const REQUEST_V4: u8 = 8;
const ANSWER_V4: u8 = 0;
const REQUEST_V6: u8 = 128;
const ANSWER_V6: u8 = 129;

/// IPv6's number for ICMPv6.
const ICMPV6: u8 = 58;

/// Type, code, checksum, identifier and sequence number.
const HEADER: usize = 8;

/// The requests to one peer, and what tells their answers from those to somebody else's.
#[derive(Debug)]
pub struct Echo {
    local: IpAddr,
    remote: IpAddr,
    identifier: u16,
    sequence: u16,
    /// Nobody who does not see the request can answer it.
    nonce: [u8; 8],
}

impl Echo {
    /// Requests from `local` to `remote`.
    pub fn new(local: IpAddr, remote: IpAddr) -> Self {
        let random = || RandomState::new().build_hasher().finish();
        let [high, low, ..] = random().to_ne_bytes();
        Self {
            local,
            remote,
            identifier: u16::from_ne_bytes([high, low]),
            sequence: 0,
            nonce: random().to_ne_bytes(),
        }
    }

    /// The next request: for IPv4 the ICMP message alone, for IPv6 the packet with its header.
    pub fn next(&mut self) -> Vec<u8> {
        self.sequence = self.sequence.wrapping_add(1);
        match (self.local, self.remote) {
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                let pseudo = |length| pseudo_header(local, remote, length);
                let message = self.message(REQUEST_V6, &pseudo(HEADER + self.nonce.len()));
                in_ipv6(local, remote, &message)
            }
            _ => self.message(REQUEST_V4, &[]),
        }
    }

    /// The number of the last request.
    pub fn sequence(&self) -> u16 {
        self.sequence
    }

    /// The number of the request that `packet` answers. For IPv4 it begins with the IP header,
    /// for IPv6 it does not: so raw sockets give them (raw(7)). The kernel has looked at the
    /// checksum of ICMPv6; of ICMP the nonce tells as much.
    pub fn answers(&self, packet: &[u8]) -> Option<u16> {
        let (message, answer) = match self.remote {
            IpAddr::V4(_) => {
                let header = usize::from(packet.first()? & 0xf) * 4;
                (packet.get(header..)?, ANSWER_V4)
            }
            IpAddr::V6(_) => (packet, ANSWER_V6),
        };
        let (header, nonce) = message.split_at_checked(HEADER)?;
        let &[kind, code, _, _, id_high, id_low, high, low] = header else {
            return None;
        };
        let ours = kind == answer
            && code == 0
            && u16::from_be_bytes([id_high, id_low]) == self.identifier
            && nonce == self.nonce;
        ours.then_some(u16::from_be_bytes([high, low]))
    }

    /// The message, with a checksum over `before` as well.
    fn message(&self, kind: u8, before: &[u8]) -> Vec<u8> {
        let mut message = vec![kind, 0, 0, 0];
        message.extend(self.identifier.to_be_bytes());
        message.extend(self.sequence.to_be_bytes());
        message.extend(self.nonce);
        let checksum = checksum(before.iter().chain(&message));
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        message
    }
}

/// RFC 8200, section 8.1.
fn pseudo_header(from: Ipv6Addr, to: Ipv6Addr, length: usize) -> Vec<u8> {
    let mut header = [from.octets(), to.octets()].concat();
    // Two bytes of length are enough for ours.
    let length = u16::try_from(length).unwrap_or(u16::MAX);
    header.extend([0, 0]);
    header.extend(length.to_be_bytes());
    header.extend([0, 0, 0, ICMPV6]);
    header
}

/// RFC 8200, section 3.
fn in_ipv6(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    const HOP_LIMIT: u8 = 64;
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([ICMPV6, HOP_LIMIT]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(message);
    packet
}

/// RFC 1071, of an even number of bytes.
fn checksum<'b>(bytes: impl Iterator<Item = &'b u8>) -> u16 {
    let bytes: Vec<u8> = bytes.copied().collect();
    let mut sum: u32 = bytes
        .chunks_exact(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    #[allow(clippy::cast_possible_truncation, reason = "folded to 16 bits")]
    let folded = sum as u16;
    !folded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4() -> Echo {
        Echo::new([192, 0, 2, 1].into(), [192, 0, 2, 2].into())
    }

    fn v6() -> Echo {
        let address = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last).into();
        Echo::new(address(1), address(2))
    }

    /// What a host sends back, as a raw socket shows it.
    fn answer(request: &[u8], kind: u8, header: &[u8]) -> Vec<u8> {
        let mut answer = header.to_vec();
        answer.push(kind);
        answer.extend(&request[1..]);
        answer
    }

    #[test]
    fn an_answer_is_known_by_its_number() {
        let mut echo = v4();
        let header = [&[0x45][..], &[0; 19]].concat();
        for sequence in 1..4 {
            let request = echo.next();
            assert_eq!(echo.answers(&answer(&request, 0, &header)), Some(sequence));
            // With options in the header.
            let longer = [&[0x46][..], &[0; 23]].concat();
            assert_eq!(echo.answers(&answer(&request, 0, &longer)), Some(sequence));
            // The request itself, as over loopback.
            assert_eq!(echo.answers(&answer(&request, 8, &header)), None);
            assert_eq!(v4().answers(&answer(&request, 0, &header)), None);
        }
        let mut echo = v6();
        let request = echo.next();
        assert_eq!(echo.answers(&answer(&request[40..], 129, &[])), Some(1));
        assert_eq!(v6().answers(&answer(&request[40..], 129, &[])), None);
    }

    #[test]
    fn the_checksums_are_right() {
        let request = v4().next();
        // Over a message with its checksum the sum is all ones, and the checksum 0.
        assert_eq!(checksum(request.iter()), 0);
        let request = v6().next();
        let (header, message) = request.split_at(40);
        let mut all = header[8..].to_vec();
        all.extend([0, 0, 0, 16, 0, 0, 0, 58]);
        all.extend(message);
        assert_eq!(checksum(all.iter()), 0);
        assert_eq!(header[..8], [0x60, 0, 0, 0, 0, 16, 58, 64]);
    }

    #[test]
    fn whatever_comes_is_no_answer() {
        let echo = v4();
        for length in 0..64 {
            for first in [0_u8, 0x45, 0x4f, 0xff] {
                let mut packet = vec![0; length];
                if let Some(byte) = packet.first_mut() {
                    *byte = first;
                }
                assert_eq!(echo.answers(&packet), None);
                assert_eq!(v6().answers(&packet), None);
            }
        }
    }
}
