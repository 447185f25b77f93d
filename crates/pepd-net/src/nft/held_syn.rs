//! The chains of connections that are established end to end: see [`super::ruleset`].

use pepd_packet::MarkValue;

use super::expr::{
    FIRST_SYN, FOREIGN, STRAY_RST, digit, final_ack, icmp, ip, passed, queue, remember, set_bits,
    set_mark,
};
use super::names::DynamicSet;
use super::text::Ruleset;
use crate::plan::Plan;
use crate::request::{QueueBackend, Queues, VerdictMarks};

/// Writes the chains in which the first pass of a SYN ends, if it is to be split.
pub(super) fn hold_chains(ruleset: &mut Ruleset, plan: &Plan, marks: VerdictMarks) {
    let mut hold = vec![
        "jump admission".to_owned(),
        // Where there is no room, nft goes on with the next rule.
        remember(DynamicSet::HeldSyns),
        format!("{} counter name held", set_mark(plan)),
    ];
    hold.extend(plan.queues_of(QueueBackend::Nft).map(queue));
    ruleset.chain("hold", None, &hold);
    let early = [
        "jump admission".to_owned(),
        format!("{} accept", set_bits(plan, marks.split)),
    ];
    ruleset.chain("early", None, &early);
    stray_chain(ruleset, plan);
}

/// Writes the chain of RSTs for no socket: a daemon that is paused must not hold what resets other
/// people's connections.
fn stray_chain(ruleset: &mut Ruleset, plan: &Plan) {
    let mut stray = vec![
        "socket transparent 1 accept".to_owned(),
        format!("meta l4proto != @{} accept", DynamicSet::Readers),
        set_mark(plan),
    ];
    stray.extend(plan.queues_of(QueueBackend::Nft).map(queue));
    ruleset.chain("stray", None, &stray);
}

/// Writes the chain of the first pass of a SYN, before everything else.
pub(super) fn first_chain(ruleset: &mut Ruleset, plan: &Plan) {
    let mut first = vec![
        "type filter hook prerouting priority raw - 1; policy accept;".to_owned(),
        // Nearly every packet.
        "tcp flags & (syn | rst) == 0 accept".to_owned(),
    ];
    for &family in &plan.families {
        let (ip, n) = (ip(family), digit(family));
        ruleset.chain(
            &format!("syn{n}"),
            None,
            &[FOREIGN.to_owned(), format!("{ip} saddr vmap @origin{n}")],
        );
        first.push(format!(
            "meta l4proto tcp {FIRST_SYN} {ip} saddr @all{n} {ip} daddr @all{n} goto syn{n}"
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
            "{} type destination-unreachable {} daddr @all{} {}",
            icmp(family),
            ip(family),
            digit(family),
            queue(queues)
        )
    }));
    ruleset.base_chain("output", &output);
}

/// Writes the chains of the second pass of a SYN: what its mark says, if it goes on.
pub(super) fn verdict_chains(ruleset: &mut Ruleset, plan: &Plan) {
    let deliver: Vec<String> = plan
        .families
        .iter()
        .map(|&family| format!("{} saddr vmap @source{}", ip(family), digit(family)))
        .collect();
    ruleset.chain("deliver", None, &deliver);
    let unread = format!(
        "{} counter name unread {}",
        set_bits(plan, MarkValue::NONE),
        passed(plan)
    );
    // RSTs come here, too.
    let remember = format!("{FIRST_SYN} {}", remember(DynamicSet::RoutedSyns));
    ruleset.chain("unread", None, &[remember, unread]);
}

/// Writes those of the second pass of a SYN that is answered instead.
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
