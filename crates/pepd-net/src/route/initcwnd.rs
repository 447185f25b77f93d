//! Initial windows towards campuses that the host's own routes reach.
//!
//! An initial congestion window is an attribute of a route, and the operator's routes are not
//! pepd's to change. So there is a table with copies of the host's routes to those campuses,
//! each with the windows, and rules by which only the relay's own sockets (their marks) use it.
//! It follows the table `main`. What is not copied is routed by the rules that follow, without
//! the windows: pepd copies no more than [`MOST`] routes, and none where the operator has
//! policy routing of their own, which might want something else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use ipnet::IpNet;
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::{NetlinkPayload, Nla as _};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteType,
};
use tokio::sync::Notify;

use super::item::Item;
use super::netlink::{PROTOCOL, Routing, route_table};
use super::next_hop as next;
use crate::error::Error;
use crate::plan::Plan;
use crate::prefix::Family;
use crate::request::{Campus, Request, Via};

/// The most routes of a family that are copied. A router with more of them to a campus has
/// campuses that are all the world.
const MOST: usize = 1024;

/// How soon after one change of the host's routes the next is looked at.
const PAUSE: Duration = Duration::from_secs(1);

/// A campus that is reached by the host's routes, with its window.
fn windowed(campus: &Campus) -> Option<u32> {
    match campus.via {
        Via::Local | Via::Routing => campus.initial_window,
        // Its routes are pepd's own.
        Via::Peer(_) => None,
    }
}

/// The table of the copies; none if no campus needs one.
pub(crate) fn table(request: &Request) -> Option<u32> {
    let after = u32::try_from(next::tables(request).len()).unwrap_or(u32::MAX);
    let wanted = request.campuses.iter().any(|it| windowed(it).is_some());
    (wanted && request.mark.sockets().is_some())
        .then(|| request.table.saturating_add(1).saturating_add(after))
}

/// The rules that lead to the copies, of each family: one for client legs and one for upstream
/// legs.
pub(crate) fn rules(request: &Request, families: &[Family]) -> Vec<Item> {
    let (Some(table), Some(marks)) = (table(request), request.mark.sockets()) else {
        return Vec::new();
    };
    let mask = request.mark.mask;
    let rules = |&family: &Family| {
        [marks.client, marks.upstream].map(|value| Item::Windows {
            family,
            mark: crate::Mark { value, mask },
            table,
        })
    };
    families.iter().flat_map(rules).collect()
}

/// Makes the copies what they should be now. Tells whether there is a reason not to copy.
pub(crate) async fn sync(routing: &Routing, plan: &Plan) -> Result<Option<String>, Error> {
    let Some(table) = table(&plan.request) else {
        return Ok(None);
    };
    let mut wanted = Vec::new();
    let mut reason = None;
    if routing.has_foreign_rules().await? {
        reason = Some(
            "this host has policy routing of its own, which pepd does not copy: `initial_window` \
             has no effect towards campuses that are not behind a peer"
                .to_owned(),
        );
    } else {
        for &family in &plan.families {
            let main = u32::from(RouteHeader::RT_TABLE_MAIN);
            let host = routing.routes(family, main).await?;
            let copies = copies(&plan.request, family, table, &host);
            if copies.len() > MOST {
                reason = Some(format!(
                    "this host has {} routes to campuses with an `initial_window`, and pepd copies \
                     {MOST} at most: it has no effect towards campuses that are not behind a peer",
                    copies.len()
                ));
            } else {
                wanted.extend(copies);
            }
        }
    }
    let mut there = routing.own(&[table]).await?;
    there.retain(|item| item.is_route_in(table));
    for item in there.iter().filter(|item| !wanted.contains(item)) {
        routing.delete(item).await?;
    }
    routing.make(&wanted).await?;
    Ok(reason)
}

/// The host's routes to campuses with a window, and `throw` for campuses within them that have
/// none.
fn copies(request: &Request, family: Family, table: u32, host: &[RouteMessage]) -> Vec<Item> {
    let nets = |campus: &Campus| {
        let nets = campus.prefixes.iter().map(IpNet::trunc);
        nets.filter(|net| Family::of(net.addr()) == family)
            .collect::<Vec<_>>()
    };
    let mut copies = BTreeMap::new();
    // The wide prefixes first: what a longer one says takes its place.
    let mut all: Vec<(IpNet, Option<u32>)> = request
        .campuses
        .iter()
        .flat_map(|campus| nets(campus).into_iter().map(|net| (net, windowed(campus))))
        .collect();
    all.sort_by_key(|(net, _)| net.prefix_len());
    for (net, window) in all {
        copies.retain(|to: &IpNet, _| !net.contains(to));
        let Some(window) = window else {
            copies.insert(
                net,
                Item::Way {
                    table,
                    to: net,
                    hop: None,
                },
            );
            continue;
        };
        let covering = host
            .iter()
            .filter_map(|route| Some((destination(family, route)?, route)))
            .filter(|(to, _)| to.contains(&net))
            .max_by_key(|(to, route)| (to.prefix_len(), std::cmp::Reverse(priority(route))));
        let mut within: Vec<_> = host
            .iter()
            .filter_map(|route| Some((destination(family, route)?, route)))
            .filter(|(to, _)| net.contains(to) && *to != net)
            .collect();
        within.sort_by_key(|(_, route)| std::cmp::Reverse(priority(route)));
        let routes = covering.map(|(_, route)| (net, route)).into_iter();
        for (to, route) in routes.chain(within) {
            copies.insert(to, copy(family, table, to, window, route));
        }
    }
    // A campus without a window within none that has one needs no exception.
    let with_window: Vec<IpNet> = copies
        .iter()
        .filter(|(_, item)| matches!(item, Item::Copy { .. }))
        .map(|(net, _)| *net)
        .collect();
    copies.retain(|net, item| {
        matches!(item, Item::Copy { .. }) || with_window.iter().any(|wide| wide.contains(net))
    });
    copies.into_values().collect()
}

fn copy(family: Family, table: u32, to: IpNet, window: u32, route: &RouteMessage) -> Item {
    let mut route = normal(route);
    if route.header.kind == RouteType::Unicast {
        let at = route
            .attributes
            .iter()
            .position(|it| matches!(it, RouteAttribute::Metrics(_)));
        let mut metrics = match at.map(|at| route.attributes.remove(at)) {
            Some(RouteAttribute::Metrics(metrics)) => metrics,
            _ => Vec::new(),
        };
        metrics.retain(|it| !matches!(it, RouteMetric::InitCwnd(_) | RouteMetric::InitRwnd(_)));
        metrics.extend([RouteMetric::InitCwnd(window), RouteMetric::InitRwnd(window)]);
        metrics.sort_by_key(|metric| metric.kind());
        route.attributes.push(RouteAttribute::Metrics(metrics));
        route.attributes.sort_by_key(|attribute| attribute.kind());
    }
    Item::Copy {
        family,
        table,
        to,
        route: Box::new(route),
    }
}

/// A route without its destination and what the kernel adds, the attributes in the order of
/// their numbers: what a copy is compared by.
pub(crate) fn normal(route: &RouteMessage) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.kind = route.header.kind;
    message.header.scope = route.header.scope;
    message.header.flags = route.header.flags & RouteFlags::Onlink;
    message.attributes = route
        .attributes
        .iter()
        .filter(|attribute| {
            matches!(
                attribute,
                RouteAttribute::Gateway(_)
                    | RouteAttribute::Via(_)
                    | RouteAttribute::Oif(_)
                    | RouteAttribute::PrefSource(_)
                    | RouteAttribute::Metrics(_)
                    | RouteAttribute::MultiPath(_)
                    | RouteAttribute::EncapType(_)
                    | RouteAttribute::Encap(_)
            )
        })
        .cloned()
        .collect();
    for attribute in &mut message.attributes {
        if let RouteAttribute::Metrics(metrics) = attribute {
            metrics.sort_by_key(|metric| metric.kind());
        }
    }
    message.attributes.sort_by_key(|attribute| attribute.kind());
    message
}

/// Where a route of the host's leads; none for one that is not for packets to a single host, or
/// depends on more than the destination.
fn destination(family: Family, route: &RouteMessage) -> Option<IpNet> {
    let usable = matches!(
        route.header.kind,
        RouteType::Unicast | RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit
    );
    if !usable || route.header.tos != 0 || route.header.source_prefix_length != 0 {
        return None;
    }
    next::destination(family, route)
}

/// The lower the better.
fn priority(route: &RouteMessage) -> u32 {
    let priority = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Priority(priority) => Some(*priority),
            _ => None,
        });
    priority.unwrap_or_default()
}

/// Tells of changes to the host's routes. It listens as long as it lives.
#[derive(Debug)]
pub(crate) struct Changes {
    notify: Arc<Notify>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Changes {
    pub(crate) fn listen() -> Result<Changes, Error> {
        let groups = [MulticastGroup::Ipv4Route, MulticastGroup::Ipv6Route];
        let (connection, _, mut messages) = rtnetlink::new_multicast_connection(&groups)
            .map_err(|source| Error::netlink("cannot listen to changes of routes", source))?;
        let notify = Arc::new(Notify::new());
        let told = Arc::clone(&notify);
        let follow = async move {
            while let Some((message, _)) = messages.next().await {
                if !is_host_route(&message.payload) {
                    continue;
                }
                told.notify_one();
                tokio::time::sleep(PAUSE).await;
                let mut more = false;
                while let Some(Some((message, _))) = messages.next().now_or_never() {
                    more |= is_host_route(&message.payload);
                }
                if more {
                    told.notify_one();
                }
            }
        };
        Ok(Changes {
            notify,
            tasks: [tokio::spawn(connection), tokio::spawn(follow)],
        })
    }

    pub(crate) async fn next(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// Also when messages were lost: then anything may have changed.
fn is_host_route(payload: &NetlinkPayload<RouteNetlinkMessage>) -> bool {
    match payload {
        NetlinkPayload::InnerMessage(
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route),
        ) => {
            route_table(route) == u32::from(RouteHeader::RT_TABLE_MAIN)
                && route.header.protocol != RouteProtocol::Other(PROTOCOL)
        }
        NetlinkPayload::Overrun(_) => true,
        _ => false,
    }
}
