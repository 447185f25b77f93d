//! The chains of connections that stay end to end and whose ACKs and packets are held while the link
//! to one of their ends is away: see [`super::ruleset`].
//!
//! A segment does not say which end is the client, and connection tracking, which might know, is not
//! switched on for this. So each of the operator's rules is tried on it both ways, as what goes from
//! the client to the server and as what comes back, and the first rule that matches either way
//! decides. Both ways within one order, and not in two chains one after the other: what goes back to
//! a client of a server that one rule exempts would else come to a later rule for everything.

use pepd_packet::MarkValue;

use super::expr::{PLAIN, Way, digit, ip, mark_is, rule_matches, set_bits};
use super::forward::{DECIDED, OFFERED};
use super::names::DynamicSet;
use super::text::Ruleset;
use crate::plan::{Plan, PlannedCampus};
use crate::prefix::Family;
use crate::request::{Action, HoldQueue, QueueBackend, Rule};

/// Writes the chains through which segments come to the queue while a link is away.
pub(super) fn hold_acks_chains(ruleset: &mut Ruleset, plan: &Plan) {
    let Some(held) = plan.hold_acks else { return };
    ruleset.chain("hold_acks", None, &queue_lines(plan, held));
    ruleset.chain("hold_rules", None, &rule_chain(plan));
    for &family in &plan.families {
        let within = plan.campuses.iter().enumerate();
        let lines: Vec<String> = within
            .filter_map(|(index, campus)| within_campus(family, index, campus))
            .chain(["goto hold_rules".to_owned()])
            .collect();
        ruleset.chain(&format!("in_outages{}", digit(family)), None, &lines);
    }
    let first = [
        format!("type filter hook forward priority {OFFERED}; policy accept;"),
        // Every packet that is routed, as long as no link is away.
        format!("meta l4proto != @{} accept", DynamicSet::Away),
    ];
    let between = plan.families.iter().map(|&family| {
        let (ip, n) = (ip(family), digit(family));
        format!("{PLAIN} {ip} saddr @all{n} {ip} daddr @all{n} goto in_outages{n}")
    });
    let lines: Vec<String> = first.into_iter().chain(between).collect();
    ruleset.base_chain("in_outages", &lines);
    unheld_chain(ruleset, plan);
}

/// Passes a segment to the queue: to nft's own, or by a mark to the one that iptables fills in
/// `security`.
fn queue_lines(plan: &Plan, HoldQueue { queue, backend }: HoldQueue) -> Vec<String> {
    match (backend, plan.away_mark()) {
        (QueueBackend::Nft, _) | (QueueBackend::Iptables, None) => {
            vec![format!("queue num {queue} bypass")]
        }
        (QueueBackend::Iptables, Some(mark)) => {
            vec![set_bits(plan, mark.value), "accept".to_owned()]
        }
    }
}

/// Writes the operator's rules, each both ways.
fn rule_chain(plan: &Plan) -> Vec<String> {
    // After the last rule that holds there is nothing to be exempted from.
    let is_hold = |rule: &Rule| rule.action == Action::HoldAcks;
    let count = plan.rules.iter().rposition(is_hold).map_or(0, |at| at + 1);
    let rules = plan.rules.iter().take(count).enumerate();
    rules
        .flat_map(|(index, rule)| both_ways(plan, index, rule))
        .collect()
}

/// Writes a configuration rule for segments of either way.
fn both_ways(plan: &Plan, index: usize, rule: &Rule) -> Vec<String> {
    let (end, about) = match rule.action {
        Action::HoldAcks => ("goto hold_acks", "hold-acks"),
        Action::Split | Action::Auto => ("accept", "split"),
        Action::Bypass => ("accept", "bypass"),
    };
    let end = format!("{end} comment \"rule {}: {about}\"", index + 1);
    let mut lines = rule_matches(plan, rule, Way::Forth, &end);
    for line in rule_matches(plan, rule, Way::Back, &end) {
        // A rule that names neither addresses nor ports is the same both ways.
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// Lets go what stays within a campus: the rules are not about it. None if the campus has no address
/// of the family.
fn within_campus(family: Family, index: usize, campus: &PlannedCampus) -> Option<String> {
    let (ip, n) = (ip(family), digit(family));
    campus.of(family).next()?;
    Some(format!(
        "{ip} saddr @campus{n}_{index} {ip} daddr @campus{n}_{index} accept"
    ))
}

/// Writes the chain that takes the mark off again, whether somebody has read the queue or not.
fn unheld_chain(ruleset: &mut Ruleset, plan: &Plan) {
    let Some(mark) = plan.away_mark() else { return };
    let unmark = set_bits(plan, MarkValue::NONE);
    ruleset.base_chain(
        "unheld",
        &[
            format!("type filter hook forward priority {DECIDED}; policy accept;"),
            format!("{PLAIN} {} {unmark}", mark_is(plan, mark.value)),
        ],
    );
}
