//! The chains by which the packets of connections that stay end to end come to their queue, while the
//! daemon says that a link is gone: see [`super::ruleset`].
//!
//! Nobody has noted which connections these are: the rules are asked again, for either way that a packet
//! may go. A connection that matches one rule from its client and another one from its server is held if
//! either says so.

use pepd_packet::MarkValue;

use super::expr::{PLAIN, Way, digit, ip, mark_is, matched, set_bits};
use super::forward::{DECIDED, OFFERED};
use super::names::DynamicSet;
use super::text::Ruleset;
use crate::plan::Plan;
use crate::request::{Action, QueueBackend};

/// Writes them.
pub(super) fn hold_acks_chains(ruleset: &mut Ruleset, plan: &Plan) {
    let Some(mark) = plan.hold_mark() else {
        return;
    };
    let queue = match plan.hold_queue_of(QueueBackend::Nft) {
        Some(queue) => format!("queue num {queue} bypass"),
        None => format!("{} accept", set_bits(plan, mark.value)),
    };
    ruleset.chain("hold_acks", None, &[queue]);
    for (name, way) in [("held_forth", Way::Forth), ("held_back", Way::Back)] {
        let lines = plan.rules.iter().flat_map(|rule| {
            let end = match rule.action {
                Action::HoldAcks => "goto hold_acks",
                Action::Split | Action::Bypass => "return",
            };
            matched(plan, rule, way, end)
        });
        ruleset.chain(name, None, &lines.collect::<Vec<_>>());
    }
    let mut lines = vec![
        format!("type filter hook forward priority {OFFERED}; policy accept;"),
        // Nearly always.
        format!("meta l4proto != @{} accept", DynamicSet::Away),
    ];
    for &family in &plan.families {
        let (ip, n) = (ip(family), digit(family));
        for chain in ["held_forth", "held_back"] {
            lines.push(format!(
                "{PLAIN} {ip} saddr @all{n} {ip} daddr @all{n} jump {chain}"
            ));
        }
    }
    ruleset.base_chain("in_outages", &lines);
    if plan.hold_queue_of(QueueBackend::Iptables).is_some() {
        // Those that nobody has read.
        let unmark = set_bits(plan, MarkValue::NONE);
        let lines = [
            format!("type filter hook forward priority {DECIDED}; policy accept;"),
            format!(
                "meta l4proto tcp {PLAIN} {} {unmark}",
                mark_is(plan, mark.value)
            ),
        ];
        ruleset.base_chain("unheld", &lines);
    }
}
