//! Four namespaces in a row, and the same long path in their middle by one emulator or the other.
//!
//! ```text
//!   client ── near ══ long path ══ far ── server
//! ```
//!
//! The path is between two routers, because an end host notices a queue that is its own (TCP
//! small queues). `netem` draws its losses before it applies its rate, so that what it loses
//! takes no share of the rate; the emulated link loses on the wire, as a radio does. So `netem`
//! gets two places: delay and rate on the device that leads into the path, losses on the one
//! that leads out of it.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use pepd_testbed::link::{Endpoint, Link, Loss, Mtu, QueueLimit, Rate, Report, Seed, Shape};
use pepd_testbed::{Netns, Topology};

/// The server's address.
pub const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 2, 0, 2));

/// IP packets of this many bytes fill the path.
const PACKET: u64 = 1500;
/// What `netem` counts of each packet beside IP (`ETH_HLEN` in `include/uapi/linux/if_ether.h`).
const ETHERNET_HEADER: u32 = 14;
/// No queue is shorter than this many packets, unless it is asked for.
const SHORTEST_QUEUE: u64 = 100;
/// More than any window here, so that TCP's own buffers limit nothing.
const BUFFER: u32 = 64 << 20;

/// What makes the path long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emulator {
    /// The kernel's queueing discipline.
    Netem,
    /// `pepd_testbed::link`.
    Link(Seed),
}

/// A path: the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// The rate, in bits per second of IP packets.
    pub rate: Rate,
    /// Both directions' propagation delays together.
    pub rtt: Duration,
    /// The packets that are lost after they have been transmitted.
    pub loss: Loss,
    /// The number of packets that may wait for transmission.
    pub queue: u64,
}

impl Setting {
    /// Returns a path with a queue as long as itself: a product of rate and RTT, at least 100
    /// packets.
    pub const fn new(rate: Rate, rtt: Duration, loss: Loss) -> Self {
        let product = packets(rate, rtt);
        let queue = if product < SHORTEST_QUEUE {
            SHORTEST_QUEUE
        } else {
            product
        };
        Self {
            rate,
            rtt,
            loss,
            queue,
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            loss: self.loss,
            queue: QueueLimit::Packets(self.queue),
            ..Shape::new(self.rtt / 2, self.rate)
        }
    }
}

/// Returns how many full packets `rate` carries in `span`.
const fn packets(rate: Rate, span: Duration) -> u64 {
    // 64 bits last for 10 Gbit/s and half an hour.
    let micros = span.as_secs() * 1_000_000 + span.subsec_micros() as u64;
    rate.as_bits_per_second() * micros / 1_000_000 / 8 / PACKET
}

/// The namespaces, and the path between them.
#[derive(Debug)]
pub struct Path {
    topology: Topology,
    link: Option<Link>,
}

impl Path {
    /// Builds it.
    ///
    /// # Errors
    /// Without root, TUN or, where that is asked for, `netem`.
    pub fn build(emulator: Emulator, setting: &Setting) -> Result<Self> {
        let topology = chain()?;
        for router in ["near", "far"] {
            // A router announces itself to multicast listeners, at random times: each such
            // packet would take one of the path's losses.
            let key = "net.ipv6.conf.default.disable_ipv6";
            topology.node(router).sysctl(key, "1")?;
        }
        let link = match emulator {
            Emulator::Netem => {
                netem(&topology, setting)?;
                None
            }
            Emulator::Link(seed) => Some(link(&topology, setting, seed)?),
        };
        for (router, to, via, neighbour) in [
            ("near", "10.2.0.0/24", "10.9.0.2", "10.9.0.1/30"),
            ("far", "10.1.0.0/24", "10.9.0.1", "10.9.0.2/30"),
        ] {
            topology.node(router).sh(&format!(
                "ip address replace {neighbour} dev long; ip route add {to} via {via}"
            ))?;
        }
        let path = Self { topology, link };
        for host in [path.client(), path.server()] {
            for key in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
                host.sysctl(key, &format!("4096 131072 {BUFFER}"))?;
            }
        }
        Ok(path)
    }

    /// Returns the host that sends.
    pub fn client(&self) -> &Netns {
        self.topology.node("client")
    }

    /// Returns the host that receives, at [`SERVER`].
    pub fn server(&self) -> &Netns {
        self.topology.node("server")
    }

    /// Returns what the emulated link has done; `None` if this is `netem`.
    ///
    /// # Errors
    /// When the link has ended.
    pub fn report(&self) -> Result<Option<Report>> {
        Ok(self.link.as_ref().map(Link::report).transpose()?)
    }
}

/// Returns the hosts, and the routers that they are connected to.
fn chain() -> Result<Topology> {
    use pepd_testbed::Link as Cable;
    let cable = |host, router, left: &str, right: &str| -> Result<Cable> {
        let cable = Cable::between(host, router).v4(left.parse()?, right.parse()?);
        Ok(cable.without_offloads())
    };
    Topology::describe()
        .host("client")
        .router("near")
        .router("far")
        .host("server")
        .link(cable("client", "near", "10.1.0.2/24", "10.1.0.1/24")?)
        .link(cable("server", "far", "10.2.0.2/24", "10.2.0.1/24")?)
        .route("client", "default", "near")
        .route("server", "default", "far")
        .build()
}

fn link(topology: &Topology, setting: &Setting, seed: Seed) -> Result<Link> {
    let end = |name| Endpoint::named(topology.node(name).name(), "long");
    let shape = setting.shape();
    let link = Link::connect(
        &end("near"),
        &end("far"),
        shape.clone(),
        shape,
        seed,
        Mtu::ETHERNET,
    )?;
    Ok(link)
}

fn netem(topology: &Topology, setting: &Setting) -> Result<()> {
    let (near, far) = (topology.node("near"), topology.node("far"));
    near.sh(&format!(
        "ip link add long type veth peer name long netns {}; ip link set long up",
        far.name()
    ))?;
    far.sh("ip link set long up")?;
    let (delay, bits) = (setting.rtt / 2, setting.rate.as_bits_per_second());
    // Its limit counts what is under way, not only what waits.
    let limit = setting.queue + packets(setting.rate, delay) + 1;
    for (router, host) in [(near, "client"), (far, "server")] {
        router
            .sh(&format!(
                "ethtool -K long tso off gso off gro off
             tc qdisc add dev long root netem delay {}us rate {bits}bit -{ETHERNET_HEADER} \
                 limit {limit}",
                delay.as_micros(),
            ))
            .context("no netem here: run this in the guest kernel, `cargo xtask vm`")?;
        if let Loss::Independent { probability } = setting.loss {
            let percent = probability * 100.0;
            let device = Topology::device(host);
            router.sh(&format!(
                "tc qdisc add dev {device} root netem loss {percent}% limit 100000"
            ))?;
        }
    }
    Ok(())
}
