//! Several helper boxes in a tree, the campuses behind them, and the paths between.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use ipnet::{Ipv4Net, Ipv6Net};

use crate::netns::Netns;
use crate::topology::{Link, Topology, TopologyBuilder};
use crate::world::Family;

/// Helper boxes, campuses of one host each, and between the boxes paths with a router that knows
/// nothing of campuses.
///
/// ```text
///   a 10.1.0.2 ── box-a ── path-0 ── box-i ── path-1 ── box-b ── b 10.2.0.2
/// ```
///
/// The n-th campus, from 1, is 10.n.0.0/16 and fd00:n::/48; its box's address there ends in 1. The
/// ends of the p-th path, from 0, are 198.18.(2p).1 and 198.18.(2p+1).1, and 2001:db8:(2p)::1 and
/// 2001:db8:(2p+1)::1; the router's end in 2.
#[derive(Debug)]
pub struct Fleet {
    topology: Topology,
    description: FleetBuilder,
}

/// The description of a [`Fleet`].
#[derive(Clone, Debug, Default)]
pub struct FleetBuilder {
    boxes: Vec<String>,
    paths: Vec<Path>,
    campuses: Vec<Campus>,
}

#[derive(Clone, Debug)]
struct Path {
    ends: [String; 2],
    /// The MTU of the second half.
    mtu: u32,
}

#[derive(Clone, Debug)]
struct Campus {
    name: String,
    behind: String,
}

impl FleetBuilder {
    /// Returns a helper box.
    #[must_use]
    pub fn helper(mut self, name: &str) -> Self {
        self.boxes.push(name.to_owned());
        self
    }

    /// Returns a path between two helper boxes.
    #[must_use]
    pub fn path(self, one: &str, other: &str) -> Self {
        self.narrow_path(one, other, 1500)
    }

    /// Returns the same, with a second half that carries packets of `mtu` bytes only.
    #[must_use]
    pub fn narrow_path(mut self, one: &str, other: &str, mtu: u32) -> Self {
        let ends = [one.to_owned(), other.to_owned()];
        self.paths.push(Path { ends, mtu });
        self
    }

    /// Returns a campus behind a helper box.
    #[must_use]
    pub fn campus(mut self, name: &str, behind: &str) -> Self {
        self.campuses.push(Campus {
            name: name.to_owned(),
            behind: behind.to_owned(),
        });
        self
    }

    /// Builds it.
    ///
    /// # Errors
    /// Without root.
    pub fn build(self) -> Result<Fleet> {
        let mut description = Topology::describe();
        for name in &self.boxes {
            description = description.router(&node(name));
        }
        for (index, path) in self.paths.iter().enumerate() {
            description = description.router(&format!("path-{index}"));
            description = between(description, index, path)?;
        }
        for (index, campus) in self.campuses.iter().enumerate() {
            description = behind(description, index + 1, campus)?;
        }
        Ok(Fleet {
            topology: description.build()?,
            description: self,
        })
    }
}

fn between(mut description: TopologyBuilder, index: usize, path: &Path) -> Result<TopologyBuilder> {
    let router = format!("path-{index}");
    for side in [0, 1] {
        let end = node(&path.ends[side]);
        let (four, six) = half(2 * index + side)?;
        let mtu = if side == 1 { path.mtu } else { 1500 };
        let link = Link::between(&end, &router)
            .v4(Ipv4Net::new(four[0], 24)?, Ipv4Net::new(four[1], 24)?)
            .v6(Ipv6Net::new(six[0], 64)?, Ipv6Net::new(six[1], 64)?)
            .mtu(mtu)
            .without_offloads();
        description = description.link(link);
    }
    for side in [0, 1] {
        let (four, six) = half(2 * index + 1 - side)?;
        let end = node(&path.ends[side]);
        for net in [
            Ipv4Net::new(four[0], 24)?.trunc().to_string(),
            Ipv6Net::new(six[0], 64)?.trunc().to_string(),
        ] {
            description = description.route(&end, &net, &router);
        }
    }
    Ok(description)
}

fn behind(description: TopologyBuilder, number: usize, campus: &Campus) -> Result<TopologyBuilder> {
    let byte = u8::try_from(number)?;
    let v4 = |last| Ipv4Net::new(Ipv4Addr::new(10, byte, 0, last), 24);
    let v6 = |last| Ipv6Net::new(Ipv6Addr::new(0xfd00, byte.into(), 0, 0, 0, 0, 0, last), 64);
    let gateway = node(&campus.behind);
    let link = Link::between(&campus.name, &gateway)
        .v4(v4(2)?, v4(1)?)
        .v6(v6(2)?, v6(1)?)
        .without_offloads();
    Ok(description
        .host(&campus.name)
        .link(link)
        .route(&campus.name, "default", &gateway))
}

/// Returns the addresses of the box and of the router on one half of a path.
fn half(number: usize) -> Result<([Ipv4Addr; 2], [Ipv6Addr; 2])> {
    let byte = u8::try_from(number).context("more than 128 paths")?;
    let four = |last| Ipv4Addr::new(198, 18, byte, last);
    let six = |last| Ipv6Addr::new(0x2001, 0xdb8, byte.into(), 0, 0, 0, 0, last);
    Ok(([four(1), four(2)], [six(1), six(2)]))
}

fn node(name: &str) -> String {
    format!("box-{name}")
}

impl Fleet {
    /// Starts a description.
    #[must_use]
    pub fn describe() -> FleetBuilder {
        FleetBuilder::default()
    }

    /// Campus a – box a – a long path – box i – a short path – box b – campus b: Jain & Ott,
    /// section II.
    ///
    /// # Errors
    /// Without root.
    pub fn chain() -> Result<Self> {
        Self::chain_over("a", "i", 1500)
    }

    /// Returns the chain whose long path, between the boxes a and i, carries packets of `mtu` bytes
    /// only on the half at `narrow`, of which the box at the other end, `wide`, sees nothing.
    ///
    /// # Errors
    /// Without root.
    pub fn narrow_chain(wide: &str, narrow: &str, mtu: u32) -> Result<Self> {
        Self::chain_over(wide, narrow, mtu)
    }

    fn chain_over(wide: &str, narrow: &str, mtu: u32) -> Result<Self> {
        Self::describe()
            .helper("a")
            .helper("i")
            .helper("b")
            .narrow_path(wide, narrow, mtu)
            .path("i", "b")
            .campus("a", "a")
            .campus("b", "b")
            .build()
    }

    /// Returns the namespace of a helper box.
    ///
    /// # Panics
    /// When there is no such box: a mistake in the test itself.
    #[must_use]
    pub fn helper(&self, name: &str) -> &Netns {
        self.topology.node(&node(name))
    }

    /// Returns the router on a path.
    ///
    /// # Panics
    /// When there is no such path: a mistake in the test itself.
    #[must_use]
    pub fn path(&self, index: usize) -> &Netns {
        self.topology.node(&format!("path-{index}"))
    }

    /// Returns the host in a campus.
    ///
    /// # Panics
    /// When there is no such campus: a mistake in the test itself.
    #[must_use]
    pub fn host(&self, campus: &str) -> &Netns {
        self.topology.node(campus)
    }

    /// Returns the address of the host in a campus.
    ///
    /// # Errors
    /// When there is no such campus: a mistake in the test itself.
    pub fn address(&self, campus: &str, family: Family) -> Result<IpAddr> {
        let number = self.campus_number(campus)?;
        Ok(match family {
            Family::V4 => Ipv4Addr::new(10, number, 0, 2).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, number.into(), 0, 0, 0, 0, 0, 2).into(),
        })
    }

    /// Returns the address of a box at its end of the tunnel to another.
    ///
    /// # Errors
    /// When there is no path between them: a mistake in the test itself.
    pub fn end(&self, of: &str, to: &str, family: Family) -> Result<IpAddr> {
        let paths = self.description.paths.iter().enumerate();
        for (index, path) in paths {
            for side in [0, 1] {
                if path.ends[side] == of && path.ends[1 - side] == to {
                    let (four, six) = half(2 * index + side)?;
                    return Ok(match family {
                        Family::V4 => four[0].into(),
                        Family::V6 => six[0].into(),
                    });
                }
            }
        }
        anyhow::bail!("no path from {of} to {to}")
    }

    /// Returns the boxes on the way from one campus to another, in order.
    ///
    /// # Errors
    /// When there is no path: a mistake in the test itself.
    pub fn way(&self, from: &str, to: &str) -> Result<Vec<String>> {
        let [from, to] = [self.gateway(from)?, self.gateway(to)?];
        let mut way = vec![from.to_owned()];
        while let Some(here) = way.last().filter(|here| *here != to) {
            way.push(self.next(here, to)?);
        }
        Ok(way)
    }

    /// Returns the configuration of one box: every campus, those behind other boxes by the tunnel
    /// to the next one. The legs to a peer are `to-PEER` (reno on even paths, cubic on odd ones),
    /// those to its own campuses `lan`.
    ///
    /// # Errors
    /// When there is no such box: a mistake in the test itself.
    pub fn config(&self, name: &str, outer: Family, inner: &[Family]) -> Result<String> {
        let mut text = format!("[node]\nname = \"{name}\"\nworkers = 2\ndrain = \"5s\"\n");
        let mut legs = BTreeMap::from([("lan".to_owned(), "cubic")]);
        for (index, path) in self.description.paths.iter().enumerate() {
            let Some(side) = path.ends.iter().position(|end| end == name) else {
                continue;
            };
            let peer = &path.ends[1 - side];
            let (local, remote) = (self.end(name, peer, outer)?, self.end(peer, name, outer)?);
            write!(
                text,
                "[[peer]]\nname = \"{peer}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\n"
            )?;
            let congestion = if index % 2 == 0 { "reno" } else { "cubic" };
            legs.insert(format!("to-{peer}"), congestion);
        }
        for campus in &self.description.campuses {
            let number = self.campus_number(&campus.name)?;
            let prefixes: Vec<String> = inner
                .iter()
                .map(|family| match family {
                    Family::V4 => format!("\"10.{number}.0.0/16\""),
                    Family::V6 => format!("\"fd00:{number:x}::/48\""),
                })
                .collect();
            let (via, leg) = if campus.behind == name {
                ("local".to_owned(), "lan".to_owned())
            } else {
                let next = self.next(name, &campus.behind)?;
                (next.clone(), format!("to-{next}"))
            };
            write!(
                text,
                "[[campus]]\nname = \"{}\"\nprefixes = [{}]\nvia = \"{via}\"\nleg = \"{leg}\"\n",
                campus.name,
                prefixes.join(", ")
            )?;
        }
        for (leg, congestion) in legs {
            write!(text, "[leg.{leg}]\ncongestion = \"{congestion}\"\n")?;
        }
        Ok(text)
    }

    /// Returns what pepd could have changed on a box: nft, rules, routes, devices.
    ///
    /// # Errors
    /// When `nft` or `ip` fails.
    pub fn kernel_state(&self, name: &str) -> Result<String> {
        let helper = self.helper(name);
        let devices = helper.sh("ip -o link | sed 's/ permaddr.*//'")?;
        Ok(devices + &helper.kernel_state()?)
    }

    fn gateway(&self, campus: &str) -> Result<&str> {
        let campuses = &self.description.campuses;
        let found = campuses.iter().find(|it| it.name == campus);
        found.map(|it| it.behind.as_str()).context("no such campus")
    }

    fn campus_number(&self, campus: &str) -> Result<u8> {
        let campuses = &self.description.campuses;
        let at = campuses.iter().position(|it| it.name == campus);
        Ok(u8::try_from(at.context("no such campus")? + 1)?)
    }

    /// Returns the box after `here` on the way to the box `to`: in a tree, the neighbour from which
    /// a search outward from `to` comes here.
    fn next(&self, here: &str, to: &str) -> Result<String> {
        let mut from = BTreeMap::from([(to, to)]);
        let mut queue = VecDeque::from([to]);
        while let Some(at) = queue.pop_front() {
            for path in &self.description.paths {
                for side in [0, 1] {
                    let (end, other) = (path.ends[side].as_str(), path.ends[1 - side].as_str());
                    if end == at && !from.contains_key(other) {
                        from.insert(other, at);
                        queue.push_back(other);
                    }
                }
            }
        }
        let next = from.get(here).context("no way there")?;
        Ok((*next).to_owned())
    }
}
