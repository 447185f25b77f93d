//! What is said to connection tracking, and what it answers (net/netfilter/nf_conntrack_netlink.c,
//! include/uapi/linux/netfilter/nfnetlink_conntrack.h).

use std::net::{IpAddr, SocketAddr};

use pepd_packet::FourTuple;
use pepd_sys::nfnetlink::{
    Attributes, Family, Flags, Header, MessageType, Subsystem, attributes, message,
};

pub(super) const IPCTNL_MSG_CT_NEW: u8 = 0;
pub(super) const IPCTNL_MSG_CT_GET: u8 = 1;
pub(super) const IPCTNL_MSG_CT_DELETE: u8 = 2;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_NAT_SRC: u16 = 6;
const CTA_TIMEOUT: u16 = 7;

const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;

const CTA_NAT_V4_MINIP: u16 = 1;
const CTA_NAT_V4_MAXIP: u16 = 2;
const CTA_NAT_PROTO: u16 = 3;
const CTA_NAT_V6_MINIP: u16 = 4;
const CTA_NAT_V6_MAXIP: u16 = 5;
const CTA_PROTONAT_PORT_MIN: u16 = 1;
const CTA_PROTONAT_PORT_MAX: u16 = 2;

const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
const CTA_PROTOINFO_TCP_FLAGS_ORIGINAL: u16 = 4;
const CTA_PROTOINFO_TCP_FLAGS_REPLY: u16 = 5;
const TCP_CONNTRACK_ESTABLISHED: u8 = 3;
const IP_CT_TCP_FLAG_BE_LIBERAL: u8 = 8;

const IPS_SEEN_REPLY: u32 = 1 << 1;
const IPS_ASSURED: u32 = 1 << 2;
const IPS_CONFIRMED: u32 = 1 << 3;

const TCP: u8 = 6;

/// The time for which connection tracking keeps what it does not see, in seconds: five days, its own default for
/// an established connection (net/netfilter/nf_conntrack_proto_tcp.c). The first packet of the connection puts in
/// place what is configured.
const KEPT: u32 = 5 * 24 * 3600;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    /// What is known of a connection.
    Get,
    /// A connection be entered that is under way, from this address and port on if it is not the client's.
    Enter(Option<SocketAddr>),
    /// One that is known be kept though nothing is seen of it.
    Keep,
    /// One be forgotten.
    Forget,
}

/// Writes a request about the connection whose packets leave this host as `flow` has them.
pub(super) fn request(what: Request, flow: &FourTuple, sequence: u32) -> Vec<u8> {
    let (kind, flags) = match what {
        Request::Get => (IPCTNL_MSG_CT_GET, Flags::NONE),
        Request::Enter(_) => (
            IPCTNL_MSG_CT_NEW,
            Flags::ACK | Flags::CREATE | Flags::EXCLUSIVE,
        ),
        Request::Keep => (IPCTNL_MSG_CT_NEW, Flags::ACK),
        Request::Forget => (IPCTNL_MSG_CT_DELETE, Flags::ACK),
    };
    let header = Header {
        kind: MessageType::of(Subsystem::CONNTRACK, kind),
        flags,
        sequence,
        family: match flow.client {
            SocketAddr::V4(_) => Family::IPV4,
            SocketAddr::V6(_) => Family::IPV6,
        },
        resource: 0,
    };
    message(header, |body| {
        put_tuple(body, CTA_TUPLE_ORIG, flow);
        match what {
            Request::Get | Request::Forget => {}
            // Also what it sees of it meanwhile that does not fit, where nobody sends that on, is to be translated: the server
            // resets what comes from an address that it does not know.
            Request::Keep => put_established(body),
            Request::Enter(source) => {
                put_tuple(body, CTA_TUPLE_REPLY, &flow.reversed());
                put_established(body);
                if let Some(source) = source {
                    put_source(body, source);
                }
            }
        }
    })
}

fn put_tuple(list: &mut Attributes<'_>, kind: u16, flow: &FourTuple) {
    list.nest(kind, |tuple| {
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
}

/// Writes that it is established and has been answered, so that no chain of the type `nat` has a say in it any more, and
/// that windows which were never seen are to make nothing invalid.
fn put_established(body: &mut Attributes<'_>) {
    // The kernel refuses a status without what it has set itself (ctnetlink_change_status).
    let status = IPS_SEEN_REPLY | IPS_ASSURED | IPS_CONFIRMED;
    body.put(CTA_STATUS, &status.to_be_bytes());
    body.put(CTA_TIMEOUT, &KEPT.to_be_bytes());
    body.nest(CTA_PROTOINFO, |protocol| {
        protocol.nest(CTA_PROTOINFO_TCP, |tcp| {
            tcp.put(CTA_PROTOINFO_TCP_STATE, &[TCP_CONNTRACK_ESTABLISHED]);
            // The flags, and which of them are meant (struct nf_ct_tcp_flags).
            let liberal = [IP_CT_TCP_FLAG_BE_LIBERAL; 2];
            tcp.put(CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, &liberal);
            tcp.put(CTA_PROTOINFO_TCP_FLAGS_REPLY, &liberal);
        });
    });
}

/// Writes that its source becomes this address and port, of which there is one to choose from.
fn put_source(body: &mut Attributes<'_>, source: SocketAddr) {
    body.nest(CTA_NAT_SRC, |nat| {
        put_address(nat, [CTA_NAT_V4_MINIP, CTA_NAT_V6_MINIP], source.ip());
        put_address(nat, [CTA_NAT_V4_MAXIP, CTA_NAT_V6_MAXIP], source.ip());
        nat.nest(CTA_NAT_PROTO, |protocol| {
            let port = source.port().to_be_bytes();
            protocol.put(CTA_PROTONAT_PORT_MIN, &port);
            protocol.put(CTA_PROTONAT_PORT_MAX, &port);
        });
    });
}

fn put_address(list: &mut Attributes<'_>, [v4, v6]: [u16; 2], address: IpAddr) {
    match address {
        IpAddr::V4(address) => list.put(v4, &address.octets()),
        IpAddr::V6(address) => list.put(v6, &address.octets()),
    }
}

/// Reads what the answers to packets have that leave this host as `flow` has them. Connection tracking may have seen an
/// answer first, which makes it the connection's original direction.
pub(super) fn answers<'a>(
    attributes: impl Iterator<Item = (u16, &'a [u8])>,
    flow: &FourTuple,
) -> Option<FourTuple> {
    let (mut original, mut reply) = (None, None);
    for (kind, value) in attributes {
        match kind {
            CTA_TUPLE_ORIG => original = tuple(value),
            CTA_TUPLE_REPLY => reply = tuple(value),
            _ => {}
        }
    }
    match original? == *flow {
        true => reply,
        false => original,
    }
}

/// Reads where packets of a tuple come from and go to.
fn tuple(tuple: &[u8]) -> Option<FourTuple> {
    let (ip, protocol) = (
        attributes::find(tuple, CTA_TUPLE_IP)?,
        attributes::find(tuple, CTA_TUPLE_PROTO)?,
    );
    let address = |[v4, v6]: [u16; 2]| match attributes::find(ip, v4) {
        Some(octets) => Some(IpAddr::from(*octets.first_chunk::<4>()?)),
        None => Some(IpAddr::from(
            *attributes::find(ip, v6)?.first_chunk::<16>()?,
        )),
    };
    let port = |kind| {
        Some(u16::from_be_bytes(
            *attributes::find(protocol, kind)?.first_chunk()?,
        ))
    };
    Some(FourTuple {
        client: SocketAddr::new(
            address([CTA_IP_V4_SRC, CTA_IP_V6_SRC])?,
            port(CTA_PROTO_SRC_PORT)?,
        ),
        server: SocketAddr::new(
            address([CTA_IP_V4_DST, CTA_IP_V6_DST])?,
            port(CTA_PROTO_DST_PORT)?,
        ),
    })
}

#[cfg(test)]
mod tests {
    use pepd_sys::nfnetlink::messages;

    use super::*;

    fn flow(client: &str, server: &str) -> FourTuple {
        FourTuple {
            client: client.parse().unwrap(),
            server: server.parse().unwrap(),
        }
    }

    #[test]
    fn what_is_entered_is_read_from_either_side() {
        let flows = [
            flow("10.1.0.2:40000", "10.2.0.2:80"),
            flow("[fd00:1::2]:40000", "[fd00:2::2]:80"),
        ];
        for flow in flows {
            let bytes = request(Request::Enter(None), &flow, 7);
            let read = |asked: &FourTuple| {
                let message = messages(&bytes).next().unwrap();
                answers(message.attributes().unwrap(), asked)
            };
            assert_eq!(read(&flow), Some(flow.reversed()));
            assert_eq!(read(&flow.reversed()), Some(flow));
        }
    }

    #[test]
    fn what_is_cut_off_says_nothing() {
        let flow = flow("10.1.0.2:40000", "10.2.0.2:80");
        let bytes = request(Request::Get, &flow, 7);
        let message = messages(&bytes).next().unwrap();
        assert_eq!(answers(message.attributes().unwrap(), &flow), None);
    }
}
