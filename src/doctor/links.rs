//! The interfaces that lead to campuses and to other helper boxes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;

use futures_util::{StreamExt, TryStreamExt};
use pepd_config::{Config, IpNet, Via};
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage, State};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use rtnetlink::packet_route::tc::TcAttribute;
use rtnetlink::{Handle, RouteMessageBuilder};

/// The routes to campuses and peers, and the interfaces that they lead out by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    /// The routes, in the order of the file.
    pub routes: Vec<Route>,
    /// The interfaces that the routes lead out by.
    pub links: Vec<Link>,
    /// The names of all interfaces.
    pub names: BTreeSet<String>,
}

/// The route to one prefix or peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The destination that is reached.
    pub to: Target,
    /// The prefix, or the peer's address.
    pub prefix: IpNet,
    /// The interfaces that it leads out by; none if there is no route.
    pub interfaces: Vec<String>,
}

/// The destination that a route leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The campus of this name.
    Campus(String),
    /// The peer of this name, by the tunnel's outer addresses.
    Peer(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Campus(name) => write!(f, "campus {name}"),
            Self::Peer(name) => write!(f, "peer {name}"),
        }
    }
}

/// A queueing discipline, by its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Qdisc {
    /// Fair queueing, which paces (tc-fq(8)).
    Fq,
    /// There is no queue: what is sent leaves at once.
    NoQueue,
    /// One for each queue of the device: `mq` or `mqprio`.
    MultiQueue(String),
    /// Any other.
    Other(String),
}

impl From<&str> for Qdisc {
    fn from(kind: &str) -> Self {
        match kind {
            "fq" => Self::Fq,
            "noqueue" => Self::NoQueue,
            kind if kind.starts_with("mq") => Self::MultiQueue(kind.to_owned()),
            kind => Self::Other(kind.to_owned()),
        }
    }
}

impl fmt::Display for Qdisc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fq => "fq",
            Self::NoQueue => "noqueue",
            Self::MultiQueue(kind) | Self::Other(kind) => kind,
        })
    }
}

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// The MTU, in bytes.
    pub mtu: u32,
    /// Whether it can carry packets.
    pub up: bool,
    /// The queueing disciplines: the root's, and those of its classes.
    pub qdiscs: Vec<Qdisc>,
    /// Offload features as ethtool(8) names them, on or off; none if they could not be read.
    pub features: Option<BTreeMap<String, bool>>,
}

impl Links {
    /// Looks up the routes and the interfaces. What netlink does not tell is left out.
    pub async fn gather(config: &Config) -> Self {
        let Ok((connection, handle, _)) = rtnetlink::new_connection() else {
            return Self::default();
        };
        let serving = tokio::spawn(connection);
        let mut all: BTreeMap<u32, Link> = BTreeMap::new();
        let mut stream = handle.link().get().execute();
        while let Some(Ok(message)) = stream.next().await {
            all.insert(message.header.index, Link::read(&message));
        }
        drop(stream);
        let own = own_addresses();
        let mut routes = Vec::new();
        for (to, prefix) in targets(config) {
            let mut interfaces = connected(&own, prefix, config);
            let routed = out_interface(&handle, prefix).await;
            let routed = routed.and_then(|index| all.get(&index));
            interfaces.extend(routed.map(|link| link.name.clone()));
            interfaces.sort_unstable();
            interfaces.dedup();
            routes.push(Route {
                to,
                prefix,
                interfaces,
            });
        }
        let qdiscs = qdiscs(&handle).await;
        serving.abort();
        let names = all.values().map(|link| link.name.clone()).collect();
        let used: BTreeSet<_> = routes.iter().flat_map(|route| &route.interfaces).collect();
        let links = all.into_iter().filter_map(|(index, mut link)| {
            if !used.contains(&link.name) {
                return None;
            }
            if let Some(kinds) = qdiscs.get(&index) {
                link.qdiscs.clone_from(kinds);
            }
            link.features = features(&link.name);
            Some(link)
        });
        let links = links.collect();
        Self {
            routes,
            links,
            names,
        }
    }

    /// Gives the interfaces towards campuses and peers, without `lo`.
    pub fn out(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| link.name != "lo")
    }

    /// Returns whether this host has no interface of this name, wherever it leads to.
    pub fn lacks(&self, name: &str) -> bool {
        // Without any, netlink has not told.
        !self.names.is_empty() && !self.names.contains(name)
    }

    /// Gives the interface of this name.
    pub fn named(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// Makes, for tests, a set of these interfaces and no routes.
    #[cfg(test)]
    pub fn of(links: Vec<Link>) -> Self {
        let names = links.iter().map(|link| link.name.clone()).collect();
        Self {
            routes: Vec::new(),
            links,
            names,
        }
    }
}

impl Link {
    fn read(message: &LinkMessage) -> Self {
        let mut link = Self {
            name: String::new(),
            mtu: 0,
            up: false,
            qdiscs: Vec::new(),
            features: None,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::Qdisc(kind) => link.qdiscs = vec![kind.as_str().into()],
                // Tunnels and the like do not know.
                LinkAttribute::OperState(state) => {
                    link.up = matches!(state, State::Up | State::Unknown);
                }
                _ => {}
            }
        }
        link
    }

    /// Makes, for tests, an interface like most.
    #[cfg(test)]
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            mtu: 1500,
            up: true,
            qdiscs: vec!["fq_codel".into()],
            features: Some(BTreeMap::new()),
        }
    }
}

/// Gives what is to be reached. A campus behind a tunnel is reached by the tunnel's outer route.
fn targets(config: &Config) -> Vec<(Target, IpNet)> {
    let campuses = config.campuses.iter().flat_map(|campus| {
        let prefixes = campus.prefixes.iter();
        let prefixes = prefixes.filter(|_| !matches!(campus.via, Via::Peer(_)));
        prefixes.map(|prefix| (Target::Campus(campus.name.clone()), *prefix))
    });
    let peers = config
        .peers
        .iter()
        .map(|peer| (Target::Peer(peer.name.clone()), IpNet::from(peer.remote)));
    campuses.chain(peers).collect()
}

/// Reads this host's addresses, with the names of their interfaces.
fn own_addresses() -> Vec<(IpAddr, String)> {
    let entry = |entry: nix::ifaddrs::InterfaceAddress| {
        let address = entry.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let v6 = || address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
        Some((v4.or_else(v6)?, entry.interface_name))
    };
    nix::ifaddrs::getifaddrs()
        .into_iter()
        .flatten()
        .filter_map(entry)
        .collect()
}

/// Gives the interfaces that have an address of the prefix, and of no campus within it.
fn connected(own: &[(IpAddr, String)], prefix: IpNet, config: &Config) -> Vec<String> {
    let campus = |address: IpAddr| {
        let id = config.campus_of(address)?;
        config.campuses.get(id.0)
    };
    own.iter()
        .filter(|(address, name)| {
            let here = campus(*address).is_some_and(|campus| campus.prefixes.contains(&prefix));
            here && prefix.contains(address) && name != "lo" && prefix.prefix_len() > 0
        })
        .map(|(_, name)| name.clone())
        .collect()
}

/// Gives addresses within the prefix to look up: some may be this host's own. For the whole world
/// it is one that no route of its own leads to (RFC 5737, RFC 3849).
fn probe_addresses(prefix: IpNet) -> Vec<IpAddr> {
    const ANY4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const ANY6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
    const ENOUGH: usize = 4;
    match prefix {
        IpNet::V4(net) if net.prefix_len() == 0 => vec![ANY4],
        IpNet::V6(net) if net.prefix_len() == 0 => vec![ANY6],
        net => net.hosts().take(ENOUGH).collect(),
    }
}

/// Finds the interface by which the kernel would send a packet for the prefix; none if it would
/// not.
async fn out_interface(handle: &Handle, prefix: IpNet) -> Option<u32> {
    for address in probe_addresses(prefix) {
        if let Some(index) = out_interface_of(handle, address).await {
            return Some(index);
        }
    }
    None
}

async fn out_interface_of(handle: &Handle, address: IpAddr) -> Option<u32> {
    let message = match address {
        IpAddr::V4(address) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(address, 32)
            .build(),
        IpAddr::V6(address) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(address, 128)
            .build(),
    };
    let request = handle.route().get(lookup(message));
    let routes: Vec<RouteMessage> = request.execute().try_collect().await.ok()?;
    let route = routes.first()?;
    let out = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        });
    out.filter(|_| route.header.kind == RouteType::Unicast)
}

/// Turns a message that adds a route, which is what the builder makes, into a question to the
/// routing.
fn lookup(mut message: RouteMessage) -> RouteMessage {
    let header = &message.header;
    let mut question = RouteMessage::default();
    question.header.address_family = header.address_family;
    question.header.destination_prefix_length = header.destination_prefix_length;
    message
        .attributes
        .retain(|attribute| matches!(attribute, RouteAttribute::Destination(_)));
    question.attributes = message.attributes;
    question
}

/// Gives all queueing disciplines, by interface, the root's first.
async fn qdiscs(handle: &Handle) -> BTreeMap<u32, Vec<Qdisc>> {
    let mut found: BTreeMap<u32, Vec<Qdisc>> = BTreeMap::new();
    let mut stream = handle.qdisc().get().execute();
    while let Some(Ok(message)) = stream.next().await {
        let kind = message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                TcAttribute::Kind(kind) => Some(Qdisc::from(kind.as_str())),
                _ => None,
            });
        if let (Ok(index), Some(kind)) = (u32::try_from(message.header.index), kind) {
            found.entry(index).or_default().push(kind);
        }
    }
    found
}

/// Reads the offload features from ethtool(8); none without it.
fn features(interface: &str) -> Option<BTreeMap<String, bool>> {
    let output = ["ethtool", "/usr/sbin/ethtool", "/sbin/ethtool"]
        .iter()
        .find_map(|program| Command::new(program).args(["-k", interface]).output().ok())?;
    output
        .status
        .success()
        .then(|| parse_features(&String::from_utf8_lossy(&output.stdout)))
}

fn parse_features(listing: &str) -> BTreeMap<String, bool> {
    let line = |line: &str| {
        let (name, value) = line.trim().split_once(": ")?;
        Some((name.to_owned(), value.starts_with("on")))
    };
    listing.lines().skip(1).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_features_are_read_with_or_without_fixed() {
        let listing = "Features for eth0:\nrx-checksumming: on [fixed]\n\
            tcp-segmentation-offload: on\n\ttx-tcp-segmentation: on\n\
            large-receive-offload: off [fixed]\n";
        let features = parse_features(listing);
        assert_eq!(features.get("large-receive-offload"), Some(&false));
        assert_eq!(features.get("tx-tcp-segmentation"), Some(&true));
        assert_eq!(features.get("rx-checksumming"), Some(&true));
    }

    #[test]
    fn the_addresses_looked_up_lie_in_the_prefix() {
        for prefix in [
            "10.2.0.0/16",
            "fd00:b::/48",
            "10.2.0.7/32",
            "0.0.0.0/0",
            "::/0",
        ] {
            let prefix: IpNet = prefix.parse().unwrap();
            let addresses = probe_addresses(prefix);
            assert!(!addresses.is_empty(), "{prefix}");
            assert!(addresses.iter().all(|a| prefix.contains(a)), "{prefix}");
        }
    }

    #[test]
    fn an_interface_belongs_to_the_campus_of_its_address() {
        let config = crate::doctor::fixture::config("");
        let own = [
            ("10.1.0.1".parse().unwrap(), "lan".to_owned()),
            ("10.2.0.1".parse().unwrap(), "wan".to_owned()),
            ("10.1.0.9".parse().unwrap(), "lo".to_owned()),
        ];
        let prefix = config.campuses[0].prefixes[0];
        assert_eq!(connected(&own, prefix, &config), ["lan"]);
    }
}
