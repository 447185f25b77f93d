//! What the kernel state is to do, in this crate's own terms.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// All that [`Plan::new`](crate::Plan::new) needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The box's name. It appears in comments only.
    pub node: String,
    /// The bits of the packet mark that belong to pepd.
    pub mark: Mark,
    /// The policy-routing table that delivers captured packets locally. It must hold
    /// nothing else.
    pub table: u32,
    /// The TCP port of every [`Listener`].
    pub port: u16,
    /// The campuses. Where their prefixes nest, the longest one wins; of two equal
    /// prefixes the first campus's (the configuration refuses such a file).
    pub campuses: Vec<Campus>,
    /// Exceptions, in order; the first match wins. A connection that matches none is split.
    pub rules: Vec<Rule>,
}

/// A mark and the bits of it that count, as `ip rule … fwmark VALUE/MASK`.
///
/// Bits outside the mask are the operator's and are never changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The value of the masked bits on a captured packet.
    pub value: u32,
    /// The bits that belong to pepd.
    pub mask: u32,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/{:#x}", self.value, self.mask)
    }
}

/// A group of addresses; traffic between two different campuses is split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Campus {
    /// Any text. It appears in comments only; nft objects are numbered.
    pub name: String,
    /// The campus's addresses, of either family. Host bits are ignored.
    pub prefixes: Vec<IpNet>,
    /// Where connections *from* this campus are delivered.
    pub listener: Listener,
}

/// The addresses of the sockets that accept one campus's connections.
///
/// They should be addresses that nothing else uses and nothing routes, such as
/// 127.73.0.1 and 100::73:0:1 (the discard prefix, RFC 6666).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// For IPv4.
    pub v4: Ipv4Addr,
    /// For IPv6.
    pub v6: Ipv6Addr,
}

/// An exception; an empty list matches anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The client's addresses.
    pub source: Vec<IpNet>,
    /// The server's addresses.
    pub destination: Vec<IpNet>,
    /// The server's ports. A range whose end lies before its start matches nothing.
    pub destination_port: Vec<RangeInclusive<u16>>,
    /// What to do with the connection.
    pub action: Action,
}

/// What a [`Rule`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Split the connection, and look at no further rule.
    Split,
    /// Route the connection as if pepd were not there.
    Bypass,
}
