//! What shows whether split connections get through this host: the same packets, counted where they
//! enter a hook of the kernel's and where they have passed all its chains.
//!
//! | enters | has passed | between them |
//! | --- | --- | --- |
//! | `captured`: a SYN, at `tproxy` | `delivered`: at the end of `input` | `ip rule`, the local route, `rp_filter`, every chain of `input` |
//! | `answering`: a SYN-ACK, at the start of `output` | `answered`: at its end | every chain of `output` |
//! | `dialing`: an upstream leg's SYN | `dialed` | the same, and a connection table that is full |
//! | `returning`: the SYN-ACK to it | `returned` | the same as a captured SYN's |
//!
//! Nothing that a sender forges makes the first of a pair grow without the second. Whether a client
//! comes through does not tell that: of a flood of forged SYNs none does.
//!
//! `sent` and `delivered` are the last chains of their hooks, after all filters of the operator's,
//! nft's and iptables' alike. They look at SYNs; every other packet leaves them at their first rule.

use super::expr::{FIRST_SYN, NO_SYN, PLAIN, digit, ends};
use super::text::Ruleset;
use crate::plan::Plan;
use crate::request::{Mark, SocketMarks};

/// A SYN that answers one.
const SYN_ACK: &str = "tcp flags & (fin | syn | rst | ack) == (syn | ack)";

/// The last priority that there is (NF_IP_PRI_LAST, include/uapi/linux/netfilter_ipv4.h).
const LAST: &str = "2147483647";

/// Writes the chains at the ends of `input` and `output`.
pub(super) fn passage_chains(ruleset: &mut Ruleset, plan: &Plan) {
    let Mark { value, mask } = plan.mark;
    let mut delivered = vec![
        format!("type filter hook input priority {LAST}; policy accept;"),
        format!("{NO_SYN} accept"),
    ];
    for &family in &plan.families {
        let n = digit(family);
        for (flags, counter) in [(FIRST_SYN, "delivered"), (SYN_ACK, "returned")] {
            delivered.push(format!(
                "meta nfproto ipv{n} {flags} meta mark & {mask:#x} == {value:#x} counter name {counter}{n}"
            ));
        }
    }
    ruleset.base_chain("delivered", &delivered);
    if plan.mark.sockets().is_some() {
        let mut sent = vec![
            format!("type filter hook output priority {LAST}; policy accept;"),
            format!("{NO_SYN} accept"),
        ];
        sent.extend(departures(plan, "answered", "dialed"));
        ruleset.base_chain("sent", &sent);
    }
}

/// Counts the SYN-ACKs that come to upstream legs, and delivers them and everything else to their
/// sockets by `to_socket`.
pub(super) fn returns(plan: &Plan, to_socket: &str) -> Vec<String> {
    let mut lines = vec![format!("{PLAIN} {to_socket} accept")];
    lines.extend(ends(plan));
    lines.extend(plan.families.iter().map(|&family| {
        let n = digit(family);
        format!("meta nfproto ipv{n} {SYN_ACK} counter name returning{n}")
    }));
    lines.push(format!("{to_socket} accept"));
    lines
}

/// Counts, of what is a SYN or a RST, SYN-ACKs to clients and SYNs of upstream legs, which their
/// sockets' marks tell.
pub(super) fn departures(plan: &Plan, answers: &str, dials: &str) -> Vec<String> {
    let Some(marks) = plan.mark.sockets() else {
        return Vec::new();
    };
    let SocketMarks {
        client, upstream, ..
    } = marks;
    let mask = plan.mark.mask;
    let dialing = match plan.unclaimed_mark() {
        Some(Mark { value, .. }) => format!("{{ {upstream:#x}, {value:#x} }}"),
        None => format!("{upstream:#x}"),
    };
    let client = format!("{client:#x}");
    let mut lines = Vec::new();
    for &family in &plan.families {
        let n = digit(family);
        for (flags, marks, counter) in [(SYN_ACK, &client, answers), (FIRST_SYN, &dialing, dials)] {
            lines.push(format!(
                "meta nfproto ipv{n} {flags} meta mark & {mask:#x} {marks} counter name {counter}{n}"
            ));
        }
    }
    lines
}
