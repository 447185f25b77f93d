//! The next-box table: which campus is reached through which tunnel (Jain & Ott, section II).
//!
//! It is policy routing by source *and* destination, so that only traffic between campuses
//! uses it, and everything else is routed as if pepd were not there. There is one table for
//! what comes from campuses behind this box, and one for each peer: what came through a tunnel
//! never goes back into it. The rules choose the table by the source (and by the tunnel, for the
//! ICMP errors of boxes further away), the routes in it the tunnel by the destination. A reverse-path check (rp_filter) looks the same way backwards and
//! agrees.
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
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage};

use super::item::{Hop, Item, Source};
use crate::prefix::Family;
use crate::request::{Campus, Request, Via};
use crate::tunnel;

/// The items, routes before the rules that lead to them.
pub(crate) fn items(request: &Request) -> Vec<Item> {
    let mut routes = Vec::new();
    let mut rules = Vec::new();
    for family in Family::ALL {
        let mut sides = vec![Side::here(request)];
        sides.extend((0..request.peers.len()).map(|peer| Side::behind(request, peer)));
        for side in sides {
            let ways = side.routes(family);
            if !ways.iter().any(is_way) {
                continue;
            }
            routes.extend(ways);
            let prefixes = side.sources(family).map(Source::Prefix);
            let sources = std::iter::once(side.source()).chain(prefixes);
            rules.extend(sources.map(|from| Item::Select {
                family,
                from,
                table: side.table(),
            }));
        }
    }
    let (ways, selections) = probes(request);
    let routes = routes.into_iter().chain(ways);
    let rules = rules.into_iter().chain(selections);
    routes.chain(rules).collect()
}

/// Routes and rules for the echo requests between the ends of each tunnel over IPv4, and for
/// their answers: both go through the tunnel, which without them neither would. (Over IPv6 a
/// rule cannot tell them from other ICMP: there the answers take the path of the outer packets.)
fn probes(request: &Request) -> (Vec<Item>, Vec<Item>) {
    let table = probe_table(request);
    let mut ways = Vec::new();
    let mut rules = Vec::new();
    for peer in &request.peers {
        let (IpAddr::V4(local), IpAddr::V4(remote)) = (peer.local, peer.remote) else {
            continue;
        };
        ways.push(Item::Way {
            table,
            to: peer.remote.into(),
            hop: Some(Hop {
                device: tunnel::device(&peer.name),
                source: None,
                window: None,
            }),
        });
        rules.push(Item::Probe {
            local,
            remote,
            table,
        });
    }
    (ways, rules)
}

/// The tables of the next-box table, of which there are two more than peers.
pub(crate) fn tables(request: &Request) -> Vec<u32> {
    if request.peers.is_empty() {
        return Vec::new();
    }
    let first = request.table.saturating_add(1);
    (first..=probe_table(request)).collect()
}

/// The last of them: each tunnel's other end, for the probes.
fn probe_table(request: &Request) -> u32 {
    let peers = u32::try_from(request.peers.len()).unwrap_or(u32::MAX / 2);
    request.table.saturating_add(2).saturating_add(peers)
}

/// Where packets come from: behind this box, or through the tunnel to a peer.
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

    fn table(&self) -> u32 {
        let offset = self
            .peer
            .map_or(1, |peer| 2 + u32::try_from(peer).unwrap_or(u32::MAX / 2));
        self.request.table.saturating_add(offset)
    }

    /// Whether the campus is on this side.
    fn has(&self, campus: &Campus) -> bool {
        match (self.peer, campus.via) {
            (None, Via::Local | Via::Routing) => true,
            (Some(peer), Via::Peer(via)) => peer == via,
            (None, Via::Peer(_)) | (Some(_), _) => false,
        }
    }

    /// What comes from this side whatever its address: of boxes that are no neighbours the ICMP
    /// errors, which the guard lets through.
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

    /// The ways to the campuses on other sides, and the exceptions that lie within.
    fn routes(&self, family: Family) -> Vec<Item> {
        let mut ways = Vec::new();
        let mut reached = Vec::new();
        let mut others = BTreeSet::new();
        for campus in &self.request.campuses {
            let nets = prefixes([campus], family);
            match campus.via {
                Via::Peer(peer) if !self.has(campus) => {
                    for net in nets {
                        reached.push(net);
                        ways.extend(self.way(net, peer, campus.initial_window));
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
            .map(|to| Item::Way {
                table,
                to,
                hop: None,
            });
        ways.into_iter().chain(throws).collect()
    }

    fn way(&self, to: IpNet, peer: usize, window: Option<u32>) -> Option<Item> {
        let peer = self.request.peers.get(peer)?;
        let same_family = Family::of(peer.local) == Family::of(to.addr());
        Some(Item::Way {
            table: self.table(),
            to,
            hop: Some(Hop {
                device: tunnel::device(&peer.name),
                // Otherwise the kernel gives this box's own packets any address it has.
                source: same_family.then_some(peer.local),
                window,
            }),
        })
    }
}

fn is_way(item: &Item) -> bool {
    matches!(item, Item::Way { hop: Some(_), .. })
}

fn prefixes<'c>(campuses: impl IntoIterator<Item = &'c Campus>, family: Family) -> BTreeSet<IpNet> {
    campuses
        .into_iter()
        .flat_map(|campus| &campus.prefixes)
        .map(IpNet::trunc)
        .filter(|net| Family::of(net.addr()) == family)
        .collect()
}

/// Where a route leads; none if the kernel's answer makes no sense.
pub(crate) fn destination(family: Family, route: &RouteMessage) -> Option<IpNet> {
    let length = route.header.destination_prefix_length;
    for attribute in &route.attributes {
        if let RouteAttribute::Destination(to) = attribute {
            return match to {
                RouteAddress::Inet(v4) => IpNet::new((*v4).into(), length).ok(),
                RouteAddress::Inet6(v6) => IpNet::new((*v6).into(), length).ok(),
                _ => None,
            };
        }
    }
    (length == 0).then(|| everything(family))
}

/// The default route's prefix of a family.
pub(crate) fn everything(family: Family) -> IpNet {
    let any: IpAddr = match family {
        Family::V4 => std::net::Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    // Zero is a length that every family has.
    IpNet::new(any, 0).unwrap_or_else(|_| IpNet::from(any))
}

#[cfg(test)]
mod tests;
