//! The chains of connections that are established end to end: see [`super::ruleset`].

use pepd_packet::MarkValue;

use super::expr::{
    FIRST_SYN, PLAIN, STRAY_RST, WHOLE_HEADER, asymmetric_routes, digit, final_ack, ip, mark_is,
    queue, remember, set_bits, set_mark,
};
use super::measure::is_measured;
use super::names::{DynamicSet, SYN_KEY};
use super::text::Ruleset;
use crate::plan::Plan;
use crate::prefix::Family;
use crate::request::{QueueBackend, Queues, VerdictMarks};

/// Writes the chains in which the first pass of a SYN to be held ends, and that of those that
/// repeat it.
pub(super) fn hold_chains(ruleset: &mut Ruleset, plan: &Plan) {
    // Where there is no room, nft goes on with the next rule.
    let held = [
        remember(DynamicSet::HeldSyns),
        format!("{} counter name held", set_mark(plan)),
    ];
    let queue = plan.queues_of(QueueBackend::Nft).map(queue);
    let first = ["jump admission".to_owned()]
        .into_iter()
        .chain(is_measured(plan));
    let hold: Vec<String> = first.chain(held.clone()).chain(queue.clone()).collect();
    ruleset.chain("hold", None, &hold);
    let pairs = asymmetric_routes(plan).map(|pair| format!("{pair} accept"));
    let repeats: Vec<String> = [format!("meta l4proto != @{} accept", DynamicSet::Readers)]
        .into_iter()
        .chain(pairs)
        .chain([too_often()])
        .chain(held)
        .chain(queue)
        .collect();
    ruleset.chain("repeats", None, &repeats);
    stray_chain(ruleset, plan);
}

/// Drops what repeats a held SYN more often than a client does, which doubles a second each time (RFC
/// 6298); some send the first few a second apart, or sooner where a host's timers are set so. It
/// need not be routed: the one that is held gets its verdict. Where the set has no room, nft goes on
/// with the next rule.
fn too_often() -> String {
    format!(
        "update @{} {{ {SYN_KEY} limit rate over 4/second burst 8 packets }} counter name excess drop",
        DynamicSet::SynRates
    )
}

/// Writes the chain of RSTs for no socket: a daemon that is paused must not hold what resets other
/// people's connections.
fn stray_chain(ruleset: &mut Ruleset, plan: &Plan) {
    let mut stray = vec![
        "socket transparent 1 accept".to_owned(),
        format!("meta l4proto != @{} accept", DynamicSet::Readers),
        // A client whose RST nobody reads resets the next answer, too.
        "limit rate over 1000/second burst 1000 packets accept".to_owned(),
        set_mark(plan),
    ];
    stray.extend(plan.queues_of(QueueBackend::Nft).map(queue));
    ruleset.chain("stray", None, &stray);
}

/// Writes the chain before everything else, of what belongs to a held SYN. Connection tracking is
/// not to see what repeats one: it would take it for the upstream leg's.
pub(super) fn first_chain(ruleset: &mut Ruleset, plan: &Plan) {
    let mut first = vec![
        "type filter hook prerouting priority raw - 1; policy accept;".to_owned(),
        // Nearly every packet.
        format!("{PLAIN} accept"),
    ];
    // What comes a second time has its verdict.
    let new = mark_is(plan, MarkValue::NONE);
    let held = DynamicSet::HeldSyns;
    for &family in &plan.families {
        let (ip, n) = (ip(family), digit(family));
        first.push(format!(
            "meta l4proto tcp {FIRST_SYN} {WHOLE_HEADER} {new} {ip} saddr @all{n} {ip} daddr @all{n} {SYN_KEY} @{held} goto repeats"
        ));
        first.push(format!(
            "meta l4proto tcp {STRAY_RST} {ip} saddr @all{n} {ip} daddr @all{n} goto stray"
        ));
    }
    ruleset.base_chain("first", &first);
    if let Some(queues) = plan.queues_of(QueueBackend::Nft) {
        output_chain(ruleset, plan, queues);
    }
}

/// Writes the chain of what this host itself sends about a held SYN: the acknowledgement that would
/// end its destination's handshake, and ICMP errors.
fn output_chain(ruleset: &mut Ruleset, plan: &Plan, queues: Queues) {
    let mut output = vec!["type filter hook output priority raw; policy accept;".to_owned()];
    output.extend(
        plan.unclaimed_mark()
            .map(|mark| format!("{} {}", final_ack(mark), queue(queues))),
    );
    output.extend(plan.families.iter().map(|&family| {
        format!(
            "{} {} daddr @all{} {}",
            no_neighbour(family),
            ip(family),
            digit(family),
            queue(queues)
        )
    }));
    ruleset.base_chain("output", &output);
}

/// Matches the error of a host whose next hop does not answer ARP or neighbour discovery. Others of
/// this host's own go by: a firewall's answer to a SYN has that SYN's connection attached, and a
/// queue drops what has an unconfirmed one (nf_ct_drop_unconfirmed,
/// net/netfilter/nfnetlink_queue.c).
fn no_neighbour(family: Family) -> &'static str {
    match family {
        Family::V4 => "icmp type destination-unreachable icmp code host-unreachable",
        Family::V6 => "icmpv6 type destination-unreachable icmpv6 code addr-unreachable",
    }
}

/// Writes the chains of SYNs that the queue let pass because nobody reads, or it is full.
pub(super) fn unread_chains(ruleset: &mut Ruleset, plan: &Plan) {
    let remember = remember(DynamicSet::RoutedSyns);
    let unmark = set_bits(plan, MarkValue::NONE);
    let unread = [
        remember.clone(),
        format!("{unmark} counter name unread accept"),
    ];
    ruleset.chain("unread", None, &unread);
    // It is counted when it has been routed.
    let repeats = [remember, format!("{unmark} accept")];
    ruleset.chain("unread_repeats", None, &repeats);
}

/// Writes the chains of SYNs that are answered instead.
pub(super) fn answer_chains(ruleset: &mut Ruleset, plan: &Plan, marks: VerdictMarks) {
    let unmark = set_bits(plan, MarkValue::NONE);
    let answers = [
        ("refused", marks.refused, "tcp reset"),
        ("network", marks.network, "icmpx type no-route"),
        ("host", marks.host, "icmpx type host-unreachable"),
        ("port", marks.port, "icmpx type port-unreachable"),
        (
            "prohibited",
            marks.prohibited,
            "icmpx type admin-prohibited",
        ),
    ];
    let mut verdicts = Vec::new();
    for (name, value, answer) in answers {
        let line = format!("meta l4proto tcp {unmark} counter reject with {answer}");
        ruleset.chain(name, None, &[line]);
        verdicts.push(format!("{value:#x} : goto {name}"));
    }
    let line = format!(
        "meta mark & {:#x} vmap {{ {} }}",
        plan.mark.mask,
        verdicts.join(", ")
    );
    ruleset.chain("answer", None, &[line]);
}
