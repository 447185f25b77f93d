//! TCP segments that are made here (RFC 9293, section 3.1).

use std::net::{IpAddr, SocketAddr};

use crate::checksum::Checksum;
use crate::ip;
use crate::protocol::Protocol;
use crate::tcp::FIXED_HEADER;

/// The control bits of a segment.
pub mod flag {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// The first segment of either side.
    pub const SYN: u8 = 0x02;
    /// The connection is reset.
    pub const RST: u8 = 0x04;
    /// The data is to be delivered at once.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement counts.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer counts.
    pub const URG: u8 = 0x20;
}

/// The longest TCP header.
const LONGEST_HEADER: usize = 60;

/// A TCP segment, whosever it says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The sender that it claims.
    pub from: SocketAddr,
    /// The receiver, of the same family.
    pub to: SocketAddr,
    /// The control bits, of [`flag`].
    pub flags: u8,
    /// The sequence number.
    pub sequence: u32,
    /// The acknowledgement number; sent as it is, whatever the flags say.
    pub acknowledgement: u32,
    /// The window as it is written, before it is scaled.
    pub window: u16,
    /// The options, a multiple of four bytes.
    pub options: Vec<u8>,
    /// The data.
    pub payload: Vec<u8>,
}

impl Segment {
    /// Returns a segment without options and data, with the largest window.
    #[must_use]
    pub fn new(flags: u8, from: SocketAddr, to: SocketAddr, sequence: u32) -> Self {
        Self {
            from,
            to,
            flags,
            sequence,
            acknowledgement: 0,
            window: u16::MAX,
            options: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// Returns a first SYN.
    #[must_use]
    pub fn syn(from: SocketAddr, to: SocketAddr, sequence: u32) -> Self {
        Self::new(flag::SYN, from, to, sequence)
    }

    /// Returns the IP packet that carries it; none where the two addresses are not of one family, the
    /// options are not whole words or more than there is room for, or the packet would be too long.
    #[must_use]
    pub fn packet(&self) -> Option<Vec<u8>> {
        let header = FIXED_HEADER + self.options.len();
        let words = u8::try_from(header / 4).ok()?;
        let length = header + self.payload.len();
        if !header.is_multiple_of(4) || header > LONGEST_HEADER || length > ip::LARGEST_PAYLOAD {
            return None;
        }
        let mut tcp = Vec::with_capacity(length);
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(self.acknowledgement.to_be_bytes());
        tcp.extend([words << 4, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        let (from, to) = (self.from.ip(), self.to.ip());
        let sum = Checksum::with_pseudo_header(from, to, Protocol::TCP, &tcp).value();
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Some(ip::in_ipv4(from, to, Protocol::TCP, &tcp)),
            (IpAddr::V6(from), IpAddr::V6(to)) => Some(ip::in_ipv6(from, to, Protocol::TCP, &tcp)),
            _ => None,
        }
    }
}

/// Writes a timestamps option behind two that say nothing, as hosts do (RFC 7323, appendix A).
#[must_use]
pub fn timestamps(value: u32, echo: u32) -> Vec<u8> {
    let mut option = vec![1, 1, 8, 10];
    option.extend(value.to_be_bytes());
    option.extend(echo.to_be_bytes());
    option
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::Packet;

    #[test]
    fn what_is_made_is_whole_and_can_be_read() {
        for (from, to) in [
            ("10.1.0.2:40000", "10.2.0.2:80"),
            ("[fd00:a::2]:40000", "[fd00:b::2]:80"),
        ] {
            let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
            let mut segment = Segment::new(flag::ACK | flag::PSH, from, to, 7);
            segment.acknowledgement = 8;
            segment.options = timestamps(1, 2);
            segment.payload = b"odd".to_vec();
            let packet = segment.packet().unwrap();
            let read = Packet::read(&packet).unwrap();
            assert_eq!(read.payload_checksum(), 0);
            assert_eq!(read.four_tuple().unwrap().client, from);
            assert_eq!(read.four_tuple().unwrap().server, to);
            assert_eq!(&read.payload[32..], b"odd");
            segment.options = vec![1; 41];
            assert_eq!(
                segment.packet(),
                None,
                "more options than there is room for"
            );
            segment.options = vec![1; 3];
            assert_eq!(segment.packet(), None, "not a word");
            segment.options.clear();
            segment.payload = vec![0; 65_535];
            assert_eq!(segment.packet(), None, "too long");
        }
        let mixed = Segment::syn("10.1.0.2:1".parse().unwrap(), "[::1]:1".parse().unwrap(), 7);
        assert_eq!(mixed.packet(), None);
    }
}
