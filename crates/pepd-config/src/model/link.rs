//! The links under the legs.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use pepd_dlep::MacAddress;

/// What becomes of a new connection over a leg whose link is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WhileGone {
    /// It waits, and is established when the link is back.
    Wait,
    /// Its client is refused.
    Refuse,
    /// It is routed, unsplit.
    Route,
}

/// What tells whether the link under a leg is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkSource {
    /// An interface of this host: its carrier, and what it says of itself (RFC 2863, ifOperStatus).
    Interface(String),
    /// The probes of the peer of this name.
    Peer(String),
    /// The modem of this name, by DLEP (RFC 8175).
    Dlep(String),
}

/// A modem that tells of a link by DLEP (RFC 8175).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modem {
    /// The name by which legs refer to it.
    pub name: String,
    /// The interface that it is behind. Without an address it is looked for there.
    pub interface: Option<String>,
    /// Its address, where it is not to be looked for.
    pub address: Option<IpAddr>,
    /// The TCP port of that address.
    pub port: u16,
    /// The time between two heartbeats of this box's; whole milliseconds.
    pub heartbeat: Duration,
    /// The only destination that counts; without one the link is there while any is up.
    pub destination: Option<MacAddress>,
    /// Whether what has come through a router is not believed (RFC 5082).
    pub ttl_security: bool,
}

impl fmt::Display for LinkSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(name) => write!(f, "interface {name}"),
            Self::Peer(name) => write!(f, "peer {name}"),
            Self::Dlep(name) => write!(f, "dlep {name}"),
        }
    }
}
