//! What is read from a held packet: a client's SYN, or an ICMP error about one of ours. Both
//! come from the network and are trusted for nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use pepd_sys::stream::IcmpError;

use crate::fast_open::Cookie;

const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// The four addresses of a connection, as its client has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
}

impl Flow {
    /// The same connection as its other end would open it.
    pub(crate) fn reversed(self) -> Self {
        Self {
            client: self.server,
            server: self.client,
        }
    }
}

/// A SYN's sequence number (RFC 9293, section 3.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SequenceNumber(pub(crate) u32);

/// A client's SYN, as far as it shapes the upstream one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Syn {
    pub(crate) flow: Flow,
    /// The same for each repetition, and another one for a new connection.
    pub(crate) number: SequenceNumber,
    /// The DSCP, 0 to 63.
    pub(crate) dscp: u8,
    /// The largest segment that the client takes (RFC 9293, section 3.7.1).
    pub(crate) mss: Option<u16>,
    /// What it says first, with the cookie that is to vouch for it.
    pub(crate) first: Option<First>,
}

/// Data in a SYN (RFC 7413).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct First {
    pub(crate) cookie: Cookie,
    pub(crate) data: Vec<u8>,
}

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const FIN_SYN_RST_ACK: u8 = 0x17;

/// Reads a SYN; none where the packet is something else.
pub(crate) fn syn(packet: &[u8]) -> Option<Syn> {
    let ip = Ip::read(packet)?;
    let segment = ip.payload;
    let offset = usize::from(*segment.get(12)? >> 4) * 4;
    if ip.protocol != TCP || segment.get(13)? & FIN_SYN_RST_ACK != SYN {
        return None;
    }
    Some(Syn {
        flow: ip.flow()?,
        number: SequenceNumber(u32::from_be_bytes(*segment.get(4..)?.first_chunk()?)),
        dscp: ip.dscp,
        mss: segment.get(20..offset).and_then(mss),
        first: first(&ip, offset),
    })
}

/// Reads a RST that answers a segment of no connection: the flow of its sender.
pub(crate) fn reset(packet: &[u8]) -> Option<Flow> {
    let ip = Ip::read(packet)?;
    let is_one = ip.protocol == TCP && ip.payload.get(13)? & FIN_SYN_RST_ACK == RST;
    is_one.then(|| ip.flow()).flatten()
}

/// The value of the MSS option, where it is there and whole.
fn mss(options: &[u8]) -> Option<u16> {
    const MSS: u8 = 2;
    let value = option(options, MSS)?;
    Some(u16::from_be_bytes(value.try_into().ok()?))
}

/// The data behind the header, where there is a cookie, and nothing was damaged or cut off: the
/// kernel has not looked at the checksum yet.
fn first(ip: &Ip<'_>, offset: usize) -> Option<First> {
    const FAST_OPEN: u8 = 34;
    const URG: u8 = 0x20;
    let segment = ip.payload;
    let data = segment.get(offset..).filter(|data| !data.is_empty())?;
    let cookie = option(segment.get(20..offset)?, FAST_OPEN)?;
    let whole = segment.get(13)? & URG == 0 && ip.checksum() == 0;
    whole.then_some(First {
        cookie: cookie.try_into().ok()?,
        data: data.to_vec(),
    })
}

/// The value of the option of this kind, where it is there and whole.
fn option(mut options: &[u8], wanted: u8) -> Option<&[u8]> {
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

/// Reads an ICMP error that quotes a TCP segment: the flow that the segment belongs to, and
/// what the error is.
pub(crate) fn icmp_error(packet: &[u8]) -> Option<(Flow, IcmpError)> {
    let ip = Ip::read(packet)?;
    let (kind, code) = (*ip.payload.first()?, *ip.payload.get(1)?);
    let error = match ip.protocol {
        ICMP => IcmpError::V4 { kind, code },
        ICMPV6 => IcmpError::V6 { kind, code },
        _ => return None,
    };
    let quoted = Ip::read(ip.payload.get(8..)?)?;
    (quoted.protocol == TCP).then_some(())?;
    Some((quoted.flow()?, error))
}

/// An IP packet's header, and what follows it and its extensions.
struct Ip<'a> {
    source: IpAddr,
    destination: IpAddr,
    dscp: u8,
    protocol: u8,
    payload: &'a [u8],
}

impl<'a> Ip<'a> {
    fn read(packet: &'a [u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::read_v4(packet),
            6 => Self::read_v6(packet),
            _ => None,
        }
    }

    fn read_v4(packet: &'a [u8]) -> Option<Self> {
        let header = packet.first_chunk::<20>()?;
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
        (fragment == 0).then_some(())?;
        let address = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?));
        Some(Self {
            source: address(12)?.into(),
            destination: address(16)?.into(),
            dscp: header[1] >> 2,
            protocol: header[9],
            payload: packet.get(usize::from(header[0] & 0x0f) * 4..)?,
        })
    }

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
            dscp: (header[0] & 0x0f) << 2 | header[1] >> 6,
            protocol,
            payload,
        })
    }

    /// The checksum of the segment with that in its header (RFC 9293, section 3.1): 0 where it is
    /// right.
    fn checksum(&self) -> u16 {
        let pseudo: u32 = match (self.source, self.destination) {
            (IpAddr::V4(from), IpAddr::V4(to)) => words(&from.octets()) + words(&to.octets()),
            (IpAddr::V6(from), IpAddr::V6(to)) => words(&from.octets()) + words(&to.octets()),
            _ => 0,
        };
        let len = u32::try_from(self.payload.len()).unwrap_or(u32::MAX) & 0xffff;
        let mut sum = pseudo + u32::from(self.protocol) + len + words(self.payload);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap_or(0)
    }

    fn flow(&self) -> Option<Flow> {
        let ports = self.payload.first_chunk::<4>()?;
        let port = |high, low| u16::from_be_bytes([high, low]);
        Some(Flow {
            client: SocketAddr::new(self.source, port(ports[0], ports[1])),
            server: SocketAddr::new(self.destination, port(ports[2], ports[3])),
        })
    }
}

/// The sum of the 16-bit words; at most 64 KiB of them, so that it fits.
fn words(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| {
        let second = pair.get(1).copied().unwrap_or(0);
        pair.first()
            .map_or(0, |first| u32::from(u16::from_be_bytes([*first, second])))
    };
    bytes.chunks(2).map(word).sum()
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A SYN with an MSS option behind two that say nothing.
    const SYN_NUMBER: u32 = 0x8123_4567;

    fn segment(flags: u8, mss: u16) -> Vec<u8> {
        let mut tcp = vec![0; 20];
        tcp[..4].copy_from_slice(&[0x9c, 0x40, 0, 80]);
        tcp[4..8].copy_from_slice(&SYN_NUMBER.to_be_bytes());
        tcp[12] = 7 << 4;
        tcp[13] = flags;
        tcp.extend([1, 1, 2, 4]);
        tcp.extend(mss.to_be_bytes());
        tcp.extend([0, 0]);
        tcp
    }

    fn v4(protocol: u8, from: [u8; 4], to: [u8; 4], payload: &[u8]) -> Vec<u8> {
        let mut ip = vec![0; 20];
        ip[0] = 0x45;
        ip[1] = 46 << 2 | 1;
        ip[9] = protocol;
        ip[12..16].copy_from_slice(&from);
        ip[16..20].copy_from_slice(&to);
        ip.extend(payload);
        ip
    }

    fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut ip = vec![0; 40];
        // DSCP 46, spread over two bytes.
        ip[..2].copy_from_slice(&[0x6b, 0x80]);
        ip[6] = next;
        ip[8..24].copy_from_slice(&"fd00:a::2".parse::<Ipv6Addr>().unwrap().octets());
        ip[24..40].copy_from_slice(&"fd00:b::2".parse::<Ipv6Addr>().unwrap().octets());
        ip.extend(payload);
        ip
    }

    const CLIENT: [u8; 4] = [10, 1, 0, 2];
    const SERVER: [u8; 4] = [10, 2, 0, 2];

    pub(crate) fn flow() -> Flow {
        Flow {
            client: SocketAddr::from((CLIENT, 40000)),
            server: SocketAddr::from((SERVER, 80)),
        }
    }

    #[test]
    fn a_syn_is_read_in_either_family() {
        let expected = Syn {
            flow: flow(),
            number: SequenceNumber(SYN_NUMBER),
            dscp: 46,
            mss: Some(1400),
            first: None,
        };
        let packet = v4(TCP, CLIENT, SERVER, &segment(0x02, 1400));
        assert_eq!(syn(&packet).as_ref(), Some(&expected));
        // With ECN (RFC 3168) it is a SYN all the same.
        let packet = v4(TCP, CLIENT, SERVER, &segment(0xc2, 1400));
        assert_eq!(syn(&packet), Some(expected));

        let mut extended = vec![TCP, 0, 0, 0, 0, 0, 0, 0];
        extended.extend(segment(0x02, 1220));
        for packet in [v6(TCP, &segment(0x02, 1220)), v6(60, &extended)] {
            let read = syn(&packet).unwrap();
            assert_eq!((read.dscp, read.mss), (46, Some(1220)));
            assert_eq!(read.flow.client, "[fd00:a::2]:40000".parse().unwrap());
            assert_eq!(read.flow.server, "[fd00:b::2]:80".parse().unwrap());
        }
    }

    #[test]
    fn what_is_no_syn_is_none() {
        for flags in [0x12, 0x10, 0x04, 0x01, 0x03, 0] {
            assert_eq!(syn(&v4(TCP, CLIENT, SERVER, &segment(flags, 1400))), None);
        }
        assert_eq!(syn(&v4(17, CLIENT, SERVER, &segment(0x02, 1400))), None);
        let mut fragment = v4(TCP, CLIENT, SERVER, &segment(0x02, 1400));
        fragment[7] = 1;
        assert_eq!(syn(&fragment), None);
    }

    #[test]
    fn a_rst_names_its_flow() {
        let reset = |flags| reset(&v4(TCP, CLIENT, SERVER, &segment(flags, 1400)));
        assert_eq!(reset(0x04), Some(flow()));
        for flags in [0x14, 0x02, 0x10] {
            assert_eq!(reset(flags), None);
        }
    }

    #[test]
    fn an_error_names_the_flow_that_it_quotes() {
        // Eight bytes of the segment are what must be quoted at least (RFC 792).
        let quoted = v4(TCP, CLIENT, SERVER, &segment(0x02, 1400)[..8]);
        let mut icmp = vec![3, 1, 0, 0, 0, 0, 0, 0];
        icmp.extend(&quoted);
        let packet = v4(ICMP, [10, 2, 0, 1], CLIENT, &icmp);
        let error = IcmpError::V4 { kind: 3, code: 1 };
        assert_eq!(icmp_error(&packet), Some((flow(), error)));
        let quoted = v6(TCP, &segment(0x02, 1400));
        let mut icmp = vec![1, 3, 0, 0, 0, 0, 0, 0];
        icmp.extend(&quoted);
        let (_, error) = icmp_error(&v6(ICMPV6, &icmp)).unwrap();
        assert_eq!(error, IcmpError::V6 { kind: 1, code: 3 });
    }

    /// A SYN with a Fast Open cookie and data, and its checksum right.
    fn fast_open(flags: u8, data: &[u8]) -> Vec<u8> {
        let mut tcp = segment(flags, 1400);
        tcp[12] = 10 << 4;
        // More options follow.
        tcp[26..28].fill(1);
        tcp.extend([34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1]);
        tcp.extend(data);
        let packet = v4(TCP, CLIENT, SERVER, &tcp);
        let sum = Ip::read(&packet).unwrap().checksum();
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        v4(TCP, CLIENT, SERVER, &tcp)
    }

    #[test]
    fn data_with_a_cookie_is_what_the_client_says_first() {
        for data in [&b"GET /"[..], b"even"] {
            let first = First {
                cookie: [1, 2, 3, 4, 5, 6, 7, 8],
                data: data.to_vec(),
            };
            assert_eq!(syn(&fast_open(0x02, data)).unwrap().first, Some(first));
        }
        let first = |packet: &[u8]| syn(packet).unwrap().first;
        assert_eq!(first(&fast_open(0x02, b"")), None);
        assert_eq!(first(&fast_open(0x22, b"urgent")), None);
        let mut packet = fast_open(0x02, b"GET /");
        *packet.last_mut().unwrap() ^= 1;
        assert_eq!(first(&packet), None, "damaged");
        packet.pop();
        assert_eq!(first(&packet), None, "cut off");
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
            let _ = (syn(&bytes), reset(&bytes), icmp_error(&bytes));
        }
    }
}
