//! Initial congestion windows towards campuses that the host's own routes reach.
//!
//! An initial congestion window (`initcwnd`) is an attribute of a route, and pepd must not change
//! the operator's routes. So there is a table with copies of the host's routes to those campuses,
//! each with the initcwnd, and rules by which only the relay's own sockets (their marks) use it. It
//! follows the table `main` ([`super::follow`]). What is not copied is routed by the rules that
//! come after, without the initcwnd.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ipnet::IpNet;
use rtnetlink::packet_core::Nla as _;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteType};

use super::codec;
use super::ids::RouteTable;
use super::item::{Item, Route, Rule, Selector, Target};
use crate::prefix::Family;
use crate::request::{Campus, Mark, Request, RouteWindows};

/// Gives the rules that lead to the copies, of each family: one for client legs, one for upstream
/// legs, and one for those that have no client yet; none if no campus needs a copy.
pub(crate) fn rules(request: &Request, families: &[Family]) -> Vec<Item> {
    let table = request.route_tables().initcwnd();
    let (Some(table), Some(marks)) = (table, request.mark.sockets()) else {
        return Vec::new();
    };
    let mask = request.mark.mask;
    let rules = |&family: &Family| {
        let unclaimed = marks.unclaimed.filter(|_| request.queues.is_some());
        let values = [Some(marks.client), Some(marks.upstream), unclaimed];
        values.into_iter().flatten().map(move |value| {
            Item::Rule(Rule {
                family,
                selector: Selector::Relay(Mark { value, mask }),
                table,
            })
        })
    };
    families.iter().flat_map(rules).collect()
}

/// Copies the host's routes to campuses with an initcwnd, and adds `throw` for campuses within them
/// that have none.
pub(super) fn copies(
    request: &Request,
    family: Family,
    table: RouteTable,
    host: &[RouteMessage],
) -> Vec<Route> {
    let nets = |campus: &Campus| {
        let nets = campus.prefixes.iter().map(IpNet::trunc);
        nets.filter(|net| Family::of(net.addr()) == family)
            .collect::<Vec<_>>()
    };
    let mut copies = BTreeMap::new();
    // The wide prefixes come first: what a longer one says replaces theirs, and what was learned of a
    // network is said after what is said of the campus that is no wider.
    let mut all: Vec<(IpNet, Option<RouteWindows>)> = request
        .campuses
        .iter()
        .flat_map(|campus| {
            let windows = campus.windows().filter(|_| campus.has_copies());
            nets(campus).into_iter().map(move |net| (net, windows))
        })
        .collect();
    let learned = request.learned(family);
    all.extend(learned.filter_map(|(campus, net, windows)| {
        let campus = request.campuses.get(campus)?;
        campus.has_copies().then_some((net, Some(windows)))
    }));
    all.sort_by_key(|(net, _)| net.prefix_len());
    for (net, windows) in all {
        copies.retain(|to: &IpNet, _| !net.contains(to));
        let Some(windows) = windows else {
            copies.insert(
                net,
                Route {
                    table,
                    to: net,
                    target: Target::Throw,
                },
            );
            continue;
        };
        for (to, route) in routes_to(net, family, host) {
            copies.insert(to, copy(table, to, windows, route));
        }
    }
    // A campus without a window within none that has one needs no exception.
    let with_window: Vec<IpNet> = copies
        .iter()
        .filter(|(_, route)| is_copy(route))
        .map(|(net, _)| *net)
        .collect();
    copies.retain(|net, route| is_copy(route) || with_window.iter().any(|wide| wide.contains(net)));
    copies.into_values().collect()
}

/// Lists the host's routes to a campus: the one that leads to it as a whole, then those to parts of
/// it, the best of several to the same prefix last.
fn routes_to(
    net: IpNet,
    family: Family,
    host: &[RouteMessage],
) -> impl Iterator<Item = (IpNet, &RouteMessage)> {
    let routes = || {
        host.iter()
            .filter_map(move |route| Some((destination(family, route)?, route)))
    };
    let covering = routes()
        .filter(|(to, _)| to.contains(&net))
        .max_by_key(|(to, route)| (to.prefix_len(), Reverse(priority(route))));
    let mut within: Vec<_> = routes()
        .filter(|(to, _)| net.contains(to) && *to != net)
        .collect();
    within.sort_by_key(|(_, route)| Reverse(priority(route)));
    let covering = covering.map(|(_, route)| (net, route));
    covering.into_iter().chain(within)
}

fn is_copy(route: &Route) -> bool {
    matches!(route.target, Target::Copied(_))
}

fn copy(table: RouteTable, to: IpNet, windows: RouteWindows, route: &RouteMessage) -> Route {
    let mut route = codec::normal(route);
    if route.header.kind == RouteType::Unicast {
        let at = route
            .attributes
            .iter()
            .position(|it| matches!(it, RouteAttribute::Metrics(_)));
        let mut metrics = match at.map(|at| route.attributes.remove(at)) {
            Some(RouteAttribute::Metrics(metrics)) => metrics,
            _ => Vec::new(),
        };
        let own = codec::metrics(windows);
        metrics.retain(|it| own.iter().all(|own| own.kind() != it.kind()));
        metrics.extend(own);
        metrics.sort_by_key(|metric| metric.kind());
        route.attributes.push(RouteAttribute::Metrics(metrics));
        route.attributes.sort_by_key(|attribute| attribute.kind());
    }
    Route {
        table,
        to,
        target: Target::Copied(Box::new(route)),
    }
}

/// Reads where a route of the host's leads; none for one that is not for packets to a single host,
/// or depends on more than the destination.
fn destination(family: Family, route: &RouteMessage) -> Option<IpNet> {
    let usable = matches!(
        route.header.kind,
        RouteType::Unicast | RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit
    );
    if !usable || route.header.tos != 0 || route.header.source_prefix_length != 0 {
        return None;
    }
    codec::destination(family, route)
}

/// Reads the metric of a route: the lower the better.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use rtnetlink::packet_route::route::{RouteAddress, RouteMetric};

    use super::*;
    use crate::request::{InitialWindow, Via};
    use crate::route::next_hop::tests::request;

    /// A route of the host's, with such a window of its own.
    fn host_route(to: &str, window: u32) -> RouteMessage {
        let to: IpNet = to.parse().unwrap();
        let IpNet::V4(net) = to else { unreachable!() };
        let mut route = RouteMessage::default();
        route.header.kind = RouteType::Unicast;
        route.header.destination_prefix_length = net.prefix_len();
        route.attributes = vec![
            RouteAttribute::Destination(RouteAddress::Inet(net.addr())),
            RouteAttribute::Metrics(vec![
                RouteMetric::Mtu(1400),
                RouteMetric::InitCwnd(window),
                RouteMetric::InitRwnd(30),
            ]),
            RouteAttribute::Oif(2),
        ];
        route
    }

    /// What was learned of a network is said of all host routes within, and of the part of a wider one; not of
    /// a campus within that has a leg of its own. The host's other metrics stay.
    #[test]
    fn what_was_learned_is_on_copies_of_the_hosts_routes() {
        let campuses: [(&[&str], Via); 3] = [
            (&["10.1.0.0/16"], Via::Local),
            (&["10.2.0.0/16"], Via::Routing),
            (&["10.2.5.128/25"], Via::Routing),
        ];
        let mut request = request(&campuses, &[]);
        request.campuses[1].initial_window = Some(InitialWindow::Learned);
        let host = [
            host_route("10.2.0.0/16", 16),
            host_route("10.2.5.64/26", 16),
            host_route("10.2.5.192/26", 16),
            host_route("10.2.6.0/24", 16),
        ];
        let table = request.route_tables().initcwnd().unwrap();
        let copied = |request: &Request| -> Vec<(String, Option<Vec<RouteMetric>>)> {
            let copies = copies(request, Family::V4, table, &host);
            let metrics = |route: &RouteMessage| {
                let mut all = route.attributes.iter();
                all.find_map(|it| match it {
                    RouteAttribute::Metrics(metrics) => Some(metrics.clone()),
                    _ => None,
                })
            };
            let copies = copies.into_iter().map(|route| match route.target {
                Target::Copied(copied) => (route.to.to_string(), metrics(&copied)),
                _ => (route.to.to_string(), None),
            });
            copies.collect()
        };
        assert!(copied(&request).is_empty());
        request.windows = [("10.2.5.0/24".parse().unwrap(), 40)].into();
        let learned = Some(vec![
            RouteMetric::Mtu(1400),
            RouteMetric::InitCwnd(40),
            RouteMetric::InitRwnd(30),
        ]);
        assert_eq!(
            copied(&request),
            [
                ("10.2.5.0/24".to_owned(), learned.clone()),
                ("10.2.5.64/26".to_owned(), learned),
                ("10.2.5.128/25".to_owned(), None),
            ]
        );
    }
}
