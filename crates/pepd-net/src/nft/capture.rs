//! The chains that decide which new connections are split, and hand those to the listener.

use pepd_packet::MarkValue;

use super::expr::{
    FIRST_SYN, FOREIGN, asymmetric_routes, digit, gate_closed, icmp, ip, marked, on_hold, passed,
    remember, rule_lines, set_bits, set_mark, unsplit,
};
use super::names::{DynamicSet, SYN_KEY};
use super::text::Ruleset;
use crate::plan::{Plan, PlannedCampus};
use crate::prefix::Family;
use crate::request::{Mark, SocketMarks};

/// Writes the chain for packets of connections that a proxy on this box has already taken.
pub(super) fn own_chain(ruleset: &mut Ruleset, plan: &Plan) {
    ruleset.chain(
        "own",
        None,
        &[
            // Another program's wildcard listener is no reason to take a connection
            // that was never handed to it.
            "socket wildcard 1 accept".to_owned(),
            format!("socket transparent 1 {} accept", set_mark(plan)),
            // Never back to the chain that the packet came from: that one has decided.
            "accept".to_owned(),
        ],
    );
}

/// Writes the chain of the operator's rules.
pub(super) fn rule_chain(ruleset: &mut Ruleset, plan: &Plan) {
    let lines: Vec<String> = plan
        .rules
        .iter()
        .enumerate()
        .flat_map(|(index, rule)| rule_lines(plan, index, rule))
        .chain(
            plan.holds()
                .then(|| format!("goto {}", on_hold(plan.handshake))),
        )
        .collect();
    ruleset.chain("rules", None, &lines);
}

/// Writes the chains that let a new connection in, or route it and remember that.
pub(super) fn admission_chains(ruleset: &mut Ruleset, plan: &Plan) {
    ruleset.chain(
        "routed",
        None,
        // Where there is no room, nft goes on with the next rule.
        &[remember(DynamicSet::RoutedSyns), unsplit(plan).to_owned()],
    );
    let mut lines = Vec::new();
    if plan.holds() {
        lines.extend(asymmetric_routes(plan));
        lines.push(format!(
            "{SYN_KEY} @{} meta l4proto @{} return",
            DynamicSet::HeldSyns,
            DynamicSet::Readers
        ));
    }
    lines.push(format!(
        "{} counter name gate_closed goto routed",
        gate_closed()
    ));
    for &family in &plan.families {
        lines.push(format!(
            "{} saddr @{} counter name source_full goto routed",
            ip(family),
            DynamicSet::FullSources(family),
        ));
    }
    lines.push(format!(
        "{SYN_KEY} @{} counter name repeated goto routed",
        DynamicSet::RoutedSyns
    ));
    ruleset.chain("admission", None, &lines);
}

/// Writes the chains of what comes from one campus: to be split or not, and to which listener.
pub(super) fn campus_chain(
    ruleset: &mut Ruleset,
    plan: &Plan,
    index: usize,
    campus: &PlannedCampus,
) {
    let mut lines: Vec<String> = plan
        .families
        .iter()
        .map(|&family| {
            format!(
                "{} daddr @campus{}_{index} {}",
                ip(family),
                digit(family),
                unsplit(plan)
            )
        })
        .collect();
    if plan.holds() {
        lines.push("goto rules".to_owned());
        ruleset.chain(&format!("from_{index}"), Some(&campus.name), &lines);
        lines.clear();
    } else {
        lines.push("jump rules".to_owned());
        lines.push("jump admission".to_owned());
    }
    // Connection tracking is not to see it.
    let untrack = plan.mark.sockets().map_or("", |_| "notrack ");
    for &family in &plan.families {
        let (protocol, to) = match family {
            Family::V4 => ("ipv4", format!("ip to {}", campus.listener.v4)),
            Family::V6 => ("ipv6", format!("ip6 to [{}]", campus.listener.v6)),
        };
        lines.push(format!(
            "meta nfproto {protocol} meta l4proto tcp tproxy {to}:{} {} {untrack}counter name captured counter name captured{} accept",
            plan.port,
            set_mark(plan),
            digit(family)
        ));
    }
    if plan.holds() {
        lines.push(format!(
            "{} counter name no_listener {}",
            set_bits(plan, MarkValue::NONE),
            passed(plan)
        ));
        ruleset.chain(&format!("to_{index}"), Some(&campus.name), &lines);
    } else {
        lines.push(format!("counter name no_listener {}", passed(plan)));
        ruleset.chain(&format!("from_{index}"), Some(&campus.name), &lines);
    }
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
