//! Policy routing: the rules and routes that deliver captured packets to this box, and those of
//! the next-box table ([`super::next_hop`]).

use std::collections::BTreeMap;
use std::io;

use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol};
use rtnetlink::packet_route::rule::RuleMessage;
use rtnetlink::{Handle, IpVersion};

use super::codec::{
    copy_message, own_route, own_rule, probe_message, route_message, rule_mark, rule_message,
    rule_preference, select_message, way_message,
};
pub(crate) use super::codec::{route_address, route_table};
use super::item::Item;
use crate::error::Error;
use crate::prefix::Family;
use crate::request::Mark;
use crate::tunnel::Tunnels;

/// The preference of pepd's rules. Early, so that they decide before the operator's own
/// policy routing (which sees captured packets' mark bits as ever, but must not send the
/// packets away), and after `local` at 0.
pub const PREFERENCE: u32 = 73;

/// The routing protocol number (`FRA_PROTOCOL`, `rtm_protocol`) on every rule and route of
/// pepd's: what carries it is pepd's own, what does not is never touched. The number is
/// free in iproute2's `rt_protos`.
pub const PROTOCOL: u8 = 73;

/// The table of the capture, those of the next-box table, and that of the windows are within so
/// many numbers.
const MOST_TABLES: u32 = 300;

/// `lo` in every network namespace (LOOPBACK_IFINDEX, include/net/flow.h).
pub(super) const LOOPBACK: u32 = 1;
pub(super) const LOOPBACK_NAME: &str = "lo";

enum Message {
    Route(RouteMessage),
    Rule(RuleMessage),
}

/// The preference of the rules of the next-box table: after the capture, which takes what is
/// for this box.
pub const NEXT_PREFERENCE: u32 = PREFERENCE + 1;

/// The preference of the rules for probes, which name both ends of a tunnel: before all others,
/// since a campus may hold these addresses, too.
pub const PROBE_PREFERENCE: u32 = PREFERENCE - 1;

/// The type of service of the echo requests that probe a tunnel, which the answers have as well
/// (net/ipv4/icmp.c, `icmp_reply`). By it they are told from all other ICMP between two boxes.
/// It has no meaning as a code point (RFC 2474: 000100).
pub const PROBE_TOS: u8 = 0x10;

/// The preference of the rules that lead to routes with windows (`windows.rs`): after the next-box
/// table, whose routes have their own.
pub const WINDOWS_PREFERENCE: u32 = NEXT_PREFERENCE + 1;

/// A connection to the kernel's routing tables.
pub(crate) struct Routing {
    handle: Handle,
}

impl Routing {
    /// Opens the connection; it is served by the current runtime until `Routing` is dropped.
    pub(crate) fn open() -> Result<Routing, Error> {
        // The strict check makes the kernel honour the table in a dump request: a router
        // may have a million routes elsewhere.
        let (connection, handle, _) = rtnetlink::new_connection_with_strict_check()
            .map_err(|source| Error::netlink("cannot open a netlink socket", source))?;
        tokio::spawn(connection);
        Ok(Routing { handle })
    }

    /// The devices, over the same connection.
    pub(crate) fn tunnels(&self) -> Tunnels<'_> {
        Tunnels::new(&self.handle)
    }

    /// Makes `items` that are not there yet, in order, and gives those that it made. On
    /// failure they are undone in reverse.
    pub(crate) async fn make(&self, items: &[Item]) -> Result<Vec<Item>, Error> {
        // Looked up, because EEXIST says only that something similar is there: a route of
        // another protocol gives it too.
        let tables: Vec<u32> = items.iter().map(Item::table).collect();
        let there = self.own(&tables).await?;
        let devices = self.tunnels().names().await?;
        let mut made = Vec::new();
        for item in items.iter().filter(|item| !there.contains(item)) {
            let message = self.message(item, &devices);
            let result = match message {
                Ok(message) => self.add(item, message).await,
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                self.undo(&made).await;
                return Err(error);
            }
            made.push(item.clone());
        }
        Ok(made)
    }

    /// Removes `items` in reverse order. A failure is logged: this is the way back from
    /// another error, which is the one to report.
    pub(crate) async fn undo(&self, items: &[Item]) {
        for item in items.iter().rev() {
            if let Err(error) = self.delete(item).await {
                tracing::warn!(%error, "cannot undo");
            }
        }
    }

    /// Removes one item. False if it was not there.
    pub(crate) async fn delete(&self, item: &Item) -> Result<bool, Error> {
        let devices = match item {
            Item::Way { hop: Some(_), .. } => self.tunnels().names().await?,
            _ => BTreeMap::new(),
        };
        let message = match self.message(item, &devices) {
            Ok(message) => message,
            // The device is gone, and the route with it.
            Err(Error::Drift { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let result = match message {
            Message::Route(message) => self.handle.route().del(message).execute().await,
            Message::Rule(message) => self.handle.rule().del(message).execute().await,
        };
        match result.map_err(to_io) {
            Ok(()) => Ok(true),
            Err(source) if is_absent(&source) => Ok(false),
            Err(source) => Err(Error::netlink(item.command("del"), source)),
        }
    }

    /// The rules of pepd's that are there, and the routes in `tables` and in the tables
    /// that these rules look into. Rules come first: the order of removal.
    pub(crate) async fn own(&self, tables: &[u32]) -> Result<Vec<Item>, Error> {
        let devices = self.tunnels().names().await?;
        let mut found = Vec::new();
        for family in Family::ALL {
            let mut tables = tables.to_vec();
            for rule in self.rules(family).await? {
                if let Some(item) = own_rule(family, &rule) {
                    tables.push(item.table());
                    found.push(item);
                }
            }
            tables.sort_unstable();
            tables.dedup();
            for table in tables {
                let routes = self.routes(family, table).await?;
                let items = routes
                    .iter()
                    .filter_map(|route| own_route(family, table, route, &devices));
                found.extend(items);
            }
        }
        Ok(found)
    }

    /// The tables from `first` on, for as many as there can be peers, that have routes of pepd's.
    /// A crash may have left routes before the rules that lead to them.
    pub(crate) async fn own_tables(&self, first: u32) -> Result<Vec<u32>, Error> {
        let mut tables = vec![first];
        for family in Family::ALL {
            let mut filter = RouteMessage::default();
            filter.header.address_family = address_family(family);
            filter.header.protocol = RouteProtocol::Other(PROTOCOL);
            let routes = self.dump(filter, family, "ip route show table all").await?;
            tables.extend(
                routes
                    .iter()
                    .filter(|route| route.header.protocol == RouteProtocol::Other(PROTOCOL))
                    .map(route_table)
                    .filter(|table| (first..=first.saturating_add(MOST_TABLES)).contains(table)),
            );
        }
        tables.sort_unstable();
        tables.dedup();
        Ok(tables)
    }

    /// Fails if somebody else's routes are in `tables` or somebody else's rule has `mark`.
    pub(crate) async fn refuse_foreign(&self, mark: Mark, tables: &[u32]) -> Result<(), Error> {
        let devices = self.tunnels().names().await?;
        for family in Family::ALL {
            for &table in tables {
                let routes = self.routes(family, table).await?;
                let count = routes
                    .iter()
                    .filter(|route| own_route(family, table, route, &devices).is_none())
                    .count();
                if count > 0 {
                    return Err(Error::ForeignRoutes {
                        table,
                        family: name(family),
                        flag: flag(family),
                        count,
                    });
                }
            }
            for rule in self.rules(family).await? {
                if own_rule(family, &rule).is_none() && rule_mark(&rule) == Some(mark) {
                    return Err(Error::ForeignRule {
                        mark,
                        preference: rule_preference(&rule),
                        family: name(family),
                        flag: flag(family),
                    });
                }
            }
        }
        Ok(())
    }

    async fn add(&self, item: &Item, message: Message) -> Result<(), Error> {
        let result = match message {
            // A way may be there with another tunnel or window.
            Message::Route(message) if matches!(item, Item::Way { .. } | Item::Copy { .. }) => {
                self.handle.route().add(message).replace().execute().await
            }
            Message::Route(message) => self.handle.route().add(message).execute().await,
            Message::Rule(message) => {
                let mut request = self.handle.rule().add();
                *request.message_mut() = message;
                request.execute().await
            }
        };
        result.map_err(|error| Error::netlink(item.command("add"), to_io(error)))
    }

    fn message(&self, item: &Item, devices: &BTreeMap<u32, String>) -> Result<Message, Error> {
        Ok(match item {
            Item::Route { family, table } => Message::Route(route_message(*family, *table)),
            Item::Rule {
                family,
                mark,
                table,
            } => Message::Rule(rule_message(PREFERENCE, *family, *mark, *table)),
            Item::Windows {
                family,
                mark,
                table,
            } => Message::Rule(rule_message(WINDOWS_PREFERENCE, *family, *mark, *table)),
            Item::Copy {
                family,
                table,
                to,
                route,
            } => Message::Route(copy_message(*family, *table, *to, route)),
            Item::Way { table, to, hop } => {
                Message::Route(way_message(*table, *to, hop.as_ref(), devices)?)
            }
            Item::Select {
                family,
                from,
                table,
            } => Message::Rule(select_message(*family, from, *table)),
            Item::Probe {
                local,
                remote,
                table,
            } => Message::Rule(probe_message(*local, *remote, *table)),
        })
    }

    async fn rules(&self, family: Family) -> Result<Vec<RuleMessage>, Error> {
        let request = self.handle.rule().get(match family {
            Family::V4 => IpVersion::V4,
            Family::V6 => IpVersion::V6,
        });
        match request.execute().try_collect().await.map_err(to_io) {
            Ok(rules) => Ok(rules),
            Err(source) if is_absent(&source) => Ok(Vec::new()),
            Err(source) => {
                let what = format!("ip {} rule show", flag(family));
                Err(Error::netlink(what, source))
            }
        }
    }

    /// Whether there is policy routing that is neither pepd's nor the kernel's own.
    pub(crate) async fn has_foreign_rules(&self) -> Result<bool, Error> {
        for family in Family::ALL {
            let foreign = |rule: &RuleMessage| {
                !matches!(rule_preference(rule), 0 | 32766 | 32767)
                    && own_rule(family, rule).is_none()
            };
            if self.rules(family).await?.iter().any(foreign) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) async fn routes(
        &self,
        family: Family,
        table: u32,
    ) -> Result<Vec<RouteMessage>, Error> {
        let mut filter = RouteMessage::default();
        filter.header.address_family = address_family(family);
        filter.attributes.push(RouteAttribute::Table(table));
        let what = format!("ip {} route show table {table}", flag(family));
        let mut routes = self.dump(filter, family, &what).await?;
        routes.retain(|route| route_table(route) == table);
        Ok(routes)
    }

    async fn dump(
        &self,
        filter: RouteMessage,
        family: Family,
        what: &str,
    ) -> Result<Vec<RouteMessage>, Error> {
        let request = self.handle.route().get(filter);
        let routes: Result<Vec<RouteMessage>, _> = request.execute().try_collect().await;
        match routes.map_err(to_io) {
            Ok(mut routes) => {
                // Without IPv6 the kernel answers with every family it has.
                routes.retain(|route| route.header.address_family == address_family(family));
                Ok(routes)
            }
            Err(source) if is_absent(&source) => Ok(Vec::new()),
            Err(source) => Err(Error::netlink(what, source)),
        }
    }
}

/// What the kernel says when there is nothing to list or to delete: no such table or rule,
/// no such route, or (for a family that is not there at all) no such operation.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ESRCH | libc::EAFNOSUPPORT | libc::EOPNOTSUPP)
    )
}

pub(crate) fn to_io(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        // No errno to keep: these come from the library.
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

pub(crate) fn address_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

pub(super) fn flag(family: Family) -> &'static str {
    match family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    }
}

fn name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}
