//! SYNs and RSTs (RFC 9293).

use crate::four_tuple::FourTuple;
use crate::ip::Packet;
use crate::protocol::Protocol;
use crate::segment::flag::{ACK, FIN, RST, SYN, URG};

/// The bytes of a TCP header before its options (RFC 9293, section 3.1).
pub(crate) const FIXED_HEADER: usize = 20;

/// A SYN's sequence number (RFC 9293, section 3.4.1): the same for each retransmission, and
/// another one for a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceNumber(pub u32);

/// A client's SYN, as far as it shapes the upstream one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syn {
    /// The connection that it asks for.
    pub four_tuple: FourTuple,
    /// Its sequence number.
    pub number: SequenceNumber,
    /// The DSCP, 0 to 63 (RFC 2474).
    pub dscp: u8,
    /// The largest segment in bytes that the client takes (RFC 9293, section 3.7.1).
    pub mss: Option<u16>,
    /// The data that it carries, with the cookie that is to vouch for it.
    pub data: Option<SynData>,
}

/// Data in a SYN (RFC 7413).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SynData {
    /// The cookie, which is to prove that the client has the address that it claims.
    pub cookie: FastOpenCookie,
    /// The data.
    pub bytes: Vec<u8>,
}

/// A Fast Open cookie (RFC 7413, section 4.1.2): of the 4 to 16 bytes that it may have, the 8
/// that Linux makes (TCP_FASTOPEN_COOKIE_SIZE, include/net/tcp.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastOpenCookie(pub [u8; 8]);

impl Syn {
    /// Reads a SYN from an IP packet; none where the packet is something else.
    pub fn read(packet: &[u8]) -> Option<Self> {
        let ip = Packet::read(packet)?;
        let segment = ip.payload;
        let offset = usize::from(*segment.get(12)? >> 4) * 4;
        if ip.protocol != Protocol::TCP || flags(segment)? != SYN {
            return None;
        }
        // Its destination would discard it (tcp_v4_rcv, net/ipv4/tcp_ipv4.c). Nobody has looked at
        // the checksum of what is forwarded; nfnetlink_queue completes those that are left to a device.
        let is_whole = (FIXED_HEADER..=segment.len()).contains(&offset);
        if !is_whole || ip.payload_checksum() != 0 {
            return None;
        }
        Some(Self {
            four_tuple: ip.four_tuple()?,
            number: number(segment)?,
            dscp: ip.dscp,
            mss: segment.get(FIXED_HEADER..offset).and_then(mss),
            data: data(segment, offset),
        })
    }
}

/// A RST that answers a segment of no connection (RFC 9293, section 3.10.7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The connection, with the sender as the client.
    pub four_tuple: FourTuple,
    /// Its sequence number: what that segment acknowledged.
    pub number: SequenceNumber,
}

impl Reset {
    /// Reads one from an IP packet; none where the packet is something else.
    pub fn read(packet: &[u8]) -> Option<Self> {
        let ip = Packet::read(packet)?;
        if ip.protocol != Protocol::TCP || flags(ip.payload)? != RST {
            return None;
        }
        Some(Self {
            four_tuple: ip.four_tuple()?,
            number: number(ip.payload)?,
        })
    }
}

/// Reads from an IP packet a segment of a connection whose sender has heard of the other end (RFC
/// 9293, section 3.10.7): the connection, with its sender as the client.
pub fn read_ack(packet: &[u8]) -> Option<FourTuple> {
    let ip = Packet::read(packet)?;
    let flags = flags(ip.payload)?;
    let is_one = ip.protocol == Protocol::TCP && flags & (SYN | RST | ACK) == ACK;
    is_one.then(|| ip.four_tuple()).flatten()
}

fn number(segment: &[u8]) -> Option<SequenceNumber> {
    let bytes = segment.get(4..)?.first_chunk()?;
    Some(SequenceNumber(u32::from_be_bytes(*bytes)))
}

/// Returns those of the control bits that tell a SYN and a RST from other segments.
fn flags(segment: &[u8]) -> Option<u8> {
    Some(segment.get(13)? & (FIN | SYN | RST | ACK))
}

/// Returns the value of the MSS option, where it is there and whole.
fn mss(options: &[u8]) -> Option<u16> {
    const MSS: u8 = 2;
    let value = option(options, MSS)?;
    Some(u16::from_be_bytes(value.try_into().ok()?))
}

/// Returns the data behind the header, where there is a cookie.
fn data(segment: &[u8], offset: usize) -> Option<SynData> {
    const FAST_OPEN: u8 = 34;
    let bytes = segment.get(offset..).filter(|bytes| !bytes.is_empty())?;
    let cookie = option(segment.get(FIXED_HEADER..offset)?, FAST_OPEN)?;
    let is_urgent = segment.get(13)? & URG != 0;
    (!is_urgent).then_some(SynData {
        cookie: FastOpenCookie(cookie.try_into().ok()?),
        bytes: bytes.to_vec(),
    })
}

/// Returns the value of the option of this kind, where it is there and whole.
pub(crate) fn option(mut options: &[u8], wanted: u8) -> Option<&[u8]> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    loop {
        match *options.first()? {
            END => return None,
            NOTHING => options = options.get(1..)?,
            kind => {
                let len = usize::from(*options.get(1)?);
                let value = options.get(2..len)?;
                if kind == wanted {
                    return Some(value);
                }
                options = options.get(len..)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::examples::{CLIENT, SERVER, SYN_NUMBER, TCP, four_tuple, segment, v4, v6};

    #[test]
    fn a_syn_is_read_in_either_family() {
        let expected = Syn {
            four_tuple: four_tuple(),
            number: SequenceNumber(SYN_NUMBER),
            dscp: 46,
            mss: Some(1400),
            data: None,
        };
        let packet = v4(TCP, CLIENT, SERVER, &segment(0x02, 1400));
        assert_eq!(Syn::read(&packet).as_ref(), Some(&expected));
        // With ECN (RFC 3168) it is a SYN all the same.
        let packet = v4(TCP, CLIENT, SERVER, &segment(0xc2, 1400));
        assert_eq!(Syn::read(&packet), Some(expected));

        let mut extended = vec![TCP, 0, 0, 0, 0, 0, 0, 0];
        extended.extend(segment(0x02, 1220));
        for packet in [v6(TCP, &segment(0x02, 1220)), v6(60, &extended)] {
            let read = Syn::read(&packet).unwrap();
            assert_eq!((read.dscp, read.mss), (46, Some(1220)));
            assert_eq!(read.four_tuple.client, "[fd00:a::2]:40000".parse().unwrap());
            assert_eq!(read.four_tuple.server, "[fd00:b::2]:80".parse().unwrap());
        }
    }

    #[test]
    fn what_is_no_syn_is_none() {
        let syn = |packet: &[u8]| Syn::read(packet);
        for flags in [0x12, 0x10, 0x04, 0x01, 0x03, 0] {
            assert_eq!(syn(&v4(TCP, CLIENT, SERVER, &segment(flags, 1400))), None);
        }
        assert_eq!(syn(&v4(17, CLIENT, SERVER, &segment(0x02, 1400))), None);
        let mut fragment = v4(TCP, CLIENT, SERVER, &segment(0x02, 1400));
        fragment[7] = 1;
        assert_eq!(syn(&fragment), None);
        let whole = segment(0x02, 1400);
        for len in 0..whole.len() {
            assert_eq!(syn(&v4(TCP, CLIENT, SERVER, &whole[..len])), None, "{len}");
        }
        let mut short = whole;
        short[12] = 4 << 4;
        assert_eq!(syn(&v4(TCP, CLIENT, SERVER, &short)), None);
    }

    #[test]
    fn a_rst_names_its_flow() {
        let reset = |flags| Reset::read(&v4(TCP, CLIENT, SERVER, &segment(flags, 1400)));
        let expected = Reset {
            four_tuple: four_tuple(),
            number: SequenceNumber(SYN_NUMBER),
        };
        assert_eq!(reset(0x04), Some(expected));
        for flags in [0x14, 0x02, 0x10] {
            assert_eq!(reset(flags), None);
        }
    }

    #[test]
    fn an_acknowledgement_names_its_flow() {
        let ack = |flags| read_ack(&v4(TCP, CLIENT, SERVER, &segment(flags, 1400)));
        for flags in [0x10, 0x18, 0x11] {
            assert_eq!(ack(flags), Some(four_tuple()));
        }
        for flags in [0x02, 0x12, 0x04, 0x14, 0] {
            assert_eq!(ack(flags), None);
        }
    }

    /// Returns a SYN with a Fast Open cookie and data.
    fn fast_open(flags: u8, data: &[u8]) -> Vec<u8> {
        let mut tcp = segment(flags, 1400);
        tcp[12] = 10 << 4;
        // More options follow.
        tcp[26..28].fill(1);
        tcp.extend([34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1]);
        tcp.extend(data);
        v4(TCP, CLIENT, SERVER, &tcp)
    }

    #[test]
    fn data_with_a_cookie_is_what_the_client_says_first() {
        for data in [&b"GET /"[..], b"even"] {
            let first = SynData {
                cookie: FastOpenCookie([1, 2, 3, 4, 5, 6, 7, 8]),
                bytes: data.to_vec(),
            };
            let syn = Syn::read(&fast_open(0x02, data)).unwrap();
            assert_eq!(syn.data, Some(first));
        }
        let first = |packet: &[u8]| Syn::read(packet).unwrap().data;
        assert_eq!(first(&fast_open(0x02, b"")), None);
        assert_eq!(first(&fast_open(0x22, b"urgent")), None);
        let mut packet = fast_open(0x02, b"GET /");
        *packet.last_mut().unwrap() ^= 1;
        assert_eq!(Syn::read(&packet), None, "damaged");
        packet.pop();
        assert_eq!(Syn::read(&packet), None, "cut off");
    }

    #[test]
    fn a_syn_that_was_damaged_is_none() {
        let packet = v4(TCP, CLIENT, SERVER, &segment(0x02, 1400));
        // All that the checksum covers but the flags: addresses, ports, number, options, itself.
        for byte in (12..20).chain(20..28).chain(36..packet.len()) {
            let mut damaged = packet.clone();
            damaged[byte] ^= 4;
            assert_eq!(Syn::read(&damaged), None, "byte {byte}");
        }
    }

    #[test]
    fn an_mss_that_is_cut_off_is_none() {
        assert_eq!(mss(&[2, 4, 5]), None);
        assert_eq!(mss(&[3, 0, 2, 4, 5, 6]), None);
        assert_eq!(mss(&[2, 3, 5, 6]), None);
        assert_eq!(mss(&[0, 2, 4, 5, 6]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(mut bytes in prop::collection::vec(any::<u8>(), 0..120), six in any::<bool>()) {
            if let Some(first) = bytes.first_mut() {
                *first = *first & 0x0f | if six { 0x60 } else { 0x40 };
            }
            let _ = (Syn::read(&bytes), Reset::read(&bytes));
        }
    }
}
