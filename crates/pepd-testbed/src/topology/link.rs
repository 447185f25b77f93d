//! The description of a link between two nodes.

use ipnet::{Ipv4Net, Ipv6Net};

use crate::link::{Seed, Shape};

/// A link between two nodes: a veth pair or an emulated link, dual stack.
#[derive(Clone, Debug)]
pub struct Link {
    pub(super) ends: [String; 2],
    pub(super) v4: Option<[Ipv4Net; 2]>,
    pub(super) v6: Option<[Ipv6Net; 2]>,
    pub(super) mtu: u32,
    pub(super) offloads: bool,
    pub(super) emulation: Option<(Shape, Seed)>,
}

impl Link {
    /// Returns a link of MTU 1500 with segmentation offloads on (veth's default: packets of up to
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

    /// Returns the IPv4 address and prefix length of either end.
    #[must_use]
    pub fn v4(mut self, left: Ipv4Net, right: Ipv4Net) -> Self {
        self.v4 = Some([left, right]);
        self
    }

    /// Returns the IPv6 address and prefix length of either end.
    #[must_use]
    pub fn v6(mut self, left: Ipv6Net, right: Ipv6Net) -> Self {
        self.v6 = Some([left, right]);
        self
    }

    /// Returns the MTU of both ends, in bytes.
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

/// Returns the name of the device by which a node reaches its neighbour `peer`.
pub(super) fn device(peer: &str) -> String {
    format!("to-{peer}")
}
