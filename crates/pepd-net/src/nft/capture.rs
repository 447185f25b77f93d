//! The chains that decide which new connections are split, and hand those to the listener; which
//! hooks call them is in [`super::forward`] and [`super::untrack`].

use super::expr::{
    FIRST_SYN, FOREIGN, NO_SYN, OF_A_SOCKET, asymmetric_routes, choice, digit, ends, gate_closed,
    half_open, icmp, ip, marked, remember, rule_lines, set_bits, set_mark, shut_gate, source,
};
use super::measure::is_measured;
use super::names::{DynamicSet, SYN_KEY};
use super::text::Ruleset;
use crate::plan::{Plan, PlannedCampus};
use crate::prefix::Family;
use crate::request::{Mark, SocketMarks};

/// Writes the chain for packets of connections that a proxy on this box has already taken.
///
/// What comes after the RST that ended its connection, because another processor or another path was
/// faster with that or because its sender has not heard yet, has no socket any more. The other leg
/// may still deliver what came before: routed, it would reach a host in whose window it may lie.
pub(super) fn own_chain(ruleset: &mut Ruleset, plan: &Plan) {
    // Another program's wildcard listener is no reason to take a connection that was never handed to
    // it.
    let mut owned = vec!["socket wildcard 1 accept".to_owned()];
    owned.extend(ends(plan));
    owned.push(format!("socket transparent 1 {} accept", set_mark(plan)));
    ruleset.chain("owned", None, &owned);
    let mut own = vec![format!("{OF_A_SOCKET} jump owned")];
    own.extend(plan.families.iter().map(|&family| {
        let set = DynamicSet::Ended(family);
        let key = set.key().unwrap_or_default();
        format!("{NO_SYN} {key} @{set} counter name late reject with tcp reset")
    }));
    // Never back to the chain that the packet came from: that one has decided.
    own.push("accept".to_owned());
    ruleset.chain("own", None, &own);
}

/// Writes the chain of the operator's rules.
pub(super) fn rule_chain(ruleset: &mut Ruleset, plan: &Plan) {
    let lines: Vec<String> = plan
        .rules
        .iter()
        .enumerate()
        .flat_map(|(index, rule)| rule_lines(plan, index, rule))
        .chain([format!(
            "goto {}",
            choice(plan, plan.handshake, plan.measure.is_some_and(|it| it.auto))
        )])
        .collect();
    ruleset.chain("rules", None, &lines);
}

/// Writes the chains that let a new connection in, or route it and remember that.
pub(super) fn admission_chains(ruleset: &mut Ruleset, plan: &Plan) {
    ruleset.chain(
        "routed",
        None,
        // Where there is no room, nft goes on with the next rule.
        &[remember(DynamicSet::RoutedSyns), "accept".to_owned()],
    );
    let mut lines = Vec::new();
    if plan.holds() {
        let pairs = asymmetric_routes(plan);
        lines.extend(pairs.map(|pair| format!("{pair} counter name detoured goto routed")));
        // Not remembered: the set that does so is for all, and a flood would take all its room.
        lines.extend(plan.families.iter().map(|&family| {
            let set = DynamicSet::FloodedDestinations(family);
            format!("{} daddr @{set} counter name flooded accept", ip(family))
        }));
    }
    lines.push(format!(
        "{} counter name gate_closed goto routed",
        gate_closed()
    ));
    for &family in &plan.families {
        lines.push(format!(
            "{} @{} counter name source_full goto routed",
            source(plan, family),
            DynamicSet::FullSources(family),
        ));
    }
    lines.push(format!(
        "{SYN_KEY} @{} counter name repeated goto routed",
        DynamicSet::RoutedSyns
    ));
    ruleset.chain("admission", None, &lines);
}

/// Writes the chain in which the first pass of a SYN to be answered at once ends.
pub(super) fn early_chain(ruleset: &mut Ruleset, plan: &Plan) {
    let mark = set_bits(plan, plan.split_mark());
    // Where there is no room, nft goes on with the next rule.
    let there_is_room = half_open(plan, "update").map(|note| format!("{note} {mark} accept"));
    let early: Vec<String> = ["jump admission".to_owned()]
        .into_iter()
        .chain(is_measured(plan))
        .chain(there_is_room)
        .chain(["counter name half_open goto routed".to_owned()])
        .collect();
    ruleset.chain("early", None, &early);
}

/// Writes the chains of what comes from one campus: whether it is to be split, and, on its second
/// pass, to which listener it goes.
pub(super) fn campus_chains(
    ruleset: &mut Ruleset,
    plan: &Plan,
    index: usize,
    campus: &PlannedCampus,
) {
    let within = plan.families.iter().map(|&family| {
        let (ip, n) = (ip(family), digit(family));
        format!("{ip} daddr @campus{n}_{index} accept")
    });
    let from: Vec<String> = within.chain(["goto rules".to_owned()]).collect();
    ruleset.chain(&format!("from_{index}"), Some(&campus.name), &from);
    let mut to = Vec::new();
    // Connection tracking is not to see it.
    let untrack = plan.mark.sockets().map_or("", |_| "notrack ");
    for &family in &plan.families {
        let (protocol, listener) = match family {
            Family::V4 => ("ipv4", format!("ip to {}", campus.listener.v4)),
            Family::V6 => ("ipv6", format!("ip6 to [{}]", campus.listener.v6)),
        };
        to.push(format!(
            "meta nfproto {protocol} meta l4proto tcp tproxy {listener}:{} {} {untrack}{FIRST_SYN} counter name captured counter name captured{} accept",
            plan.port,
            set_mark(plan),
            digit(family)
        ));
    }
    // It brings a cookie back, and no SYN of its enters `input` now: see the module `passage`.
    to.push(format!("{NO_SYN} {} accept", marked(plan)));
    // It must not reach this host, which would reset the client. The next one is routed.
    to.push(format!("{} counter name no_listener drop", shut_gate()));
    ruleset.chain(&format!("to_{index}"), Some(&campus.name), &to);
}

/// Writes the chain that delivers here what belongs to the relay's sockets.
pub(super) fn prerouting_chain(ruleset: &mut Ruleset, plan: &Plan) {
    let mut prerouting =
        vec!["type filter hook prerouting priority mangle; policy accept;".to_owned()];
    // Nearly every packet is one of a live connection, known since `legs`, and ends here.
    prerouting.push(format!("{} accept", marked(plan)));
    // Another table's chain may have set a mark of its own in between.
    prerouting.extend(plan.mark.sockets().map(|marks| {
        let SocketMarks {
            client, upstream, ..
        } = marks;
        let unclaimed = plan
            .unclaimed_mark()
            .map_or_else(String::new, |Mark { value, .. }| format!(", {value:#x}"));
        format!(
            "meta l4proto tcp socket mark & {:#x} {{ {client:#x}, {upstream:#x}{unclaimed} }} {} \
             accept",
            plan.mark.mask,
            set_mark(plan)
        )
    }));
    for &family in &plan.families {
        let (ip, n) = (ip(family), digit(family));
        let mut tcp = vec![FOREIGN.to_owned()];
        if plan.holds() {
            tcp.push(format!("{FIRST_SYN} jump answer"));
        }
        tcp.push("goto own".to_owned());
        ruleset.chain(&format!("tcp{n}"), None, &tcp);
        prerouting.push(format!(
            "meta l4proto tcp {ip} saddr @all{n} {ip} daddr @all{n} goto tcp{n}"
        ));
        // From any router on the path: only the destination is a campus address.
        prerouting.push(format!(
            "meta l4proto {} {ip} daddr @all{n} goto own",
            icmp(family)
        ));
    }
    ruleset.base_chain("prerouting", &prerouting);
}
