//! The rules and routes of pepd's, as data.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use rtnetlink::packet_route::route::RouteMessage;

use super::ids::{PROBE_TOS, PROTOCOL, Preference, RouteTable};
use crate::prefix::Family;
use crate::request::{Mark, RouteWindows};

/// One rule or route. Its `Display` is the `ip` command that makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    Route(Route),
    Rule(Rule),
}

/// A route of pepd's: where packets to a prefix go when its table is consulted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) table: RouteTable,
    pub(crate) to: IpNet,
    pub(crate) target: Target,
}

/// The place to which a route leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// The route leads to this host, whatever the address.
    Local,
    /// Into a tunnel.
    Tunnel(NextHop),
    /// The route leads to the host's own routes: the search goes on with the next rule (`throw`).
    Throw,
    /// The route leads where a route of the host's does, with attributes of pepd's; the message is
    /// [normal](super::codec::normal).
    Copied(Box<RouteMessage>),
}

/// A tunnel as a route has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NextHop {
    pub(crate) device: String,
    /// The source address of this box's own packets.
    pub(crate) source: Option<IpAddr>,
    /// What a connection may send, and receive, before the first acknowledgement.
    pub(crate) windows: Option<RouteWindows>,
}

/// A rule of policy routing: for which packets which table is consulted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) family: Family,
    pub(crate) selector: Selector,
    pub(crate) table: RouteTable,
}

/// The property by which a rule selects packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selector {
    /// Captured packets, by their mark.
    Captured(Mark),
    /// Packets of the relay's sockets, by their mark.
    Relay(Mark),
    /// The place where packets come from.
    From(Source),
    /// ICMP with the probes' type of service, from one end of a tunnel to the other. Not only the
    /// requests: answers are to come back through the tunnel, and a reverse-path check, strict or
    /// loose, asks the same rules where the sender would be.
    Probe { local: Ipv4Addr, remote: Ipv4Addr },
}

/// The place where packets come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// This box itself, for every route but a default one.
    Own,
    /// These addresses.
    Prefix(IpNet),
    /// This interface.
    Device(String),
}

impl Item {
    pub(crate) fn family(&self) -> Family {
        match self {
            Item::Route(route) => Family::of(route.to.addr()),
            Item::Rule(rule) => rule.family,
        }
    }

    pub(super) fn table(&self) -> RouteTable {
        match self {
            Item::Route(route) => route.table,
            Item::Rule(rule) => rule.table,
        }
    }

    /// Returns whether it is a route, and in this table.
    pub(crate) fn is_route_in(&self, table: RouteTable) -> bool {
        matches!(self, Item::Route(route) if route.table == table)
    }

    /// Returns whether it is the same, or a route to the same prefix in the same table, of which there is one.
    pub(crate) fn is_in_place_of(&self, other: &Item) -> bool {
        match (self, other) {
            (Item::Route(this), Item::Route(other)) => {
                (this.table, this.to) == (other.table, other.to)
            }
            _ => self == other,
        }
    }

    /// Formats it as an `ip` command with this verb: `add` or `del`.
    pub(super) fn command(&self, verb: &str) -> String {
        let flag = self.family().flag();
        match self {
            Item::Route(route) => format!("ip {flag} route {verb} {route}"),
            Item::Rule(rule) => format!("ip {flag} rule {verb} {rule}"),
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.command("add"))
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Route { table, to, target } = self;
        let end = format!("table {table} proto {PROTOCOL}");
        match target {
            Target::Local => write!(f, "local default dev lo {end}"),
            Target::Throw => write!(f, "throw {to} {end}"),
            Target::Copied(_) => write!(f, "{to} {end} …"),
            Target::Tunnel(NextHop {
                device,
                source,
                windows,
            }) => {
                write!(f, "{to} dev {device} {end}")?;
                if let Some(source) = source {
                    write!(f, " src {source}")?;
                }
                if let Some(windows) = windows {
                    write!(f, " initcwnd {}", windows.initcwnd)?;
                }
                if let Some(segments) = windows.and_then(|it| it.initrwnd) {
                    write!(f, " initrwnd {segments}")?;
                }
                Ok(())
            }
        }
    }
}

impl Selector {
    /// Gives the preference of rules with this selector, which shows the kind of a rule.
    pub(super) fn preference(&self) -> Preference {
        match self {
            Selector::Captured(_) => Preference::CAPTURE,
            Selector::Relay(_) => Preference::INITCWND,
            Selector::From(_) => Preference::NEXT_HOP,
            Selector::Probe { .. } => Preference::PROBE,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table;
        write!(f, "preference {} ", self.selector.preference())?;
        match &self.selector {
            Selector::Captured(mark) | Selector::Relay(mark) => {
                write!(f, "fwmark {mark} lookup {table}")?;
            }
            Selector::From(Source::Own) => {
                write!(f, "iif lo lookup {table} suppress_prefixlength 0")?;
            }
            Selector::From(Source::Prefix(net)) => write!(f, "from {net} lookup {table}")?,
            Selector::From(Source::Device(name)) => write!(f, "iif {name} lookup {table}")?,
            Selector::Probe { local, remote } => write!(
                f,
                "from {local} to {remote} tos {PROBE_TOS:#x} ipproto icmp lookup {table}"
            )?,
        }
        write!(f, " protocol {PROTOCOL}")
    }
}
