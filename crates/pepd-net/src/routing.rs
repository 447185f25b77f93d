//! Policy routing: the rules and routes that deliver captured packets to this box.

use std::fmt;
use std::io;

use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::{Handle, IpVersion};

use crate::error::Error;
use crate::prefix::Family;
use crate::request::Mark;

/// The preference of pepd's rules. Early, so that they decide before the operator's own
/// policy routing (which sees captured packets' mark bits as ever, but must not send the
/// packets away), and after `local` at 0.
pub const PREFERENCE: u32 = 73;

/// The routing protocol number (`FRA_PROTOCOL`, `rtm_protocol`) on every rule and route of
/// pepd's: what carries it is pepd's own, what does not is never touched. The number is
/// free in iproute2's `rt_protos`.
pub const PROTOCOL: u8 = 73;

/// `lo` in every network namespace (LOOPBACK_IFINDEX, include/net/flow.h).
const LOOPBACK: u32 = 1;

/// One rule or route. Its `Display` is the `ip` command that makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Item {
    /// Everything in `table` is delivered locally.
    Route { family: Family, table: u32 },
    /// Packets with the mark look into `table`.
    Rule {
        family: Family,
        mark: Mark,
        table: u32,
    },
}

impl Item {
    pub(crate) fn family(self) -> Family {
        match self {
            Item::Route { family, .. } | Item::Rule { family, .. } => family,
        }
    }

    /// As an `ip` command with this verb: `add` or `del`.
    fn command(self, verb: &str) -> String {
        let flag = flag(self.family());
        match self {
            Item::Route { table, .. } => format!(
                "ip {flag} route {verb} local default dev lo table {table} proto {PROTOCOL}"
            ),
            Item::Rule { mark, table, .. } => format!(
                "ip {flag} rule {verb} preference {PREFERENCE} fwmark {mark} lookup {table} \
                 protocol {PROTOCOL}"
            ),
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.command("add"))
    }
}

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

    /// Makes `items` that are not there yet, in order, and gives those that it made. On
    /// failure they are undone in reverse.
    pub(crate) async fn make(&self, items: &[Item]) -> Result<Vec<Item>, Error> {
        let mut made = Vec::new();
        for &item in items {
            match self.make_one(item).await {
                Ok(true) => made.push(item),
                Ok(false) => {}
                Err(error) => {
                    self.undo(&made).await;
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    /// Removes `items` in reverse order. A failure is logged: this is the way back from
    /// another error, which is the one to report.
    pub(crate) async fn undo(&self, items: &[Item]) {
        for &item in items.iter().rev() {
            if let Err(error) = self.delete(item).await {
                tracing::warn!(%error, "cannot undo");
            }
        }
    }

    /// Removes one item. False if it was not there.
    pub(crate) async fn delete(&self, item: Item) -> Result<bool, Error> {
        let result = match item {
            Item::Route { family, table } => {
                let message = route_message(family, table);
                self.handle.route().del(message).execute().await
            }
            Item::Rule {
                family,
                mark,
                table,
            } => {
                let message = rule_message(family, mark, table);
                self.handle.rule().del(message).execute().await
            }
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
        let mut found = Vec::new();
        for family in Family::ALL {
            let mut tables = tables.to_vec();
            for rule in self.rules(family).await? {
                if let Some((mark, table)) = own_rule(&rule) {
                    tables.push(table);
                    found.push(Item::Rule {
                        family,
                        mark,
                        table,
                    });
                }
            }
            tables.sort_unstable();
            tables.dedup();
            for table in tables {
                let routes = self.routes(family, table).await?;
                if routes.iter().any(is_own_route) {
                    found.push(Item::Route { family, table });
                }
            }
        }
        Ok(found)
    }

    /// Fails if somebody else's routes are in `table` or somebody else's rule has `mark`.
    pub(crate) async fn refuse_foreign(&self, mark: Mark, table: u32) -> Result<(), Error> {
        for family in Family::ALL {
            let routes = self.routes(family, table).await?;
            let count = routes.iter().filter(|route| !is_own_route(route)).count();
            if count > 0 {
                return Err(Error::ForeignRoutes {
                    table,
                    family: name(family),
                    flag: flag(family),
                    count,
                });
            }
            for rule in self.rules(family).await? {
                if own_rule(&rule).is_none() && rule_mark(&rule) == Some(mark) {
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

    /// False if the item is there already.
    async fn make_one(&self, item: Item) -> Result<bool, Error> {
        // Looked up, because EEXIST says only that something similar is there: a route of
        // another protocol gives it too.
        let tables = match item {
            Item::Route { table, .. } | Item::Rule { table, .. } => [table],
        };
        if self.own(&tables).await?.contains(&item) {
            return Ok(false);
        }
        let result = match item {
            Item::Route { family, table } => {
                let message = route_message(family, table);
                self.handle.route().add(message).execute().await
            }
            Item::Rule {
                family,
                mark,
                table,
            } => {
                let mut request = self.handle.rule().add();
                *request.message_mut() = rule_message(family, mark, table);
                request.execute().await
            }
        };
        result
            .map(|()| true)
            .map_err(|error| Error::netlink(item.command("add"), to_io(error)))
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

    async fn routes(&self, family: Family, table: u32) -> Result<Vec<RouteMessage>, Error> {
        let mut filter = RouteMessage::default();
        filter.header.address_family = address_family(family);
        filter.attributes.push(RouteAttribute::Table(table));
        let request = self.handle.route().get(filter);
        let routes: Result<Vec<RouteMessage>, _> = request.execute().try_collect().await;
        match routes.map_err(to_io) {
            Ok(routes) => Ok(routes
                .into_iter()
                // Without IPv6 the kernel answers with every family it has.
                .filter(|route| route.header.address_family == address_family(family))
                .filter(|route| route_table(route) == table)
                .collect()),
            Err(source) if is_absent(&source) => Ok(Vec::new()),
            Err(source) => {
                let what = format!("ip {} route show table {table}", flag(family));
                Err(Error::netlink(what, source))
            }
        }
    }
}

fn route_message(family: Family, table: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = address_family(family);
    message.header.protocol = RouteProtocol::Other(PROTOCOL);
    message.header.kind = RouteType::Local;
    message.header.scope = match family {
        Family::V4 => RouteScope::Host,
        Family::V6 => RouteScope::Universe,
    };
    message.attributes.push(RouteAttribute::Table(table));
    message.attributes.push(RouteAttribute::Oif(LOOPBACK));
    message
}

fn rule_message(family: Family, mark: Mark, table: u32) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = address_family(family);
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Priority(PREFERENCE),
        RuleAttribute::FwMark(mark.value),
        RuleAttribute::FwMask(mark.mask),
        RuleAttribute::Table(table),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ];
    message
}

/// The mark and table of a rule that pepd made; none for anybody else's.
fn own_rule(rule: &RuleMessage) -> Option<(Mark, u32)> {
    let protocol = RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL));
    let own = rule.attributes.contains(&protocol)
        && rule_preference(rule) == PREFERENCE
        && rule.header.action == RuleAction::ToTable;
    let table = rule
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::Table(table) => Some(*table),
            _ => None,
        });
    let table = table.unwrap_or(u32::from(rule.header.table));
    rule_mark(rule).filter(|_| own).map(|mark| (mark, table))
}

fn rule_mark(rule: &RuleMessage) -> Option<Mark> {
    let value = rule
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::FwMark(value) => Some(*value),
            _ => None,
        })?;
    let mask = rule
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::FwMask(mask) => Some(*mask),
            _ => None,
        });
    Some(Mark {
        value,
        mask: mask.unwrap_or(u32::MAX),
    })
}

fn rule_preference(rule: &RuleMessage) -> u32 {
    let preference = rule
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::Priority(preference) => Some(*preference),
            _ => None,
        });
    // The kernel leaves the attribute out for preference 0.
    preference.unwrap_or_default()
}

fn is_own_route(route: &RouteMessage) -> bool {
    route.header.protocol == RouteProtocol::Other(PROTOCOL)
        && route.header.kind == RouteType::Local
        && route.header.destination_prefix_length == 0
        && route.attributes.contains(&RouteAttribute::Oif(LOOPBACK))
}

fn route_table(route: &RouteMessage) -> u32 {
    let table = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Table(table) => Some(*table),
            _ => None,
        });
    table.unwrap_or(u32::from(route.header.table))
}

/// What the kernel says when there is nothing to list or to delete: no such table or rule,
/// no such route, or (for a family that is not there at all) no such operation.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ESRCH | libc::EAFNOSUPPORT | libc::EOPNOTSUPP)
    )
}

fn to_io(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        // No errno to keep: these come from the library.
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

fn address_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

fn flag(family: Family) -> &'static str {
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
