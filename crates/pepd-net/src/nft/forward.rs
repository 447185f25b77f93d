//! The chains in the `forward` hook: a first SYN is looked at where the operator's own filters have
//! let it through, and only what is to be split goes back to a listener.
//!
//! So whatever the host does with a packet that it routes, it has done: reverse-path filtering,
//! the operator's chains in `prerouting` and `forward`, routing itself. A SYN that comes to nothing
//! there comes to nothing here.
//!
//! `tproxy` works in `prerouting` only. Therefore the SYN is copied to the loopback device and
//! itself dropped. The copy comes in a second time with pepd's mark, untracked, and with a route
//! already (nf_dup_ipv4, net/ipv4/netfilter/nf_dup_ipv4.c): nothing is filtered by where it seems
//! to come from.

use super::expr::{FIRST_SYN, WHOLE_HEADER, digit, forget_held, ip, mark_is};
use super::moving::sending_on;
use super::text::Ruleset;
use crate::plan::Plan;
use crate::prefix::Family;

/// After the operator's own filters, which are at `filter` (0) or a little later; before iptables'
/// table `security`, whose FORWARD may fill the queues (50, and 150 where it speaks nf_tables).
pub(crate) const OFFERED: i32 = 40;

/// After that table.
pub(super) const DECIDED: i32 = 160;

/// After everything that may answer a SYN instead.
const COPIED: i32 = 161;

/// After the SYNs that are split have left.
pub(super) const ROUTED: i32 = 162;

/// Writes the chains that first SYNs come to once the host has routed them.
pub(super) fn forward_chains(ruleset: &mut Ruleset, plan: &Plan) {
    let mut offered = Vec::new();
    for &family in &plan.families {
        let (ip, n) = (ip(family), digit(family));
        let mut lines = Vec::new();
        if plan.translates {
            // Only here: a match on connection tracking switches it on where there is none.
            lines.push("ct status dnat counter name translated accept".to_owned());
        }
        lines.push(format!("{ip} saddr vmap @origin{n}"));
        ruleset.chain(&format!("offered{n}"), None, &lines);
        offered.push(format!(
            "{ip} saddr @all{n} {ip} daddr @all{n} goto offered{n}"
        ));
    }
    ruleset.chain("offered", None, &offered);
    ruleset.base_chain(
        "forward",
        &[
            format!("type filter hook forward priority {OFFERED}; policy accept;"),
            format!("{FIRST_SYN} {WHOLE_HEADER} goto offered"),
        ],
    );
    if plan.holds() {
        let verdict = [
            forget_held(),
            format!("{} goto unread", mark_is(plan, plan.mark.value)),
            "goto answer".to_owned(),
        ];
        ruleset.chain("verdict", None, &verdict);
        ruleset.base_chain(
            "decided",
            &[
                format!("type filter hook forward priority {DECIDED}; policy accept;"),
                format!("{FIRST_SYN} goto verdict"),
            ],
        );
    }
}

/// Writes the tables of the families, which are there because `inet` has no `dup`.
pub(super) fn copying_tables(ruleset: &mut Ruleset, plan: &Plan) {
    for &family in &plan.families {
        let this_host = match family {
            Family::V4 => "127.0.0.1",
            Family::V6 => "::1",
        };
        ruleset.table(family, |ruleset| {
            let split = mark_is(plan, plan.split_mark());
            let lines = [
                format!("type filter hook forward priority {COPIED}; policy accept;"),
                format!("{FIRST_SYN} {split} dup to {this_host} device \"lo\" drop"),
            ];
            ruleset.base_chain(&format!("copy{}", digit(family)), &lines);
            sending_on(ruleset, plan, family);
        });
    }
}
