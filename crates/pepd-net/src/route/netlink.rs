//! The kernel's rules and routes, over netlink.

use std::collections::BTreeMap;
use std::io;

use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol};
use rtnetlink::packet_route::rule::RuleMessage;
use rtnetlink::sys::AsyncSocket as _;
use rtnetlink::{Handle, IpVersion};

use super::codec::{
    Message, message, own_route, own_rule, route_table, rule_mark, rule_preference,
};
use super::error::RouteError;
use super::ids::{PROTOCOL, Preference, RouteTable, RouteTables};
use super::item::{Item, Route, Target};
use crate::netlink::socket::RouteSocket;
use crate::netlink::{NetlinkError, address_family, is_absent, to_io};
use crate::prefix::Family;
use crate::request::Mark;
use crate::tunnel::devices::Tunnels;

/// A connection to the kernel's routing tables.
pub(crate) struct Routing {
    handle: Handle,
}

impl Routing {
    /// Opens the connection; it is served by the current runtime until `Routing` is dropped.
    pub(crate) fn open() -> Result<Routing, NetlinkError> {
        // The strict check makes the kernel honour the table in a dump request: a router
        // may have a million routes elsewhere.
        let opened = rtnetlink::new_connection_with_socket::<RouteSocket>().and_then(
            |(mut connection, handle, _)| {
                let socket = connection.socket_mut().socket_mut();
                socket.set_netlink_get_strict_chk(true)?;
                Ok((connection, handle))
            },
        );
        let (connection, handle) =
            opened.map_err(|source| NetlinkError::new("cannot open a netlink socket", source))?;
        tokio::spawn(connection);
        Ok(Routing { handle })
    }

    /// Opens another connection, for the way back from an error: what could not be read ends a
    /// connection, and then nothing could be undone by it.
    pub(crate) fn reopen() -> Option<Routing> {
        Routing::open()
            .inspect_err(|error| tracing::warn!(%error, "undo"))
            .ok()
    }

    /// Gives the devices, over the same connection.
    pub(crate) fn tunnels(&self) -> Tunnels<'_> {
        Tunnels::new(&self.handle)
    }

    /// Makes `items` that are not there yet, in order, and gives those that it made. On
    /// failure they are undone in reverse.
    pub(crate) async fn make(&self, items: &[Item]) -> Result<Vec<Item>, RouteError> {
        // Looked up, because EEXIST says only that something similar is there: a route of another
        // protocol causes it too.
        let tables: Vec<RouteTable> = items.iter().map(Item::table).collect();
        let there = self.own(&tables).await?;
        let devices = self.tunnels().names().await?;
        let mut made = Vec::new();
        for item in items.iter().filter(|item| !there.contains(item)) {
            let result = match message(item, &devices) {
                Ok(message) => self.add(item, message).await.map_err(RouteError::from),
                Err(drift) => Err(drift.into()),
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
        let fresh = Self::reopen();
        let routing = fresh.as_ref().unwrap_or(self);
        for item in items.iter().rev() {
            if let Err(error) = routing.delete(item).await {
                tracing::warn!(%error, "cannot undo");
            }
        }
    }

    /// Removes one item. False if it was not there.
    pub(crate) async fn delete(&self, item: &Item) -> Result<bool, NetlinkError> {
        let devices = match item {
            Item::Route(Route {
                target: Target::Tunnel(_),
                ..
            }) => self.tunnels().names().await?,
            Item::Route(_) | Item::Rule(_) => BTreeMap::new(),
        };
        // Otherwise the device is gone, and the route with it.
        let Ok(message) = message(item, &devices) else {
            return Ok(false);
        };
        let result = match message {
            Message::Route(message) => self.handle.route().del(message).execute().await,
            Message::Rule(message) => self.handle.rule().del(message).execute().await,
        };
        match result.map_err(to_io) {
            Ok(()) => Ok(true),
            Err(source) if is_absent(&source) => Ok(false),
            Err(source) => Err(NetlinkError::new(item.command("del"), source)),
        }
    }

    /// Lists the rules of pepd's that are there, and the routes in `tables` and in the tables
    /// that these rules look into. Rules come first: the order of removal.
    pub(crate) async fn own(&self, tables: &[RouteTable]) -> Result<Vec<Item>, NetlinkError> {
        let devices = self.tunnels().names().await?;
        let mut found = Vec::new();
        for family in Family::ALL {
            let mut tables = tables.to_vec();
            for rule in self.rules(family).await? {
                if let Some(rule) = own_rule(family, &rule) {
                    tables.push(rule.table);
                    found.push(Item::Rule(rule));
                }
            }
            tables.sort_unstable();
            tables.dedup();
            for table in tables {
                let routes = self.routes(family, table).await?;
                let items = routes
                    .iter()
                    .filter_map(|route| own_route(family, table, route, &devices));
                found.extend(items.map(Item::Route));
            }
        }
        Ok(found)
    }

    /// Lists the tables from `first` on, for as many as there can be peers, that have routes of
    /// pepd's. A crash may have left routes before the rules that lead to them.
    pub(crate) async fn own_tables(
        &self,
        first: RouteTable,
    ) -> Result<Vec<RouteTable>, NetlinkError> {
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
                    .filter(|table| RouteTables::may_include(first, *table)),
            );
        }
        tables.sort_unstable();
        tables.dedup();
        Ok(tables)
    }

    /// Fails if somebody else's routes are in `tables` or somebody else's rule has `mark`.
    pub(crate) async fn refuse_foreign(
        &self,
        mark: Mark,
        tables: &[RouteTable],
    ) -> Result<(), RouteError> {
        let devices = self.tunnels().names().await?;
        for family in Family::ALL {
            for &table in tables {
                let routes = self.routes(family, table).await?;
                let count = routes
                    .iter()
                    .filter(|route| own_route(family, table, route, &devices).is_none())
                    .count();
                if count > 0 {
                    return Err(RouteError::ForeignRoutes {
                        table,
                        family,
                        count,
                    });
                }
            }
            for rule in self.rules(family).await? {
                if own_rule(family, &rule).is_none() && rule_mark(&rule) == Some(mark) {
                    return Err(RouteError::ForeignRule {
                        mark,
                        preference: rule_preference(&rule),
                        family,
                    });
                }
            }
        }
        Ok(())
    }

    async fn add(&self, item: &Item, message: Message) -> Result<(), NetlinkError> {
        let is_local = matches!(item, Item::Route(route) if route.target == Target::Local);
        let result = match message {
            // It may be there with another tunnel or other windows.
            Message::Route(message) if !is_local => {
                self.handle.route().add(message).replace().execute().await
            }
            Message::Route(message) => self.handle.route().add(message).execute().await,
            Message::Rule(message) => {
                let mut request = self.handle.rule().add();
                *request.message_mut() = message;
                request.execute().await
            }
        };
        result.map_err(|error| NetlinkError::new(item.command("add"), to_io(error)))
    }

    async fn rules(&self, family: Family) -> Result<Vec<RuleMessage>, NetlinkError> {
        let request = self.handle.rule().get(match family {
            Family::V4 => IpVersion::V4,
            Family::V6 => IpVersion::V6,
        });
        match request.execute().try_collect().await.map_err(to_io) {
            Ok(rules) => Ok(rules),
            Err(source) if is_absent(&source) => Ok(Vec::new()),
            Err(source) => {
                let what = format!("ip {} rule show", family.flag());
                Err(NetlinkError::new(what, source))
            }
        }
    }

    /// Asks the kernel which way it would send a packet.
    pub(crate) async fn way(&self, message: RouteMessage) -> io::Result<RouteMessage> {
        let request = self.handle.route().get(message).execute();
        let mut request = std::pin::pin!(request);
        match request.try_next().await.map_err(to_io)? {
            Some(route) => Ok(route),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Finds a rule of the operator's that comes before the capture's, for which the kernel's own
    /// first one does not count.
    pub(crate) async fn overtaking_rule(
        &self,
        family: Family,
    ) -> Result<Option<Preference>, NetlinkError> {
        let rules = self.rules(family).await?;
        let own = |rule: &&RuleMessage| own_rule(family, rule).is_none();
        let before = rules
            .iter()
            .filter(own)
            .map(rule_preference)
            .filter(|preference| !preference.is_kernels() && *preference <= Preference::CAPTURE);
        Ok(before.min())
    }

    /// Returns whether there is policy routing that is neither pepd's nor the kernel's own.
    pub(crate) async fn has_foreign_rules(&self) -> Result<bool, NetlinkError> {
        for family in Family::ALL {
            let foreign = |rule: &RuleMessage| {
                !rule_preference(rule).is_kernels() && own_rule(family, rule).is_none()
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
        table: RouteTable,
    ) -> Result<Vec<RouteMessage>, NetlinkError> {
        let mut filter = RouteMessage::default();
        filter.header.address_family = address_family(family);
        filter.attributes.push(RouteAttribute::Table(table.0));
        let what = format!("ip {} route show table {table}", family.flag());
        let mut routes = self.dump(filter, family, &what).await?;
        routes.retain(|route| route_table(route) == table);
        Ok(routes)
    }

    async fn dump(
        &self,
        filter: RouteMessage,
        family: Family,
        what: &str,
    ) -> Result<Vec<RouteMessage>, NetlinkError> {
        let request = self.handle.route().get(filter);
        let routes: Result<Vec<RouteMessage>, _> = request.execute().try_collect().await;
        match routes.map_err(to_io) {
            Ok(mut routes) => {
                // Without IPv6 the kernel answers with every family it has.
                routes.retain(|route| route.header.address_family == address_family(family));
                Ok(routes)
            }
            Err(source) if is_absent(&source) => Ok(Vec::new()),
            Err(source) => Err(NetlinkError::new(what, source)),
        }
    }
}
