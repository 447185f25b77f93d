//! The chains of connections that move to other boxes: see [`crate::gate::moving`].
//!
//! What belongs to a connection on its way is dropped, whichever way it goes: `moving` looks at what comes in,
//! before everything else, and `moving_out` at what is sent. But what comes for one that comes from another box is held,
//! as who has sent it would repeat it only after a while (RFC 6298): in a queue, nft's own or by a mark the one that iptables
//! fills in `raw`, until the connection is served here. A queue that nobody reads drops it. `uncoming` drops what has come
//! by such a mark and was in no queue, as somebody has taken the rule away. What belongs to one that has moved gets a mark, by
//! which `send_on4` and `send_on6`, in the tables `ip pepd` and `ip6 pepd`, know the neighbor: a copy goes to
//! it by the neighbor's own address (nf_dup_ipv4, net/ipv4/netfilter/nf_dup_ipv4.c), with those of the
//! connection in it, and the packet itself is dropped. An answer to a connection whose source this host translates is
//! in the sets as it comes, with the translated address: all of this is before connection tracking, which would
//! give it the client's address, while the neighbor's connection tracking knows what to make of it. Each keeps its connection
//! remembered. A SYN is no other case: who has its addresses and ports is the neighbor.
//!
//! The copy has no mark any more: it is sent by way of `output`, where the same values say something of the relay's sockets, and
//! none that it is none of theirs.
//! And as for all that is forwarded its time to live has to last (RFC 1812, section 5.3.1), which the kernel counts down
//! here and does not look at: two boxes that send on to each other, as where one has just died, would do so for ever. Little
//! of it is left to what is sent on.

use pepd_packet::MarkValue;

use super::expr::{NO_SYN, digit, ip, mark_is, set_bits};
use super::names::{DynamicSet, MOVED_SECONDS, SENT_ON};
use super::text::Ruleset;
use crate::plan::Plan;
use crate::prefix::Family;
use crate::request::QueueBackend;

/// Before the guards of tunnels.
const FIRST: &str = "raw - 4";

/// After that.
const COPIED: &str = "raw - 3";

/// After iptables' `raw`.
const HELD: &str = "raw + 1";

/// The hops of what is sent on: it has to get to the boxes, each of which ends it or sends it on, and not to the ends.
const HOPS: u8 = 8;

/// Writes the chains that look at every packet of the campuses' connections.
pub(super) fn moving_chains(ruleset: &mut Ruleset, plan: &Plan) {
    if plan.neighbors.is_empty() {
        return;
    }
    let begin = |hook: &str, own: &str| {
        vec![
            format!("type filter hook {hook} priority {FIRST}; policy accept;"),
            // What is copied here has been here.
            "meta l4proto != tcp accept".to_owned(),
            format!("{own} \"lo\" accept"),
        ]
    };
    let (mut incoming, mut outgoing) = (begin("prerouting", "iif"), begin("output", "oif"));
    // A copy that is sent on; what the relay's sockets send has marks.
    outgoing.push(format!("{} accept", mark_is(plan, MarkValue::NONE)));
    for &family in &plan.families {
        let frozen = format!("{} @{}", key(family), DynamicSet::Frozen(family));
        outgoing.push(format!("{frozen} drop"));
        incoming.extend(coming(plan, family));
        for (neighbor, mark) in plan.neighbor_marks().enumerate() {
            let (set, key) = (moved(family, neighbor), key(family));
            let mark = set_bits(plan, mark);
            // Its client has begun again with this port, perhaps; who sends nothing else keeps nothing remembered.
            incoming.push(format!(
                "tcp flags & (fin | syn | rst | ack) == syn {key} @{set} counter name {} {mark} accept",
                SENT_ON.0
            ));
            incoming.push(format!(
                "{key} @{set} update @{set} {{ {key} timeout {MOVED_SECONDS}s }} counter name {} {mark} accept",
                SENT_ON.0
            ));
        }
        // What is given is sent on from before it is frozen.
        incoming.push(format!("{frozen} drop"));
    }
    ruleset.base_chain("moving", &incoming);
    ruleset.base_chain("moving_out", &outgoing);
    if let Some(mark) = plan.coming_mark() {
        let marked = mark_is(plan, mark.value);
        ruleset.base_chain(
            "uncoming",
            &[
                format!("type filter hook prerouting priority {HELD}; policy accept;"),
                format!("meta l4proto tcp {NO_SYN} {marked} drop"),
            ],
        );
    }
}

/// Holds what comes for connections that come from another box; their ends begin no other meanwhile.
fn coming(plan: &Plan, family: Family) -> Vec<String> {
    let coming = format!("{} @{}", key(family), DynamicSet::Coming(family));
    let held = plan.hold_coming.and_then(|held| match held.backend {
        QueueBackend::Nft => Some(format!("queue num {}", held.queue)),
        QueueBackend::Iptables => {
            let mark = plan.coming_mark()?;
            Some(format!("{} accept", set_bits(plan, mark.value)))
        }
    });
    let held = held.map(|held| format!("{NO_SYN} {coming} {held}"));
    held.into_iter().chain([format!("{coming} drop")]).collect()
}

/// Writes the chain of a family's table.
pub(super) fn sending_on(ruleset: &mut Ruleset, plan: &Plan, family: Family) {
    let marks = plan.neighbors.iter().zip(plan.neighbor_marks());
    let lines = marks.filter_map(|(neighbor, mark)| {
        let address = match family {
            Family::V4 => neighbor.v4?.to_string(),
            Family::V6 => neighbor.v6?.to_string(),
        };
        let (marked, unmarked) = (mark_is(plan, mark), set_bits(plan, MarkValue::NONE));
        Some(format!("{marked} {unmarked} dup to {address} drop"))
    });
    let lines: Vec<_> = lines.collect();
    if lines.is_empty() {
        return;
    }
    let mut chain = vec![
        format!("type filter hook prerouting priority {COPIED}; policy accept;"),
        "meta l4proto != tcp accept".to_owned(),
        "iif \"lo\" accept".to_owned(),
    ];
    let left = match family {
        Family::V4 => "ip ttl",
        Family::V6 => "ip6 hoplimit",
    };
    let marks = plan.neighbor_marks();
    for marked in marks.map(|mark| mark_is(plan, mark)) {
        chain.push(format!("{marked} {left} < 2 drop"));
        chain.push(format!("{marked} {left} > {HOPS} {left} set {HOPS}"));
    }
    chain.extend(lines);
    ruleset.base_chain(&format!("send_on{}", digit(family)), &chain);
}

fn moved(family: Family, neighbor: usize) -> DynamicSet {
    DynamicSet::Moved(family, u8::try_from(neighbor).unwrap_or(u8::MAX))
}

fn key(family: Family) -> String {
    let ip = ip(family);
    format!("{ip} saddr . {ip} daddr . tcp sport . tcp dport")
}
