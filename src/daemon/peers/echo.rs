//! Echo requests and the answers to them, as bytes.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::IpAddr;

use pepd_packet::{Protocol, icmp, ip};

/// The requests to one peer, and what distinguishes their answers from those to somebody else's.
#[derive(Debug)]
pub struct Echo {
    local: IpAddr,
    remote: IpAddr,
    identifier: u16,
    /// The number of the last request; the message has its lowest 16 bits.
    count: u64,
    /// The first part of each request's data. Nobody who has never seen one makes the daemon read anything.
    nonce: [u8; 8],
    /// Makes the second part, which is another one in each: who does not see a request cannot answer it, whatever else
    /// he has seen.
    proofs: RandomState,
}

/// What tells the answers to one sender's requests from all else.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    /// The type of the message.
    pub kind: u8,
    /// The requests' identifier.
    pub identifier: u16,
    /// What the requests' data begins with.
    pub nonce: [u8; 8],
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
            count: 0,
            nonce: random().to_ne_bytes(),
            proofs: RandomState::new(),
        }
    }

    /// Returns the data of a request, by its number.
    fn data(&self, count: u64) -> [u8; 16] {
        let mut data = [0; 16];
        let (nonce, proof) = data.split_at_mut(8);
        nonce.copy_from_slice(&self.nonce);
        proof.copy_from_slice(&self.proofs.hash_one(count).to_ne_bytes());
        data
    }

    /// Returns the next request: for IPv4 the ICMP message alone, for IPv6 the packet with its
    /// header.
    pub fn next(&mut self) -> Vec<u8> {
        self.count = self.count.wrapping_add(1);
        let data = self.data(self.count);
        let echo = icmp::Echo {
            identifier: self.identifier,
            sequence: self.sequence(),
            data: &data,
        };
        match (self.local, self.remote) {
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                let message = echo.request_v6(local, remote);
                ip::in_ipv6(local, remote, Protocol::ICMPV6, &message)
            }
            _ => echo.request(),
        }
    }

    /// Returns what distinguishes answers.
    pub fn answer(&self) -> Answer {
        let kind = match self.remote {
            IpAddr::V4(_) => icmp::REPLY,
            IpAddr::V6(_) => icmp::REPLY_V6,
        };
        Answer {
            kind,
            identifier: self.identifier,
            nonce: self.nonce,
        }
    }

    /// Returns the number of the last request, as it is in the message.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the message has the lower 16 bits"
    )]
    pub fn sequence(&self) -> u16 {
        self.count as u16
    }

    /// Returns whether `packet` is a request of the peer's, as raw sockets give it.
    pub fn is_asked(&self, packet: &[u8]) -> bool {
        match self.remote {
            IpAddr::V4(_) => ip::Packet::read(packet)
                .is_some_and(|packet| icmp::Echo::read_request(packet.payload).is_some()),
            IpAddr::V6(_) => icmp::Echo::read_request_v6(packet).is_some(),
        }
    }

    /// Returns the number of the request that `packet` answers. For IPv4 it begins with the IP
    /// header, for IPv6 it does not: so raw sockets give them (raw(7)). The kernel has looked at
    /// the checksum of ICMPv6; of ICMP the data tells as much.
    pub fn answers(&self, packet: &[u8]) -> Option<u16> {
        let reply = match self.remote {
            IpAddr::V4(_) => icmp::Echo::read_reply(ip::Packet::read(packet)?.payload)?,
            IpAddr::V6(_) => icmp::Echo::read_reply_v6(packet)?,
        };
        let ago = self.sequence().wrapping_sub(reply.sequence);
        let data = self.data(self.count.wrapping_sub(ago.into()));
        let ours = reply.identifier == self.identifier && reply.data == data;
        ours.then_some(reply.sequence)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use pepd_packet::checksum::Checksum;

    use super::*;

    fn v4() -> Echo {
        Echo::new([192, 0, 2, 1].into(), [192, 0, 2, 2].into())
    }

    fn v6() -> Echo {
        let address = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last).into();
        Echo::new(address(1), address(2))
    }

    /// Returns what a host sends back, as a raw socket shows it.
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
            let asked = answer(&request, 8, &header);
            assert_eq!(echo.answers(&asked), None);
            assert!(echo.is_asked(&asked) && !echo.is_asked(&answer(&request, 0, &header)));
            assert_eq!(v4().answers(&answer(&request, 0, &header)), None);
        }
        let mut echo = v6();
        let request = echo.next();
        assert_eq!(echo.answers(&answer(&request[40..], 129, &[])), Some(1));
        assert_eq!(v6().answers(&answer(&request[40..], 129, &[])), None);
        assert!(echo.is_asked(&request[40..]));
        assert!(!echo.is_asked(&answer(&request[40..], 129, &[])));
    }

    /// Who has seen one request cannot answer the next: no two have the same data, also where the number is the same
    /// again.
    #[test]
    fn no_request_tells_the_answer_to_another() {
        let header = [&[0x45][..], &[0; 19]].concat();
        let mut echo = v4();
        let old = echo.next();
        for _ in 0..0xffff {
            echo.next();
        }
        let (mut next, number) = (echo.next(), echo.sequence());
        assert_eq!(number, 1, "as the first one");
        assert_eq!(echo.answers(&answer(&old, 0, &header)), None);
        assert_eq!(echo.answers(&answer(&next, 0, &header)), Some(1));
        next.truncate(8);
        next.extend(&old[8..]);
        assert_eq!(echo.answers(&answer(&next, 0, &header)), None);
    }

    #[test]
    fn the_checksums_are_right() {
        let request = v4().next();
        // Over a message with its checksum the sum is all ones, and the checksum 0.
        assert_eq!(Checksum::of(&request).value(), 0);
        let request = v6().next();
        let (header, message) = request.split_at(40);
        let mut all = header[8..].to_vec();
        all.extend([0, 0, 0, 24, 0, 0, 0, 58]);
        all.extend(message);
        assert_eq!(Checksum::of(&all).value(), 0);
        assert_eq!(header[..8], [0x60, 0, 0, 0, 0, 24, 58, 64]);
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
                assert!(!echo.is_asked(&packet) && !v6().is_asked(&packet));
            }
        }
    }
}
