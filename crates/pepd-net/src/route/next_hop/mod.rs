//! The next-hop tables: which campus is reached through which tunnel (Jain & Ott, section II).
//!
//! It is policy routing by source *and* destination, so that only traffic between campuses
//! uses it, and everything else is routed as if pepd were not there. There is one table for
//! what comes from campuses behind this box, and one for each peer: what came through a tunnel
//! never goes back into it. The rules choose the table by the source (and by the tunnel, for the
//! ICMP errors of boxes further away), the routes in it the tunnel by the destination. A
//! reverse-path check (rp_filter) looks the same way backwards and agrees.
//!
//! - What a table has no route for goes on to the next rule, and so to the host's own routes.
//! - Where a campus that is behind this box, or a tunnel's own end, lies within the prefix of
//!   a campus that is behind another, a `throw` route says so.
//! - Packets of this box itself (`iif lo`: the ICMP errors of a box in the middle) find the
//!   campuses by the first table, but for a campus that is all the world: this box's own way
//!   to there is the host's.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::ids::RouteTable;
use super::item::{Item, NextHop, Route, Rule, Selector, Source, Target};
use crate::prefix::Family;
use crate::request::{Campus, Request, RouteWindows, Via};
use crate::tunnel::spec as tunnel;

/// Gives the items, routes before the rules that lead to them.
pub(crate) fn items(request: &Request) -> Vec<Item> {
    let mut routes = Vec::new();
    let mut rules = Vec::new();
    for family in Family::ALL {
        let mut sides = vec![Side::here(request)];
        sides.extend((0..request.peers.len()).map(|peer| Side::behind(request, peer)));
        for side in sides {
            let from_side = side.routes(family);
            if !from_side.iter().any(leads_into_tunnel) {
                continue;
            }
            routes.extend(from_side);
            let prefixes = side.sources(family).map(Source::Prefix);
            let sources = std::iter::once(side.source()).chain(prefixes);
            rules.extend(sources.map(|from| Rule {
                family,
                selector: Selector::From(from),
                table: side.table(),
            }));
        }
    }
    let (probe_routes, probe_rules) = probes(request);
    let routes = routes.into_iter().chain(probe_routes).map(Item::Route);
    let rules = rules.into_iter().chain(probe_rules).map(Item::Rule);
    routes.chain(rules).collect()
}

/// Gives routes and rules for the echo requests between the ends of each tunnel over IPv4, and for
/// their answers: both go through the tunnel, as neither would without them. (Over IPv6 a rule
/// cannot tell them from other ICMP: there the answers take the path of the outer packets.)
fn probes(request: &Request) -> (Vec<Route>, Vec<Rule>) {
    let table = request.route_tables().probes();
    let mut routes = Vec::new();
    let mut rules = Vec::new();
    for peer in &request.peers {
        let (IpAddr::V4(local), IpAddr::V4(remote)) = (peer.local, peer.remote) else {
            continue;
        };
        routes.push(Route {
            table,
            to: peer.remote.into(),
            target: Target::Tunnel(NextHop {
                device: tunnel::device(&peer.name),
                source: None,
                windows: None,
            }),
        });
        rules.push(Rule {
            family: Family::V4,
            selector: Selector::Probe { local, remote },
            table,
        });
    }
    (routes, rules)
}

/// The side that packets come from: behind this box, or through the tunnel to a peer.
struct Side<'r> {
    request: &'r Request,
    peer: Option<usize>,
}

impl<'r> Side<'r> {
    fn here(request: &'r Request) -> Self {
        Side {
            request,
            peer: None,
        }
    }

    fn behind(request: &'r Request, peer: usize) -> Self {
        Side {
            request,
            peer: Some(peer),
        }
    }

    fn table(&self) -> RouteTable {
        let tables = self.request.route_tables();
        self.peer
            .map_or_else(|| tables.here(), |peer| tables.behind(peer))
    }

    /// Returns whether the campus is on this side.
    fn has(&self, campus: &Campus) -> bool {
        match (self.peer, campus.via) {
            (None, Via::Local | Via::Routing) => true,
            (Some(peer), Via::Peer(via)) => peer == via,
            (None, Via::Peer(_)) | (Some(_), _) => false,
        }
    }

    /// Gives the source of what comes from this side whatever its address: of boxes that are no
    /// neighbours the ICMP errors, which the guard lets through.
    fn source(&self) -> Source {
        match self.peer.and_then(|peer| self.request.peers.get(peer)) {
            Some(peer) => Source::Device(tunnel::device(&peer.name)),
            None => Source::Own,
        }
    }

    fn sources(&self, family: Family) -> impl Iterator<Item = IpNet> {
        let ours = self.request.campuses.iter().filter(|it| self.has(it));
        prefixes(ours, family).into_iter()
    }

    /// Gives the routes to the campuses on other sides, and the exceptions that lie within.
    fn routes(&self, family: Family) -> Vec<Route> {
        let mut routes = Vec::new();
        let mut reached = Vec::new();
        let mut others = BTreeSet::new();
        for (index, campus) in self.request.campuses.iter().enumerate() {
            let nets = prefixes([campus], family);
            match campus.via {
                Via::Peer(peer) if !self.has(campus) => {
                    let learned = self.request.learned(family);
                    let learned =
                        learned.filter(|(of, net, _)| *of == index && !nets.contains(net));
                    for (_, net, windows) in learned {
                        routes.extend(self.route(net, peer, Some(windows)));
                    }
                    for net in nets {
                        reached.push(net);
                        routes.extend(self.route(net, peer, self.windows_of(index, net)));
                    }
                }
                _ => others.extend(nets),
            }
        }
        let ends = self.request.peers.iter().map(|peer| peer.remote);
        others.extend(
            ends.filter(|end| Family::of(*end) == family)
                .map(IpNet::from),
        );
        let table = self.table();
        let throws = others
            .into_iter()
            .filter(|net| reached.iter().any(|wide| wide.contains(net) && wide != net))
            .map(|to| Route {
                table,
                to,
                target: Target::Throw,
            });
        routes.into_iter().chain(throws).collect()
    }

    /// Gives the windows of the route to a whole prefix of a campus.
    fn windows_of(&self, campus: usize, net: IpNet) -> Option<RouteWindows> {
        let given = self.request.campuses.get(campus)?.windows();
        let mut learned = self.request.learned(Family::of(net.addr()));
        given.or_else(|| learned.find_map(|(_, of, windows)| (of == net).then_some(windows)))
    }

    fn route(&self, to: IpNet, peer: usize, windows: Option<RouteWindows>) -> Option<Route> {
        let peer = self.request.peers.get(peer)?;
        let same_family = Family::of(peer.local) == Family::of(to.addr());
        Some(Route {
            table: self.table(),
            to,
            target: Target::Tunnel(NextHop {
                device: tunnel::device(&peer.name),
                // Otherwise the kernel gives this box's own packets any address it has.
                source: same_family.then_some(peer.local),
                windows,
            }),
        })
    }
}

fn leads_into_tunnel(route: &Route) -> bool {
    matches!(route.target, Target::Tunnel(_))
}

fn prefixes<'c>(campuses: impl IntoIterator<Item = &'c Campus>, family: Family) -> BTreeSet<IpNet> {
    campuses
        .into_iter()
        .flat_map(|campus| &campus.prefixes)
        .map(IpNet::trunc)
        .filter(|net| Family::of(net.addr()) == family)
        .collect()
}

#[cfg(test)]
pub(in crate::route) mod tests;
