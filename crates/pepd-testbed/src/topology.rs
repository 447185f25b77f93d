//! Hosts and routers, and the links between them, from a short description.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ipnet::{Ipv4Net, Ipv6Net};
use tempfile::NamedTempFile;

use crate::link::{self, Endpoint, Mtu, Seed, Shape};
use crate::netns::Netns;
use crate::process::run;
use crate::wait::wait_until;

/// No `ip` batch takes this long unless the machine is in trouble.
const IP_LIMIT: Duration = Duration::from_secs(120);

/// Network namespaces joined by veth pairs or emulated links; all gone when dropped.
#[derive(Debug)]
pub struct Topology {
    /// Before the nodes: an emulated link's devices are in these.
    emulated: BTreeMap<[String; 2], link::Link>,
    nodes: BTreeMap<String, Netns>,
}

impl Topology {
    /// Starts a description.
    #[must_use]
    pub fn describe() -> TopologyBuilder {
        TopologyBuilder::default()
    }

    /// The namespace of the node `name`.
    ///
    /// # Panics
    /// When the description has no such node: a mistake in the test itself.
    #[must_use]
    pub fn node(&self, name: &str) -> &Netns {
        &self.nodes[name]
    }

    /// The emulated link between two nodes, in the order of its description.
    ///
    /// # Panics
    /// When there is no such link: a mistake in the test itself.
    #[must_use]
    pub fn emulated(&self, left: &str, right: &str) -> &link::Link {
        &self.emulated[&[left, right].map(str::to_owned)]
    }

    /// The name of the device by which a node reaches its neighbour `peer`.
    #[must_use]
    pub fn device(peer: &str) -> String {
        format!("to-{peer}")
    }
}

/// A link between two nodes: a veth pair or an emulated link, dual stack.
#[derive(Clone, Debug)]
pub struct Link {
    ends: [String; 2],
    v4: Option<[Ipv4Net; 2]>,
    v6: Option<[Ipv6Net; 2]>,
    mtu: u32,
    offloads: bool,
    emulation: Option<(Shape, Seed)>,
}

impl Link {
    /// A link of MTU 1500 with segmentation offloads on (veth's default: packets of up to
    /// 64 KiB pass in one piece).
    #[must_use]
    pub fn between(left: &str, right: &str) -> Self {
        let ends = [left.to_owned(), right.to_owned()];
        Self {
            ends,
            v4: None,
            v6: None,
            mtu: 1500,
            offloads: true,
            emulation: None,
        }
    }

    /// The IPv4 address and prefix length of either end.
    #[must_use]
    pub fn v4(mut self, left: Ipv4Net, right: Ipv4Net) -> Self {
        self.v4 = Some([left, right]);
        self
    }

    /// The IPv6 address and prefix length of either end.
    #[must_use]
    pub fn v6(mut self, left: Ipv6Net, right: Ipv6Net) -> Self {
        self.v6 = Some([left, right]);
        self
    }

    /// The MTU of both ends, in bytes.
    #[must_use]
    pub fn mtu(mut self, bytes: u32) -> Self {
        self.mtu = bytes;
        self
    }

    /// Switches TSO, GSO and GRO off, so that every packet is MTU-sized as on a real wire.
    #[must_use]
    pub fn without_offloads(mut self) -> Self {
        self.offloads = false;
        self
    }

    /// Makes it an emulated link, of this shape in both directions. Its packets are never larger
    /// than the MTU.
    #[must_use]
    pub fn emulated(mut self, shape: Shape, seed: Seed) -> Self {
        self.emulation = Some((shape, seed));
        self
    }
}

/// The description of a [`Topology`].
#[derive(Debug, Default)]
pub struct TopologyBuilder {
    nodes: Vec<Node>,
    links: Vec<Link>,
    routes: Vec<Route>,
}

#[derive(Debug)]
struct Node {
    name: String,
    forwards: bool,
}

#[derive(Debug)]
struct Route {
    node: String,
    destination: String,
    via: String,
}

impl TopologyBuilder {
    /// An end host.
    #[must_use]
    pub fn host(mut self, name: &str) -> Self {
        self.nodes.push(Node {
            name: name.to_owned(),
            forwards: false,
        });
        self
    }

    /// A router: it forwards IPv4 and IPv6.
    #[must_use]
    pub fn router(mut self, name: &str) -> Self {
        self.nodes.push(Node {
            name: name.to_owned(),
            forwards: true,
        });
        self
    }

    /// A link between two nodes described before.
    #[must_use]
    pub fn link(mut self, link: Link) -> Self {
        self.links.push(link);
        self
    }

    /// A route of `node` to `destination` by way of the neighbour `via`: a prefix, or
    /// `default` for both address families.
    #[must_use]
    pub fn route(mut self, node: &str, destination: &str, via: &str) -> Self {
        self.routes.push(Route {
            node: node.to_owned(),
            destination: destination.to_owned(),
            via: via.to_owned(),
        });
        self
    }

    /// Builds it.
    ///
    /// # Errors
    /// Without root, or where the description contradicts itself.
    pub fn build(self) -> Result<Topology> {
        let mut nodes = BTreeMap::new();
        for node in &self.nodes {
            let netns = Netns::new(&node.name)?;
            if node.forwards {
                netns.sysctl("net.ipv4.conf.all.forwarding", "1")?;
                netns.sysctl("net.ipv6.conf.all.forwarding", "1")?;
            }
            nodes.insert(node.name.clone(), netns);
        }
        let mut emulated = BTreeMap::new();
        let mut batches: BTreeMap<&str, String> = BTreeMap::new();
        for (index, link) in self.links.iter().enumerate() {
            let index = u8::try_from(index).context("more than 256 links")?;
            match &link.emulation {
                Some((shape, seed)) => {
                    let link_at_work = emulate(&nodes, link, shape, *seed)?;
                    emulated.insert(link.ends.clone(), link_at_work);
                }
                None => connect(&nodes, link, index)?,
            }
            for side in [0, 1] {
                let batch = batches.entry(&link.ends[side]).or_default();
                describe_end(batch, link, index, side)?;
            }
        }
        for route in &self.routes {
            describe_route(batches.entry(&route.node).or_default(), &self.links, route)?;
        }
        for (name, batch) in &batches {
            let netns = nodes
                .get(*name)
                .with_context(|| format!("no node `{name}`"))?;
            ip_batch(netns, batch)?;
        }
        let cables = self.links.iter().filter(|link| link.emulation.is_none());
        for link in cables.filter(|link| !link.offloads) {
            for side in [0, 1] {
                let device = Topology::device(&link.ends[1 - side]);
                nodes[&link.ends[side]]
                    .sh(&format!("ethtool -K {device} tso off gso off gro off"))?;
            }
        }
        settle(&nodes, &self.links)?;
        Ok(Topology { emulated, nodes })
    }
}

/// Waits until the kernel has made of the links what it makes of them by itself, in its own time:
/// carriers, link-local addresses and their routes. Whoever looks at a namespace before and after
/// something would take them for its doing.
fn settle(nodes: &BTreeMap<String, Netns>, links: &[Link]) -> Result<()> {
    for (name, netns) in nodes {
        let devices = links
            .iter()
            .filter(|link| link.v6.is_some())
            .flat_map(|link| {
                let at = |side: usize| (link.ends[side] == *name).then(|| &link.ends[1 - side]);
                let devices = [at(0), at(1)].into_iter().flatten();
                // An emulated link is silent by itself.
                devices.map(|peer| (Topology::device(peer), link.emulation.is_none()))
            });
        let devices: Vec<_> = devices.collect();
        netns.run(|| {
            let mut before = None;
            wait_until(IP_LIMIT, "the links have settled", || {
                let now = Ipv6::look().ok();
                let settled = now.as_ref().is_some_and(|now| {
                    devices
                        .iter()
                        .all(|(device, speaks)| now.is_ready(device, *speaks))
                });
                let settled = settled && now == before;
                before = now;
                settled
            })
        })?;
    }
    Ok(())
}

/// The addresses and routes of this thread's namespace.
#[derive(PartialEq, Eq)]
struct Ipv6 {
    /// Each with its device.
    addresses: Vec<[String; 2]>,
    /// Destination, the length of its prefix (hexadecimal), and device.
    routes: Vec<[String; 3]>,
}

impl Ipv6 {
    fn look() -> Result<Self> {
        let table = |name| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        // `if_inet6` has the device last, `ipv6_route` has it, too, and counters before it.
        let (addresses, routes) = (table("if_inet6")?, table("ipv6_route")?);
        let words = |line: &str| -> Vec<_> { line.split_whitespace().map(str::to_owned).collect() };
        let address = |line| match &words(line)[..] {
            [address, .., device] => Some([address.clone(), device.clone()]),
            _ => None,
        };
        let route = |line| match &words(line)[..] {
            [to, length, .., device] => Some([to.clone(), length.clone(), device.clone()]),
            _ => None,
        };
        Ok(Self {
            addresses: addresses.lines().filter_map(address).collect(),
            routes: routes.lines().filter_map(route).collect(),
        })
    }

    /// Whether a device has a route to each of its addresses, and a link-local one among them where
    /// it is to have one.
    fn is_ready(&self, device: &str, link_local: bool) -> bool {
        let own = |at: &&[String; 2]| at[1] == device;
        let mut addresses = self.addresses.iter().filter(own);
        let host = |address: &str| [address, "80", device].map(str::to_owned);
        let mut found = addresses.clone().map(|[address, _]| address);
        let has_link_local = found.any(|address| address.starts_with("fe80"));
        (has_link_local || !link_local)
            && addresses.all(|[address, _]| self.routes.contains(&host(address)))
    }
}

/// The name of the namespace at one end of a link.
fn netns<'a>(nodes: &'a BTreeMap<String, Netns>, link: &Link, side: usize) -> Result<&'a str> {
    let name = &link.ends[side];
    nodes
        .get(name)
        .map(Netns::name)
        .with_context(|| format!("a link to an unknown `{name}`"))
}

fn emulate(
    nodes: &BTreeMap<String, Netns>,
    link: &Link,
    shape: &Shape,
    seed: Seed,
) -> Result<link::Link> {
    let end = |side: usize| {
        let device = Topology::device(&link.ends[1 - side]);
        Ok::<_, anyhow::Error>(Endpoint::named(netns(nodes, link, side)?, device))
    };
    let mtu = u16::try_from(link.mtu).context("an MTU of more than 65,535 bytes")?;
    let (there, back) = (shape.clone(), shape.clone());
    Ok(link::Link::connect(
        &end(0)?,
        &end(1)?,
        there,
        back,
        seed,
        Mtu::new(mtu)?,
    )?)
}

fn connect(nodes: &BTreeMap<String, Netns>, link: &Link, index: u8) -> Result<()> {
    let netns = |side| netns(nodes, link, side);
    let [left, right] = [
        Topology::device(&link.ends[1]),
        Topology::device(&link.ends[0]),
    ];
    ensure!(
        left.len() < 16 && right.len() < 16,
        "device name too long: {left}, {right}"
    );
    run(
        Command::new("ip")
            .args([
                "link",
                "add",
                &left,
                "address",
                &mac(index, 0),
                "netns",
                netns(0)?,
            ])
            .args(["type", "veth"])
            .args([
                "peer",
                "name",
                &right,
                "address",
                &mac(index, 1),
                "netns",
                netns(1)?,
            ]),
        IP_LIMIT,
    )?
    .success()?;
    Ok(())
}

/// The addresses of one end of a link, and its neighbour's, for `ip -batch`.
///
/// The neighbour is entered by hand: the first IPv6 packet after a link comes up otherwise
/// waits a second for the answer to a solicitation that was sent too early. (An emulated link has
/// no addresses of its own to ask for.)
fn describe_end(batch: &mut String, link: &Link, index: u8, side: usize) -> Result<()> {
    let (device, peer) = (Topology::device(&link.ends[1 - side]), 1 - side);
    writeln!(batch, "link set {device} mtu {} up", link.mtu)?;
    let mut neighbours = Vec::new();
    if let Some(v4) = link.v4 {
        writeln!(batch, "address add {} dev {device}", v4[side])?;
        neighbours.push(v4[peer].addr().to_string());
    }
    if let Some(v6) = link.v6 {
        writeln!(batch, "address add {} dev {device} nodad", v6[side])?;
        neighbours.push(v6[peer].addr().to_string());
    }
    if link.emulation.is_some() {
        return Ok(());
    }
    let mac = mac(index, peer);
    for neighbour in neighbours {
        writeln!(
            batch,
            "neighbour replace {neighbour} lladdr {mac} dev {device} nud permanent"
        )?;
    }
    Ok(())
}

fn describe_route(batch: &mut String, links: &[Link], route: &Route) -> Result<()> {
    let (link, peer) = links
        .iter()
        .find_map(|link| {
            let at = link.ends.iter().position(|end| *end == route.node)?;
            (link.ends[1 - at] == route.via).then_some((link, 1 - at))
        })
        .with_context(|| format!("{} and {} have no link", route.node, route.via))?;
    let wants = |v6: bool| route.destination == "default" || route.destination.contains(':') == v6;
    if let Some(v4) = link.v4.filter(|_| wants(false)) {
        writeln!(
            batch,
            "route add {} via {}",
            route.destination,
            v4[peer].addr()
        )?;
    }
    if let Some(v6) = link.v6.filter(|_| wants(true)) {
        writeln!(
            batch,
            "route add {} via {}",
            route.destination,
            v6[peer].addr()
        )?;
    }
    Ok(())
}

fn ip_batch(netns: &Netns, batch: &str) -> Result<()> {
    let mut file = NamedTempFile::new()?;
    file.write_all(batch.as_bytes())?;
    run(
        Command::new("ip")
            .args(["-n", netns.name(), "-batch"])
            .arg(file.path()),
        IP_LIMIT,
    )?
    .success()
    .with_context(|| fs::read_to_string(file.path()).unwrap_or_default())?;
    Ok(())
}

/// A locally administered address, the same in every run.
fn mac(link: u8, side: usize) -> String {
    format!("02:70:65:70:{link:02x}:{side:02x}")
}
