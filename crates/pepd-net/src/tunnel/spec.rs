//! Which tunnels to other helper boxes there are to be, as data.
//!
//! The kernel has a kind of device for each pair of inner and outer family, and two that carry
//! both: `sit` over IPv4 and `ip6tnl` over IPv6, in mode `any`. `sit` is taken only where there
//! is IPv6 to carry, so that an IPv4 box needs no more than the module ipip. What is on the wire
//! is the same (protocol 4 for IPv4, 41 for IPv6), so the two boxes of a tunnel need not agree.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};

use crate::prefix::Family;
use crate::request::Peer;

/// The prefix of the name of pepd's interfaces, before the peer's name.
pub(super) const PREFIX: &str = "pepd-";

/// The beginning of the alias of pepd's interfaces (`ip link set … alias`). An interface without it
/// is somebody else's, whatever its name.
pub(super) const ALIAS: &str = "pepd ";

/// An address that means nothing, and so may be on any number of devices: the IPv4 dummy address
/// (RFC 7600; the IANA registry of special-purpose addresses). A device whose peer has no IPv4
/// address inside the tunnel gets it: the loose reverse-path filter requires one.
pub(super) const DUMMY: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(192, 0, 0, 8), 32));

/// The least a link must carry for IPv6 (RFC 8200, section 5).
const IPV6_MIN_MTU: u32 = 1280;

/// The MTU that a path is taken to have where there is no route yet.
const ETHERNET_MTU: u32 = 1500;

/// A kind of tunnel device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelKind {
    /// IPv4 over IPv4.
    Ipip,
    /// Both over IPv4.
    Sit,
    /// Both over IPv6.
    Ip6tnl,
}

impl TunnelKind {
    /// Names it as `ip link … type` has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            TunnelKind::Ipip => "ipip",
            TunnelKind::Sit => "sit",
            TunnelKind::Ip6tnl => "ip6tnl",
        }
    }

    /// Names the kernel module.
    pub(crate) fn module(self) -> &'static str {
        match self {
            TunnelKind::Ipip => "ipip",
            TunnelKind::Sit => "sit",
            TunnelKind::Ip6tnl => "ip6_tunnel",
        }
    }

    /// Says what is carried in what.
    pub(super) fn carries(self) -> &'static str {
        match self {
            TunnelKind::Ipip => "IPv4 over IPv4",
            TunnelKind::Sit => "IPv4 and IPv6 over IPv4",
            TunnelKind::Ip6tnl => "IPv4 and IPv6 over IPv6",
        }
    }

    /// Counts the bytes of the outer header.
    fn overhead(self) -> u32 {
        match self {
            TunnelKind::Ipip | TunnelKind::Sit => 20,
            TunnelKind::Ip6tnl => 40,
        }
    }
}

/// A tunnel. Its `Display` is the `ip` commands that make it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tunnel {
    pub(crate) device: String,
    pub(crate) alias: String,
    pub(crate) kind: TunnelKind,
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    /// The addresses on the device; one at least is IPv4.
    pub(crate) inside: Vec<IpNet>,
    pub(crate) mtu: Option<u16>,
    /// The same, or else the MTU that the device has; none until it is there.
    pub(crate) inner_mtu: Option<u32>,
    pub(crate) ttl: Option<u8>,
    pub(crate) tos: Option<u8>,
}

impl Tunnel {
    /// Plans the tunnel to `peer` of the box `node`, where the campuses have these families.
    pub(crate) fn new(node: &str, peer: &Peer, families: &[Family]) -> Tunnel {
        let has = |family| {
            peer.inside
                .iter()
                .any(|net| Family::of(net.addr()) == family)
        };
        let kind = match peer.remote {
            IpAddr::V6(_) => TunnelKind::Ip6tnl,
            IpAddr::V4(_) if families.contains(&Family::V6) || has(Family::V6) => TunnelKind::Sit,
            IpAddr::V4(_) => TunnelKind::Ipip,
        };
        let mut inside = peer.inside.clone();
        if !has(Family::V4) {
            inside.push(DUMMY);
        }
        Tunnel {
            device: device(&peer.name),
            alias: format!("{ALIAS}{node}"),
            kind,
            local: peer.local,
            remote: peer.remote,
            inside,
            mtu: peer.mtu,
            inner_mtu: peer.mtu.map(u32::from),
            ttl: peer.ttl,
            tos: peer.tos,
        }
    }

    /// Gives the MTU, on a path that carries `path` bytes.
    pub(super) fn mtu_on(&self, path: Option<u32>) -> u32 {
        let fits = path
            .unwrap_or(ETHERNET_MTU)
            .saturating_sub(self.kind.overhead());
        let least = match self.kind {
            TunnelKind::Ipip => 68,
            TunnelKind::Sit | TunnelKind::Ip6tnl => IPV6_MIN_MTU,
        };
        self.mtu
            .map_or(fits.clamp(least, u32::from(u16::MAX)), u32::from)
    }
}

impl fmt::Display for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tunnel {
            device,
            alias,
            local,
            remote,
            ..
        } = self;
        let number = |value: Option<u8>| value.map_or("inherit".to_owned(), |v| v.to_string());
        let (ttl, tos) = (number(self.ttl), number(self.tos));
        write!(f, "ip link add {device} type ")?;
        match self.kind {
            TunnelKind::Ipip => write!(f, "ipip mode ipip")?,
            TunnelKind::Sit => write!(f, "sit mode any")?,
            TunnelKind::Ip6tnl => write!(f, "ip6tnl mode any")?,
        }
        write!(f, " local {local} remote {remote}")?;
        match self.kind {
            TunnelKind::Ipip | TunnelKind::Sit => writeln!(f, " ttl {ttl} tos {tos} pmtudisc")?,
            TunnelKind::Ip6tnl => writeln!(f, " hoplimit {ttl} tclass {tos} encaplimit none")?,
        }
        if let Some(mtu) = self.mtu {
            writeln!(f, "ip link set {device} mtu {mtu}")?;
        }
        // The device's own filter is the kernel's default where `all` has none; see devices.rs.
        writeln!(
            f,
            "sysctl -w net/ipv4/conf/{device}/rp_filter=2  # 0 where net/ipv4/conf/all has 0"
        )?;
        for net in &self.inside {
            // The kernel never takes one of this scope as the source of a packet to elsewhere.
            let scope = if *net == DUMMY { " scope host" } else { "" };
            writeln!(f, "ip address add {net} dev {device}{scope}")?;
        }
        writeln!(f, "ip link set {device} alias \"{alias}\" up")
    }
}

/// Returns whether an interface has the name of a tunnel of pepd's.
pub(crate) fn is_device(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Names the interface of the tunnel to the peer with this name.
pub(crate) fn device(peer: &str) -> String {
    format!("{PREFIX}{peer}")
}
