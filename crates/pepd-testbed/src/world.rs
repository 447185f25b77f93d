//! The standard topologies: two campuses and the helper box between them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use anyhow::Result;
use ipnet::{Ipv4Net, Ipv6Net};

use crate::link::{self, Seed, Shape};
use crate::netns::Netns;
use crate::sockets::splits;
use crate::topology::{Link, Topology, TopologyBuilder};
use crate::traffic::{Pair, listen};

/// The address family that a scenario runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families, for a loop over them.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the wildcard address with `port`, to bind a listener to.
    #[must_use]
    pub fn any(self, port: u16) -> SocketAddr {
        match self {
            Self::V4 => SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
            Self::V6 => SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// Two campuses, the helper box `hb` between them, and a host that belongs to neither.
///
/// ```text
///   client  10.1.0.2 ──┐                   ┌── (far ── edge) ── server 10.2.0.2
///                      ├── hb (10.x.0.1) ──┤
///   sibling 10.1.1.2 ──┘                   └── outsider 10.9.0.2
/// ```
///
/// The same with IPv6: `fd00:a::2`, `fd00:a:0:1::2`, `fd00:b::2`, `fd00:9::2`. `far` and
/// `edge` are there in [`World::narrow`] only.
#[derive(Debug)]
pub struct World {
    topology: Topology,
}

impl World {
    /// Campus a (client and sibling), the helper box, campus b (server), an outsider.
    ///
    /// # Errors
    /// Without root.
    pub fn standard() -> Result<Self> {
        let topology = Self::campus_a()?
            .link(link("server", "hb", "10.2.0", "fd00:b:")?)
            .route("server", "default", "hb")
            .build()?;
        Ok(Self { topology })
    }

    /// Makes the standard world with two routers behind the helper box, `far` and `edge`, and
    /// between them a link for packets of 1300 bytes only. Every other link takes 1500, so either
    /// end learns of it by ICMP alone. No offload hides the packets' true size.
    ///
    /// # Errors
    /// Without root.
    pub fn narrow() -> Result<Self> {
        let near = link("far", "hb", "10.8.0", "fd00:8:")?;
        let narrow = link("edge", "far", "10.8.1", "fd00:8:1:")?;
        let server = link("server", "edge", "10.2.0", "fd00:b:")?;
        let mut description = Self::campus_a()?
            .router("far")
            .router("edge")
            .link(near.without_offloads())
            .link(narrow.mtu(1300).without_offloads())
            .link(server.without_offloads())
            .route("far", "default", "hb")
            .route("edge", "default", "far")
            .route("server", "default", "edge");
        for (router, via) in [("hb", "far"), ("far", "edge")] {
            description =
                description
                    .route(router, "10.2.0.0/16", via)
                    .route(router, "fd00:b::/48", via);
        }
        Ok(Self {
            topology: description.build()?,
        })
    }

    /// Builds three helper boxes in a row: `hb`, `middle` and `far`.
    ///
    /// # Errors
    /// Without root.
    pub fn chain() -> Result<Self> {
        let mut description = Self::campus_a()?
            .router("middle")
            .router("far")
            .link(link("middle", "hb", "10.8.0", "fd00:8:")?)
            .link(link("far", "middle", "10.8.1", "fd00:8:1:")?)
            .link(link("server", "far", "10.2.0", "fd00:b:")?)
            .route("middle", "default", "hb")
            .route("far", "default", "middle")
            .route("server", "default", "far");
        for (router, via) in [("hb", "middle"), ("middle", "far")] {
            description =
                description
                    .route(router, "10.2.0.0/16", via)
                    .route(router, "fd00:b::/48", via);
        }
        Ok(Self {
            topology: description.build()?,
        })
    }

    /// Builds the standard world with a router `back` past the helper box: what the server says to
    /// the client goes that way, everything else by the helper box.
    ///
    /// # Errors
    /// Without root.
    pub fn two_ways() -> Result<Self> {
        let topology = Self::campus_a()?
            .router("back")
            .link(link("server", "hb", "10.2.0", "fd00:b:")?)
            .link(link("server", "back", "10.7.1", "fd00:7:1:")?)
            .link(link("client", "back", "10.7.0", "fd00:7:")?)
            .route("server", "default", "hb")
            .route("server", "10.1.0.0/24", "back")
            .route("server", "fd00:a::/64", "back")
            .route("back", "10.1.0.0/24", "client")
            .route("back", "fd00:a::/64", "client")
            .build()?;
        let world = Self { topology };
        // What comes from the server by the other way is not forged.
        for device in ["all", "default", "to-back"] {
            let key = format!("net.ipv4.conf.{device}.rp_filter");
            world.client().sysctl(&key, "0")?;
        }
        Ok(world)
    }

    /// Builds the client, the helper box and the server alone, over emulated links: the client's,
    /// and the server's, each of the same shape in both directions.
    ///
    /// # Errors
    /// Without root or TUN.
    pub fn emulated(client_leg: Shape, server_leg: Shape) -> Result<Self> {
        let client = link("client", "hb", "10.1.0", "fd00:a:")?;
        let server = link("server", "hb", "10.2.0", "fd00:b:")?;
        let topology = Topology::describe()
            .host("client")
            .router("hb")
            .host("server")
            .link(client.emulated(client_leg, Seed(1)))
            .link(server.emulated(server_leg, Seed(2)))
            .route("client", "default", "hb")
            .route("server", "default", "hb")
            .build()?;
        Ok(Self { topology })
    }

    /// Returns the links of [`World::emulated`]: the client's and the server's.
    ///
    /// # Panics
    /// In another world: a mistake in the test itself.
    #[must_use]
    pub fn emulated_links(&self) -> [&link::Link; 2] {
        ["client", "server"].map(|host| self.topology.emulated(host, "hb"))
    }

    /// Has the client and the server use this congestion control for what they send by the helper
    /// box. Their routes say so and not the sysctl, which may refuse it in a namespace.
    ///
    /// # Errors
    /// When the kernel has no such congestion control.
    pub fn hosts_use(&self, congestion: &str) -> Result<()> {
        for (host, v4, v6) in [
            (self.client(), "10.1.0.1", "fd00:a::1"),
            (self.server(), "10.2.0.1", "fd00:b::1"),
        ] {
            host.sh(&format!(
                "ip route replace default via {v4} congctl {congestion}; \
                 ip -6 route replace default via {v6} congctl {congestion}"
            ))?;
        }
        Ok(())
    }

    /// Takes any topology with nodes `client`, `hb` and `server` as described above.
    #[must_use]
    pub fn custom(topology: Topology) -> Self {
        Self { topology }
    }

    fn campus_a() -> Result<TopologyBuilder> {
        let mut description = Topology::describe().router("hb").host("server");
        for (host, v4, v6) in [
            ("client", "10.1.0", "fd00:a:"),
            ("sibling", "10.1.1", "fd00:a:0:1:"),
            ("outsider", "10.9.0", "fd00:9:"),
        ] {
            description = description
                .host(host)
                .link(link(host, "hb", v4, v6)?)
                .route(host, "default", "hb");
        }
        Ok(description)
    }

    /// Returns a configuration of the helper box for these two campuses: campus a's leg is `lan`
    /// (reno), campus b's is `wan` (cubic), so that a test can tell them apart.
    #[must_use]
    pub fn config() -> String {
        CONFIG.to_owned()
    }

    /// Returns [`World::config`] with `handshake = "early"`.
    #[must_use]
    pub fn early_config() -> String {
        let hold = "port = 7300\n";
        CONFIG.replace(hold, &format!("{hold}handshake = \"early\"\n"))
    }

    /// Returns the section `[admin]` of a daemon on the helper box that listens at
    /// [`World::admin_socket`].
    #[must_use]
    pub fn admin(&self) -> String {
        format!("[admin]\nsocket = \"{}\"\n", self.admin_socket().display())
    }

    /// Returns where the helper box's daemon listens, if its file has [`World::admin`].
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        self.hb().runtime_directory().join("admin.sock")
    }

    /// Returns the topology itself.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the client, in campus a.
    #[must_use]
    pub fn client(&self) -> &Netns {
        self.topology.node("client")
    }

    /// Returns another host of campus a.
    #[must_use]
    pub fn sibling(&self) -> &Netns {
        self.topology.node("sibling")
    }

    /// Returns the helper box.
    #[must_use]
    pub fn hb(&self) -> &Netns {
        self.topology.node("hb")
    }

    /// Returns the server, in campus b.
    #[must_use]
    pub fn server(&self) -> &Netns {
        self.topology.node("server")
    }

    /// Returns a host that is in no campus.
    #[must_use]
    pub fn outsider(&self) -> &Netns {
        self.topology.node("outsider")
    }

    /// Opens a listener of the server's, at its address and a port that is free.
    ///
    /// # Errors
    /// As `bind(2)`.
    pub fn listen(&self, family: Family) -> Result<TcpListener> {
        listen(
            self.server(),
            SocketAddr::new(Self::server_address(family), 0),
        )
    }

    /// Opens a connection from the client to the server.
    ///
    /// # Errors
    /// When it is not established.
    pub fn pair(&self, family: Family) -> Result<Pair> {
        Pair::open(self.client(), self.server(), Self::server_address(family))
    }

    /// Opens a connection from the client to the server, and whether the helper box has split it:
    /// as [`splits`].
    ///
    /// # Errors
    /// When it is not established.
    pub fn probe(&self, family: Family) -> Result<(Pair, bool)> {
        let open = || Pair::open(self.client(), self.server(), Self::server_address(family));
        splits(self.hb(), open)
    }

    /// Returns the helper box's nft ruleset, policy rules and routes, both families.
    ///
    /// # Errors
    /// When `nft` or `ip` fails.
    pub fn kernel_state(&self) -> Result<String> {
        self.hb().kernel_state()
    }

    /// Returns [`World::kernel_state`] without what changes while nothing happens: how long the
    /// gate stays open.
    ///
    /// # Errors
    /// When `nft` or `ip` fails.
    pub fn steady_state(&self) -> Result<String> {
        let state = self.kernel_state()?;
        let mut words: Vec<&str> = state.split_whitespace().collect();
        while let Some(at) = words.iter().position(|word| *word == "expires") {
            words.drain(at..(at + 2).min(words.len()));
        }
        Ok(words.join(" "))
    }

    /// Returns the client's address.
    #[must_use]
    pub fn client_address(family: Family) -> IpAddr {
        pick(family, [10, 1, 0, 2], [0xfd00, 0xa, 0, 0, 0, 0, 0, 2])
    }

    /// Returns the sibling's address.
    #[must_use]
    pub fn sibling_address(family: Family) -> IpAddr {
        pick(family, [10, 1, 1, 2], [0xfd00, 0xa, 0, 1, 0, 0, 0, 2])
    }

    /// Returns the server's address.
    #[must_use]
    pub fn server_address(family: Family) -> IpAddr {
        pick(family, [10, 2, 0, 2], [0xfd00, 0xb, 0, 0, 0, 0, 0, 2])
    }

    /// Returns the outsider's address.
    #[must_use]
    pub fn outsider_address(family: Family) -> IpAddr {
        pick(family, [10, 9, 0, 2], [0xfd00, 0x9, 0, 0, 0, 0, 0, 2])
    }

    /// Returns the helper box's address towards the client.
    #[must_use]
    pub fn hb_address(family: Family) -> IpAddr {
        pick(family, [10, 1, 0, 1], [0xfd00, 0xa, 0, 0, 0, 0, 0, 1])
    }
}

const CONFIG: &str = r#"
[node]
name = "hb"
drain = "5s"

[capture]
port = 7300

[[campus]]
name = "a"
prefixes = ["10.1.0.0/16", "fd00:a::/48"]
via = "local"
leg = "lan"

[[campus]]
name = "b"
prefixes = ["10.2.0.0/16", "fd00:b::/48"]
via = "local"
leg = "wan"

[leg.lan]
congestion = "reno"

[leg.wan]
congestion = "cubic"
"#;

fn pick(family: Family, v4: [u8; 4], v6: [u16; 8]) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from(v4).into(),
        Family::V6 => Ipv6Addr::from(v6).into(),
    }
}

/// Returns a link in the networks that begin so: its left end is `.2` and `:2`, its right end `.1`
/// and `:1`.
fn link(left: &str, right: &str, v4: &str, v6: &str) -> Result<Link> {
    let v4 = |end: u8| format!("{v4}.{end}/24").parse::<Ipv4Net>();
    let v6 = |end: u8| format!("{v6}:{end}/64").parse::<Ipv6Net>();
    let link = Link::between(left, right);
    Ok(link.v4(v4(2)?, v4(1)?).v6(v6(2)?, v6(1)?))
}
