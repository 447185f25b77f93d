//! A tunnel as the kernel's messages have it.

use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::packet_core::{DefaultNla, NLA_F_NESTED};
use rtnetlink::packet_route::IpProtocol;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{
    AfSpecInet, AfSpecUnspec, InfoData, InfoIpTunnel, InfoKind, Ip6TunnelFlags, LinkAttribute,
    LinkFlags, LinkInfo, LinkMessage,
};

use super::spec::{ALIAS, PREFIX, Tunnel, TunnelKind};

/// Mode `any` (`IFLA_IPTUN_PROTO` 0).
const ANY: u8 = 0;
/// IPPROTO_IPIP.
const IPIP: u8 = 4;
/// `tos inherit` over IPv4 (the lowest bit belongs to ECN, so it is free for that).
const INHERIT: u8 = 1;
/// IFLA_INET_CONF, include/uapi/linux/if_link.h.
const INET_CONF: u16 = 1;
/// IPV4_DEVCONF_RP_FILTER, include/uapi/linux/ip.h.
const RP_FILTER: u16 = 8;
/// The place of the traffic class in an IPv6 flow information field.
const CLASS_SHIFT: u32 = 20;

/// Reads the address and network in a message; none if it is link-local. The local address is what
/// counts: of a point-to-point device `IFA_ADDRESS` may be the other end's.
pub(super) fn address(message: &AddressMessage) -> Option<IpNet> {
    let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| {
        message.attributes.iter().find_map(wanted)
    };
    let local = find(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = local.or_else(|| {
        find(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })?;
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => None,
        _ => IpNet::new(address, message.header.prefix_len).ok(),
    }
}

/// A network device.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    alias: Option<String>,
    kind: Option<InfoKind>,
    data: Vec<InfoIpTunnel>,
    pub(crate) mtu: u32,
    pub(crate) up: bool,
    /// The reverse-path filter (`net.ipv4.conf.DEVICE.rp_filter`).
    filter: i32,
}

impl Link {
    pub(crate) fn read(message: &LinkMessage) -> Link {
        let mut link = Link {
            index: message.header.index,
            name: String::new(),
            alias: None,
            kind: None,
            data: Vec::new(),
            mtu: 0,
            up: message.header.flags.contains(LinkFlags::Up),
            filter: 0,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::IfAlias(alias) => link.alias = Some(alias.clone()),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::AfSpecUnspec(families) => {
                    link.filter = reverse_path_filter(families).unwrap_or_default();
                }
                LinkAttribute::LinkInfo(infos) => {
                    for info in infos {
                        match info {
                            LinkInfo::Kind(kind) => link.kind = Some(kind.clone()),
                            LinkInfo::Data(InfoData::IpTunnel(data)) => {
                                link.data.clone_from(data);
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        link
    }

    /// Returns whether pepd made it.
    pub(crate) fn is_own(&self) -> bool {
        self.name.starts_with(PREFIX)
            && self
                .alias
                .as_ref()
                .is_some_and(|alias| alias.starts_with(ALIAS))
    }

    pub(crate) fn has_kind(&self, kind: TunnelKind) -> bool {
        self.kind == Some(info_kind(kind))
    }

    /// Returns whether it would take the packets that are for `tunnel`.
    pub(crate) fn rivals(&self, tunnel: &Tunnel) -> bool {
        self.name != tunnel.device
            && [TunnelKind::Ipip, TunnelKind::Sit, TunnelKind::Ip6tnl]
                .iter()
                .any(|kind| self.has_kind(*kind))
            && self.data.contains(&InfoIpTunnel::Local(tunnel.local))
            && self.data.contains(&InfoIpTunnel::Remote(tunnel.remote))
    }

    /// Returns whether the tunnel's ends and the outer header's fields are as they should be.
    pub(crate) fn carries(&self, tunnel: &Tunnel) -> bool {
        let wanted = data(tunnel);
        self.has_kind(tunnel.kind)
            && wanted
                .iter()
                .all(|attribute| self.data.iter().any(|have| same(have, attribute)))
    }

    /// Returns whether its reverse-path filter is this one.
    pub(crate) fn has_filter(&self, filter: i32) -> bool {
        self.filter == filter
    }

    pub(crate) fn has_alias(&self, alias: &str) -> bool {
        self.alias.as_deref() == Some(alias)
    }
}

fn reverse_path_filter(families: &[AfSpecUnspec]) -> Option<i32> {
    let inet = families.iter().find_map(|family| match family {
        AfSpecUnspec::Inet(inet) => Some(inet),
        _ => None,
    })?;
    inet.iter().find_map(|attribute| match attribute {
        AfSpecInet::DevConf(conf) => Some(conf.rp_filter),
        _ => None,
    })
}

/// Makes the request that gives a device this reverse-path filter.
pub(crate) fn filter(index: u32, filter: i32) -> LinkMessage {
    // One attribute of eight bytes: its length, its number, its value.
    let mut conf = Vec::from(8u16.to_ne_bytes());
    conf.extend(RP_FILTER.to_ne_bytes());
    conf.extend(filter.to_ne_bytes());
    let conf = AfSpecInet::Other(DefaultNla::new(INET_CONF | NLA_F_NESTED, conf));
    let mut message = LinkMessage::default();
    message.header.index = index;
    let spec = LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet(vec![conf])]);
    message.attributes.push(spec);
    message
}

/// Returns whether an attribute is as wanted: the kernel adds flags of its own to an ip6tnl's.
fn same(have: &InfoIpTunnel, wanted: &InfoIpTunnel) -> bool {
    match (have, wanted) {
        (InfoIpTunnel::Ipv6Flags(have), InfoIpTunnel::Ipv6Flags(wanted)) => {
            let asked = Ip6TunnelFlags::IgnEncapLimit | Ip6TunnelFlags::UseOrigTclass;
            *have & asked == *wanted
        }
        (have, wanted) => have == wanted,
    }
}

/// Makes the request for `tunnel`.
pub(crate) fn new(tunnel: &Tunnel) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::IfName(tunnel.device.clone()), info(tunnel)];
    message
}

/// Makes the request that changes a device of the same kind into `tunnel`. It leaves out the name,
/// which the kernel would take for a new one and refuse while the device is up.
pub(crate) fn change(tunnel: &Tunnel, index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(info(tunnel));
    message
}

fn info(tunnel: &Tunnel) -> LinkAttribute {
    LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(info_kind(tunnel.kind)),
        LinkInfo::Data(InfoData::IpTunnel(data(tunnel))),
    ])
}

fn data(tunnel: &Tunnel) -> Vec<InfoIpTunnel> {
    let mut data = vec![
        InfoIpTunnel::Local(tunnel.local),
        InfoIpTunnel::Remote(tunnel.remote),
        InfoIpTunnel::Ttl(tunnel.ttl.unwrap_or(0)),
        InfoIpTunnel::Protocol(IpProtocol::from(match tunnel.kind {
            TunnelKind::Ipip => IPIP,
            TunnelKind::Sit | TunnelKind::Ip6tnl => ANY,
        })),
    ];
    match tunnel.remote {
        IpAddr::V4(_) => data.extend([
            InfoIpTunnel::Tos(tunnel.tos.unwrap_or(INHERIT)),
            InfoIpTunnel::PMtuDisc(true),
        ]),
        IpAddr::V6(_) => {
            // Without it each packet has an option of eight bytes that bounds the depth of
            // tunnels in tunnels (RFC 2473, section 4.1.1).
            let mut flags = Ip6TunnelFlags::IgnEncapLimit;
            flags.set(Ip6TunnelFlags::UseOrigTclass, tunnel.tos.is_none());
            data.extend([
                InfoIpTunnel::FlowInfo(u32::from(tunnel.tos.unwrap_or(0)) << CLASS_SHIFT),
                InfoIpTunnel::Ipv6Flags(flags),
            ]);
        }
    }
    data
}

fn info_kind(kind: TunnelKind) -> InfoKind {
    match kind {
        TunnelKind::Ipip => InfoKind::IpIp,
        TunnelKind::Sit => InfoKind::SitTun,
        TunnelKind::Ip6tnl => InfoKind::Ip6Tnl,
    }
}
