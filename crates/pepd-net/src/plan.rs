//! The plan: everything that will be in the kernel, computed without looking at it.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use pepd_packet::MarkValue;

use crate::prefix::{self, Family, Range};
use crate::request::{
    Action, Campus, Handshake, HoldQueue, Listener, Mark, Measure, Neighbor, QueueBackend, Queues,
    Request, Rule, SourcePrefix, VerdictMarks, Via,
};
use crate::route::ids::RouteTable;
use crate::route::item::{self, Item, Selector, Target};
use crate::route::{initcwnd, next_hop};
use crate::tunnel::spec::Tunnel;

/// All that [`install`](crate::install()) will put into the kernel.
///
/// Its `Display` is what `pepd show` prints: the nft ruleset exactly as it is sent, the iptables
/// rules where they hold the SYNs, then the rules, tunnels and routes as `ip` commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub(crate) node: String,
    pub(crate) mark: Mark,
    pub(crate) table: RouteTable,
    pub(crate) port: u16,
    pub(crate) source_prefix: SourcePrefix,
    pub(crate) campuses: Vec<PlannedCampus>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) handshake: Handshake,
    /// The queues in which SYNs are held; none where none are.
    pub(crate) queues: Option<Queues>,
    /// The queue in which ACKs are held while a link is away; none where none are.
    pub(crate) hold_acks: Option<HoldQueue>,
    /// The connections that are watched to see what splitting is worth; none where none are.
    pub(crate) measure: Option<Measure>,
    /// The boxes to which connections move.
    pub(crate) neighbors: Vec<Neighbor>,
    /// The queue of what belongs to connections that come from them; none where it is dropped.
    pub(crate) hold_coming: Option<HoldQueue>,
    /// The families that have a campus prefix, or connections that had one; nothing is installed for the others.
    pub(crate) families: Vec<Family>,
    /// The tunnels, in the order of [`Request::peers`].
    pub(crate) tunnels: Vec<Tunnel>,
    /// The next-hop tables, and the rules that lead to routes with an initcwnd.
    pub(crate) next_hop: Vec<Item>,
    /// The request that it is made of.
    pub(crate) request: Request,
    /// Whether connections are captured; not when only the tunnels stay.
    pub(crate) captures: bool,
    /// Whether the host translates addresses, so that a SYN has to be asked for its first destination.
    pub(crate) translates: bool,
}

/// A campus with the ranges that are its own, longer prefixes of other campuses cut out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedCampus {
    pub(crate) name: String,
    pub(crate) listener: Listener,
    pub(crate) via: Via,
    pub(crate) ranges: Vec<Range>,
}

impl Plan {
    /// Returns how many of the two families have a campus.
    pub fn families_used(&self) -> usize {
        self.families.len()
    }

    /// Computes the plan. Reads nothing and cannot fail: what is wrong with a request shows
    /// when it meets the kernel.
    pub fn new(request: &Request) -> Plan {
        let mut campuses: Vec<PlannedCampus> =
            request.campuses.iter().map(PlannedCampus::empty).collect();
        let mut families = Vec::new();
        for family in Family::ALL {
            let prefixes = request
                .campuses
                .iter()
                .enumerate()
                .flat_map(|(index, campus)| campus.prefixes.iter().map(move |net| (*net, index)));
            let ranges = prefix::longest_prefix(family, prefixes);
            if !ranges.is_empty() {
                families.push(family);
            }
            for (range, index) in ranges {
                if let Some(campus) = campuses.get_mut(index) {
                    campus.ranges.push(range);
                }
            }
        }
        Plan {
            node: request.node.clone(),
            mark: request.mark,
            table: request.table,
            port: request.port,
            source_prefix: request.source_prefix,
            campuses,
            rules: request.rules.clone(),
            handshake: request.handshake,
            queues: request.queues,
            hold_acks: request.hold_acks,
            measure: request.measure,
            neighbors: request.neighbors.clone(),
            hold_coming: request
                .hold_coming
                .filter(|_| !request.neighbors.is_empty()),
            tunnels: request
                .peers
                .iter()
                .map(|peer| Tunnel::new(&request.node, peer, &families))
                .collect(),
            next_hop: next_hop(request, &families),
            request: request.clone(),
            captures: true,
            translates: false,
            families,
        }
    }

    /// Makes the same plan for a host that has connections of these families as well, which have no campus
    /// prefix any more: what comes for them still goes to their sockets.
    #[must_use]
    pub fn keeping(self, families: &BTreeSet<Family>) -> Plan {
        let mut all = families.clone();
        all.extend(&self.families);
        let families: Vec<_> = all.into_iter().collect();
        let peers = self.request.peers.iter();
        Plan {
            tunnels: peers
                .map(|peer| Tunnel::new(&self.node, peer, &families))
                .collect(),
            next_hop: next_hop(&self.request, &families),
            families,
            ..self
        }
    }

    /// Makes the same plan with other windows of what was learned.
    pub(crate) fn with_windows(&self, windows: BTreeMap<IpNet, u32>) -> Plan {
        let mut plan = self.clone();
        plan.request.windows = windows;
        plan.next_hop = next_hop(&plan.request, &plan.families);
        plan
    }

    /// Plans what stays when the daemon ends: the tunnels that are to be kept, their routes and
    /// their guards. None if there is no such tunnel.
    pub(crate) fn kept(&self) -> Option<Plan> {
        let mut request = self.request.clone();
        // Nobody follows what was learned any more.
        request.windows.clear();
        let peers = std::mem::take(&mut request.peers);
        let place: Vec<Option<usize>> = peers
            .into_iter()
            .map(|peer| {
                peer.keep.then(|| {
                    request.peers.push(peer);
                    request.peers.len() - 1
                })
            })
            .collect();
        for campus in &mut request.campuses {
            if !matches!(campus.via, Via::Peer(_)) {
                // Nobody opens a connection.
                campus.initial_window = None;
            }
            if let Via::Peer(peer) = campus.via {
                let kept = place.get(peer).copied().flatten();
                campus.via = kept.map_or(Via::Local, Via::Peer);
                campus.initial_window = campus.initial_window.filter(|_| kept.is_some());
            }
        }
        (!request.peers.is_empty()).then(|| Plan {
            captures: false,
            ..Plan::new(&request)
        })
    }

    /// Lists the tables that must hold nothing but pepd's routes.
    pub(crate) fn tables(&self) -> Vec<RouteTable> {
        self.request.route_tables().all()
    }

    /// Gives the addresses whose packets may come out of the tunnel to this peer.
    pub(crate) fn through(&self, family: Family, peer: usize) -> Vec<Range> {
        let mut ranges: Vec<Range> = self
            .campuses
            .iter()
            .filter(|campus| matches!(campus.via, Via::Routing) || campus.via == Via::Peer(peer))
            .flat_map(|campus| campus.of(family).copied())
            .collect();
        ranges.sort_by_key(|range| range.first);
        ranges
    }

    /// Returns whether SYNs are held.
    pub(crate) fn holds(&self) -> bool {
        self.queues.is_some()
    }

    /// Gives the queues, where `backend` fills them.
    pub(crate) fn queues_of(&self, backend: QueueBackend) -> Option<Queues> {
        self.queues.filter(|queues| queues.backend == backend)
    }

    /// Returns whether a rule is about connections whose ACKs are held. It is counted what such a
    /// rule matches, also where nothing can be held.
    pub(crate) fn has_hold_acks(&self) -> bool {
        let mut actions = self.rules.iter().map(|rule| rule.action);
        actions.any(|action| action == Action::HoldAcks)
    }

    /// Returns whether it depends on their path which connections are split, for any of them.
    pub(crate) fn chooses(&self) -> bool {
        let mut actions = self.rules.iter().map(|rule| rule.action);
        let by_rule = actions.any(|action| action == Action::Auto);
        self.measure.is_some_and(|measure| measure.auto || by_rule)
    }

    /// Gives the mark by which iptables knows what is to be held while a link is away; none where
    /// nft fills that queue, or nothing is held. It is that of SYNs which are to be split: here it
    /// is on segments that are no SYN, on which it means nothing else.
    pub(crate) fn away_mark(&self) -> Option<Mark> {
        let held = self.hold_acks?.backend == QueueBackend::Iptables;
        let value = self.mark.verdicts().filter(|_| held)?.split;
        let mask = self.mark.mask;
        Some(Mark { value, mask })
    }

    /// Gives the meanings of the marks of held SYNs; none if nothing is held.
    pub(crate) fn verdict_marks(&self) -> Option<VerdictMarks> {
        self.mark.verdicts().filter(|_| self.holds())
    }

    /// Gives the mark of a SYN on its way to the listener. Where the mask is too narrow for verdicts,
    /// nothing is held, and the mark of what is delivered serves for both.
    pub(crate) fn split_mark(&self) -> MarkValue {
        let verdicts = self.mark.verdicts();
        verdicts.map_or(self.mark.value, |marks| marks.split)
    }

    /// Gives the mark of upstream legs without a client; none if nothing is held.
    pub(crate) fn unclaimed_mark(&self) -> Option<Mark> {
        let value = self.mark.sockets()?.unclaimed.filter(|_| self.holds())?;
        let mask = self.mark.mask;
        Some(Mark { value, mask })
    }

    /// Gives the marks by which it is known for a moment to which neighbor a packet is sent on, in the order
    /// of the neighbors: until its copy is sent.
    pub(crate) fn neighbor_marks(&self) -> impl Iterator<Item = MarkValue> {
        self.mark.others().take(self.neighbors.len())
    }

    /// Gives the mark by which iptables knows what belongs to connections that come from other boxes; none where nft
    /// fills that queue, nothing is held, or the mask is too narrow. It is none of [`Plan::neighbor_marks`].
    pub(crate) fn coming_mark(&self) -> Option<Mark> {
        let held = self.hold_coming?.backend == QueueBackend::Iptables;
        let mut others = self.mark.others().filter(|_| held);
        let value = others.nth(self.neighbors.len())?;
        let mask = self.mark.mask;
        Some(Mark { value, mask })
    }

    /// Lists the rules and routes of the capture, in the order in which they are made.
    pub(crate) fn items(&self) -> Vec<Item> {
        if !self.captures {
            return Vec::new();
        }
        let table = self.request.route_tables().capture();
        self.families
            .iter()
            .flat_map(|&family| {
                [
                    Item::Route(item::Route {
                        table,
                        to: family.everything(),
                        target: Target::Local,
                    }),
                    Item::Rule(item::Rule {
                        family,
                        selector: Selector::Captured(self.mark),
                        table,
                    }),
                ]
            })
            .collect()
    }

    /// Makes the same plan for a host that has no IPv6.
    pub(crate) fn without(self, family: Family) -> Plan {
        let mut request = self.request;
        for campus in &mut request.campuses {
            campus
                .prefixes
                .retain(|prefix| Family::of(prefix.addr()) != family);
        }
        let others = self.families.into_iter().filter(|it| *it != family);
        Plan {
            captures: self.captures,
            translates: self.translates,
            ..Plan::new(&request).keeping(&others.collect())
        }
    }

    /// Gives all campus addresses of a family, in ascending order, with the campus's index.
    pub(crate) fn ranges(&self, family: Family) -> Vec<(Range, usize)> {
        let mut ranges: Vec<(Range, usize)> = self
            .campuses
            .iter()
            .enumerate()
            .flat_map(|(index, campus)| campus.of(family).map(move |range| (*range, index)))
            .collect();
        ranges.sort_by_key(|(range, _)| range.first);
        ranges
    }
}

impl PlannedCampus {
    fn empty(campus: &Campus) -> PlannedCampus {
        PlannedCampus {
            name: campus.name.clone(),
            listener: campus.listener,
            via: campus.via,
            ranges: Vec::new(),
        }
    }

    pub(crate) fn of(&self, family: Family) -> impl Iterator<Item = &Range> {
        self.ranges
            .iter()
            .filter(move |range| range.family == family)
    }
}

/// Gives the next-hop tables, and the rules that lead to routes with an initcwnd.
fn next_hop(request: &Request, families: &[Family]) -> Vec<Item> {
    [next_hop::items(request), initcwnd::rules(request, families)].concat()
}

/// The meaning of a list of prefixes in a rule for one family.
pub(crate) enum Addresses {
    /// The list is empty: any address.
    Any,
    /// The list has none of this family: it matches no address.
    Nothing,
    /// These addresses.
    These(Vec<Range>),
}

impl Addresses {
    pub(crate) fn of(family: Family, prefixes: &[IpNet]) -> Addresses {
        let ranges = prefix::union(family, prefixes.iter().copied());
        match (prefixes.is_empty(), ranges.is_empty()) {
            (true, _) => Addresses::Any,
            (false, true) => Addresses::Nothing,
            (false, false) => Addresses::These(ranges),
        }
    }
}
