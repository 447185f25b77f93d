//! Whether this host translates the addresses of a connection: connection tracking is asked for it by those that
//! its packets have here, and says which their answers have (net/netfilter/nf_conntrack_netlink.c,
//! include/uapi/linux/netfilter/nfnetlink_conntrack.h).

use std::io;
use std::net::{IpAddr, SocketAddr};

use pepd_packet::FourTuple;
use pepd_sys::nfnetlink::{
    Attributes, Family, Flags, Header, MessageType, Reply, Socket, Subsystem, attributes, message,
    messages, replies,
};

const IPCTNL_MSG_CT_NEW: u8 = 0;
const IPCTNL_MSG_CT_GET: u8 = 1;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;

const TCP: u8 = 6;

/// The room for an answer, of which there is one.
const ANSWER: usize = 16 << 10;

/// A socket on which connection tracking is asked.
#[derive(Debug)]
pub struct Translations {
    socket: Socket,
    sequence: u32,
}

impl Translations {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// As socket(2).
    pub fn open() -> io::Result<Self> {
        let socket = Socket::open()?;
        let sequence = 0;
        Ok(Self { socket, sequence })
    }

    /// Returns whether the addresses of a connection are translated whose packets leave this host as `flow` has
    /// them. A connection that nobody tracks is none.
    ///
    /// # Errors
    ///
    /// Where the kernel does not say.
    pub fn has(&mut self, flow: &FourTuple) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&question(flow, self.sequence))?;
        let mut buffer = vec![0; ANSWER];
        loop {
            let length = self.socket.receive(&mut buffer)?;
            let answer = buffer.get(..length).unwrap_or_default();
            for reply in replies(answer) {
                if let Reply::Refused { sequence, errno } = reply
                    && sequence == self.sequence
                {
                    return match errno {
                        libc::ENOENT => Ok(false),
                        errno => Err(io::Error::from_raw_os_error(errno)),
                    };
                }
            }
            let wanted = MessageType::of(Subsystem::CONNTRACK, IPCTNL_MSG_CT_NEW);
            let mut found = messages(answer);
            let found = found.find(|it| it.kind == wanted && it.sequence == self.sequence);
            if let Some(found) = found {
                let mut attributes = found.attributes().into_iter().flatten();
                let back = attributes.find(|(kind, _)| *kind == CTA_TUPLE_REPLY);
                let back = back.and_then(|(_, tuple)| ends(tuple));
                return Ok(back != Some((flow.server, flow.client)));
            }
        }
    }
}

fn question(flow: &FourTuple, sequence: u32) -> Vec<u8> {
    let header = Header {
        kind: MessageType::of(Subsystem::CONNTRACK, IPCTNL_MSG_CT_GET),
        flags: Flags::NONE,
        sequence,
        family: match flow.client {
            SocketAddr::V4(_) => Family::IPV4,
            SocketAddr::V6(_) => Family::IPV6,
        },
        resource: 0,
    };
    message(header, |body| {
        body.nest(CTA_TUPLE_ORIG, |tuple| {
            tuple.nest(CTA_TUPLE_IP, |ip| {
                put_address(ip, [CTA_IP_V4_SRC, CTA_IP_V6_SRC], flow.client.ip());
                put_address(ip, [CTA_IP_V4_DST, CTA_IP_V6_DST], flow.server.ip());
            });
            tuple.nest(CTA_TUPLE_PROTO, |protocol| {
                protocol.put(CTA_PROTO_NUM, &[TCP]);
                protocol.put(CTA_PROTO_SRC_PORT, &flow.client.port().to_be_bytes());
                protocol.put(CTA_PROTO_DST_PORT, &flow.server.port().to_be_bytes());
            });
        });
    })
}

fn put_address(list: &mut Attributes<'_>, [v4, v6]: [u16; 2], address: IpAddr) {
    match address {
        IpAddr::V4(address) => list.put(v4, &address.octets()),
        IpAddr::V6(address) => list.put(v6, &address.octets()),
    }
}

/// Reads where packets of a tuple come from and go to.
fn ends(tuple: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let within = |list, wanted| {
        let mut found = attributes::read(list);
        found
            .find(|(kind, _)| *kind == wanted)
            .map(|(_, value)| value)
    };
    let (ip, protocol) = (
        within(tuple, CTA_TUPLE_IP)?,
        within(tuple, CTA_TUPLE_PROTO)?,
    );
    let address = |[v4, v6]: [u16; 2]| match within(ip, v4) {
        Some(octets) => Some(IpAddr::from(*octets.first_chunk::<4>()?)),
        None => Some(IpAddr::from(*within(ip, v6)?.first_chunk::<16>()?)),
    };
    let port = |kind| Some(u16::from_be_bytes(*within(protocol, kind)?.first_chunk()?));
    Some((
        SocketAddr::new(
            address([CTA_IP_V4_SRC, CTA_IP_V6_SRC])?,
            port(CTA_PROTO_SRC_PORT)?,
        ),
        SocketAddr::new(
            address([CTA_IP_V4_DST, CTA_IP_V6_DST])?,
            port(CTA_PROTO_DST_PORT)?,
        ),
    ))
}
