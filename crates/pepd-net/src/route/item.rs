//! The rules and routes of pepd's, as data.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use rtnetlink::packet_route::route::RouteMessage;

use super::netlink::{
    NEXT_PREFERENCE, PREFERENCE, PROBE_PREFERENCE, PROBE_TOS, PROTOCOL, WINDOWS_PREFERENCE, flag,
};
use crate::prefix::Family;
use crate::request::Mark;

/// One rule or route. Its `Display` is the `ip` command that makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    /// Everything in `table` is delivered locally.
    Route { family: Family, table: u32 },
    /// Packets with the mark look into `table`.
    Rule {
        family: Family,
        mark: Mark,
        table: u32,
    },
    /// In `table`, a prefix goes into a tunnel; or, without one, to the host's own routes.
    Way {
        table: u32,
        to: IpNet,
        hop: Option<Hop>,
    },
    /// These packets look into `table`.
    Select {
        family: Family,
        from: Source,
        table: u32,
    },
    /// ICMP with the probes' type of service, from one end of a tunnel to the other, looks into
    /// `table`. Not only the requests: answers shall come back through the tunnel, and a reverse
    /// path check, strict or loose, asks the same rules where the sender would be.
    Probe {
        local: Ipv4Addr,
        remote: Ipv4Addr,
        table: u32,
    },
    /// Packets of the relay's sockets look into `table`.
    Windows {
        family: Family,
        mark: Mark,
        table: u32,
    },
    /// In `table`, a route of the host's with attributes of pepd's.
    Copy {
        family: Family,
        table: u32,
        to: IpNet,
        /// See [`super::initcwnd::normal`].
        route: Box<RouteMessage>,
    },
}

/// Where packets come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// This box itself; for more than a default route.
    Own,
    /// These addresses.
    Prefix(IpNet),
    /// This interface.
    Device(String),
}

/// A tunnel as a route has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) device: String,
    /// The source address of this box's own packets.
    pub(crate) source: Option<IpAddr>,
    /// Segments that a connection may send, and receive, before the first acknowledgement.
    pub(crate) window: Option<u32>,
}

impl Item {
    pub(crate) fn family(&self) -> Family {
        match self {
            Item::Route { family, .. }
            | Item::Rule { family, .. }
            | Item::Select { family, .. }
            | Item::Windows { family, .. }
            | Item::Copy { family, .. } => *family,
            Item::Way { to, .. } => Family::of(to.addr()),
            Item::Probe { .. } => Family::V4,
        }
    }

    pub(super) fn table(&self) -> u32 {
        match self {
            Item::Route { table, .. }
            | Item::Rule { table, .. }
            | Item::Way { table, .. }
            | Item::Select { table, .. }
            | Item::Probe { table, .. }
            | Item::Windows { table, .. }
            | Item::Copy { table, .. } => *table,
        }
    }

    /// Whether it is a route, and in this table.
    pub(crate) fn is_route_in(&self, table: u32) -> bool {
        let is_route = matches!(
            self,
            Item::Route { .. } | Item::Way { .. } | Item::Copy { .. }
        );
        is_route && self.table() == table
    }

    /// As an `ip` command with this verb: `add` or `del`.
    pub(super) fn command(&self, verb: &str) -> String {
        let flag = flag(self.family());
        match self {
            Item::Route { table, .. } => format!(
                "ip {flag} route {verb} local default dev lo table {table} proto {PROTOCOL}"
            ),
            Item::Rule { mark, table, .. } => format!(
                "ip {flag} rule {verb} preference {PREFERENCE} fwmark {mark} lookup {table} \
                 protocol {PROTOCOL}"
            ),
            Item::Way { table, to, hop } => {
                let mut line = format!("ip {flag} route {verb} ");
                match hop {
                    Some(hop) => line.push_str(&format!("{to} dev {}", hop.device)),
                    None => line.push_str(&format!("throw {to}")),
                }
                line.push_str(&format!(" table {table} proto {PROTOCOL}"));
                if let Some(source) = hop.as_ref().and_then(|hop| hop.source) {
                    line.push_str(&format!(" src {source}"));
                }
                if let Some(window) = hop.as_ref().and_then(|hop| hop.window) {
                    line.push_str(&format!(" initcwnd {window} initrwnd {window}"));
                }
                line
            }
            Item::Windows { mark, table, .. } => format!(
                "ip {flag} rule {verb} preference {WINDOWS_PREFERENCE} fwmark {mark} lookup \
                 {table} protocol {PROTOCOL}"
            ),
            Item::Copy { table, to, .. } => {
                format!("ip {flag} route {verb} {to} table {table} proto {PROTOCOL} …")
            }
            Item::Select { from, table, .. } => {
                let what = match from {
                    Source::Own => format!("iif lo lookup {table} suppress_prefixlength 0"),
                    Source::Prefix(net) => format!("from {net} lookup {table}"),
                    Source::Device(name) => format!("iif {name} lookup {table}"),
                };
                format!(
                    "ip {flag} rule {verb} preference {NEXT_PREFERENCE} {what} protocol {PROTOCOL}"
                )
            }
            Item::Probe {
                local,
                remote,
                table,
            } => format!(
                "ip {flag} rule {verb} preference {PROBE_PREFERENCE} from {local} to {remote} \
                 tos {PROBE_TOS:#x} ipproto icmp lookup {table} protocol {PROTOCOL}"
            ),
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.command("add"))
    }
}
