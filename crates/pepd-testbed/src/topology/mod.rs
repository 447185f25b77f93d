//! Hosts and routers, and the links between them, from a short description.

mod commands;
mod link;
mod settle;

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use self::commands::{Route, describe_cable, describe_end, describe_route, emulate, ip_batch};
pub use self::link::Link;
use self::link::device;
use self::settle::settle;
use crate::link::Link as EmulatedLink;
use crate::netns::Netns;

/// Network namespaces joined by veth pairs or emulated links; all gone when dropped.
#[derive(Debug)]
pub struct Topology {
    /// The emulated links, dropped before the nodes: their devices are in these.
    emulated: BTreeMap<[String; 2], EmulatedLink>,
    nodes: BTreeMap<String, Netns>,
}

impl Topology {
    /// Starts a description.
    #[must_use]
    pub fn describe() -> TopologyBuilder {
        TopologyBuilder::default()
    }

    /// Returns the namespace of the node `name`.
    ///
    /// # Panics
    /// When the description has no such node: a mistake in the test itself.
    #[must_use]
    pub fn node(&self, name: &str) -> &Netns {
        &self.nodes[name]
    }

    /// Returns the emulated link between two nodes, in the order of its description.
    ///
    /// # Panics
    /// When there is no such link: a mistake in the test itself.
    #[must_use]
    pub fn emulated(&self, left: &str, right: &str) -> &EmulatedLink {
        &self.emulated[&[left, right].map(str::to_owned)]
    }

    /// Returns the name of the device by which a node reaches its neighbour `peer`.
    #[must_use]
    pub fn device(peer: &str) -> String {
        device(peer)
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

impl TopologyBuilder {
    /// Returns an end host.
    #[must_use]
    pub fn host(mut self, name: &str) -> Self {
        self.nodes.push(Node {
            name: name.to_owned(),
            forwards: false,
        });
        self
    }

    /// Returns a router: it forwards IPv4 and IPv6.
    #[must_use]
    pub fn router(mut self, name: &str) -> Self {
        self.nodes.push(Node {
            name: name.to_owned(),
            forwards: true,
        });
        self
    }

    /// Returns a link between two nodes described before.
    #[must_use]
    pub fn link(mut self, link: Link) -> Self {
        self.links.push(link);
        self
    }

    /// Returns a route of `node` to `destination` by way of the neighbour `via`: a prefix, or
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
            let netns = Netns::with_lo_down(&node.name)?;
            if node.forwards {
                netns.sysctl("net.ipv4.conf.all.forwarding", "1")?;
                netns.sysctl("net.ipv6.conf.all.forwarding", "1")?;
            }
            nodes.insert(node.name.clone(), netns);
        }
        let mut emulated = BTreeMap::new();
        let mut cables = String::new();
        let lo_up = |node: &Node| (node.name.clone(), "link set lo up\n".to_owned());
        let mut batches: BTreeMap<String, String> = self.nodes.iter().map(lo_up).collect();
        for (index, link) in self.links.iter().enumerate() {
            let index = u8::try_from(index).context("more than 256 links")?;
            match &link.emulation {
                Some((shape, seed)) => {
                    let link_at_work = emulate(&nodes, link, shape, *seed)?;
                    emulated.insert(link.ends.clone(), link_at_work);
                }
                None => describe_cable(&mut cables, &nodes, link, index)?,
            }
            for side in [0, 1] {
                let batch = batches.entry(link.ends[side].clone()).or_default();
                describe_end(batch, link, index, side)?;
            }
        }
        for route in &self.routes {
            describe_route(
                batches.entry(route.node.clone()).or_default(),
                &self.links,
                route,
            )?;
        }
        ip_batch(None, &cables)?;
        for (name, batch) in &batches {
            let netns = nodes
                .get(name)
                .with_context(|| format!("no node `{name}`"))?;
            ip_batch(Some(netns), batch)?;
        }
        let cables = self.links.iter().filter(|link| link.emulation.is_none());
        for link in cables.filter(|link| !link.offloads) {
            for side in [0, 1] {
                let device = device(&link.ends[1 - side]);
                nodes[&link.ends[side]]
                    .sh(&format!("ethtool -K {device} tso off gso off gro off"))?;
            }
        }
        settle(&nodes, &self.links)?;
        Ok(Topology { emulated, nodes })
    }
}
