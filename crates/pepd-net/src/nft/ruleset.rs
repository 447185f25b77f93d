//! The nft ruleset of a plan.
//!
//! The path of a packet through it:
//!
//! - `legs`, before connection tracking, refuses connections straight to the listeners
//!   (`direct`), and looks at TCP between campus addresses, at ICMP to them, and at what belongs
//!   to the relay's sockets. It hands first SYNs to listeners and keeps connection tracking from
//!   seeing client legs: see the module `untrack`.
//! - `from_N`: nothing within the campus; then the operator's `rules`; then `admission`,
//!   the gate and the per-source limit; then `tproxy` to the campus's listener, which also
//!   knows how to reuse a 4-tuple that is still in TIME_WAIT
//!   (net/ipv4/netfilter/nf_tproxy_ipv4.c). Where nobody listens, `tproxy` ends the rule
//!   before the mark is set.
//! - `routed` remembers each SYN that `admission` or `unread` lets go unsplit, so that `admission`
//!   knows those that repeat it: its destination may have answered, and another SYN from the same
//!   address and port, the upstream leg's, would reset that answer (RFC 9293, section 3.10.7.3).
//!   The relay does the same for those that it routes itself.
//! - `waiting` has the SYNs that are held. As long as the workers read (the set `readers`), those
//!   that repeat them are held as well, whatever the gate says: routed, they and the upstream leg's
//!   SYNs would spoil each other's answers at the destination.
//! - `prerouting` delivers here what belongs to an established socket of the relay: `legs` has
//!   marked it. Besides it looks only at TCP between campus addresses, and at ICMP to them.
//! - `own` delivers here what belongs to any other socket of a proxy, and lets everything else
//!   be routed. The relay's own come here while a handshake is under way and in TIME_WAIT:
//!   `socket mark` knows full sockets only (net/netfilter/nft_socket.c). SYNs that are not to be
//!   split come here too: one may repeat the SYN of a connection that was accepted before the
//!   gate closed, or use the 4-tuple of one in TIME_WAIT again. It cannot be routed, because the
//!   kernel drops what it forwards if early demultiplexing has found a socket for it (ip_forward,
//!   net/ipv4/ip_forward.c); the answer of the old socket makes the client try again, with
//!   success.
//! - `translated`, after address translation, delivers here what has come back to an upstream
//!   leg whose address was translated on its way out.
//!
//! Where a connection is established end to end, a SYN passes twice, before and after its
//! time in the queue, and pepd's bits of its mark say how far it has come:
//!
//! - `first` (before everything else): `syn4`/`syn6`, then `from_N` as above, then `rules`.
//!   They end in `hold`, which marks the SYN for the queue (nft's own, or the one that
//!   iptables fills in `raw`), or in `early`, which marks it as decided. `admission` comes in
//!   both.
//! - In `legs` the mark says what becomes of it: `deliver` to the listener by `to_N`, or
//!   `unread`: the queue let it pass because nobody reads, or it is full. In `prerouting` it may
//!   be an `answer`.
//! - A RST that is for no socket of this host goes through the queue too (`stray`): a client gives
//!   one to the answer that its held SYN got by another way.
//! - ICMP errors of this host's own go through the queue in `output`: the relay recognises
//!   those about SYNs of its own.
//!
//! - `delivered` and `sent`, the last of `input` and of `output`, count what came through: see the
//!   module `passage`.
//!
//! Where there are tunnels, `guard` comes before all of this, and `clamp` looks at what is routed:
//! see the modules `tunnel_filter` and `mss_clamp`.
//!
//! "Accept" ends only this table's look at the packet: the operator's own chains see it as
//! ever, with all mark bits but pepd's untouched.

use super::capture::{admission_chains, campus_chain, own_chain, prerouting_chain, rule_chain};
use super::carried::Carried;
use super::expr::{digit, joined};
use super::held_syn::{answer_chains, first_chain, hold_chains, verdict_chains};
use super::mss_clamp::clamp_chains;
use super::names::{COMPLETING, COUNTERS, DynamicSet, HOLD_COUNTERS, PASSAGE_COUNTERS};
use super::passage::passage_chains;
use super::text::Ruleset;
use super::tunnel_filter::{filter_chains, filter_counters};
use super::untrack::{leg_chains, translated_chain, untracking_chains};
use crate::plan::Plan;
use crate::prefix::Range;

/// Writes a plan's ruleset, with what the earlier table hands on.
pub(crate) fn write(plan: &Plan, carried: &Carried) -> Ruleset {
    let mut ruleset = Ruleset::begin(&plan.node);
    filter_counters(&mut ruleset, plan, carried);
    if plan.captures {
        ruleset.counters(&COUNTERS, carried);
        ruleset.counters(&PASSAGE_COUNTERS, carried);
        ruleset.counters(&[COMPLETING], carried);
        if plan.holds() {
            ruleset.counters(&HOLD_COUNTERS, carried);
        }
        dynamic_sets(&mut ruleset, plan, carried);
    }
    address_sets(&mut ruleset, plan);
    if plan.captures {
        capturing_chains(&mut ruleset, plan);
    }
    filter_chains(&mut ruleset, plan);
    clamp_chains(&mut ruleset, plan);
    ruleset.end()
}

fn capturing_chains(ruleset: &mut Ruleset, plan: &Plan) {
    own_chain(ruleset, plan);
    untracking_chains(ruleset, plan);
    rule_chain(ruleset, plan);
    admission_chains(ruleset, plan);
    let marks = plan.verdict_marks();
    if let Some(marks) = marks {
        hold_chains(ruleset, plan, marks);
    }
    for (index, campus) in plan.campuses.iter().enumerate() {
        campus_chain(ruleset, plan, index, campus);
    }
    if plan.holds() {
        source_maps(ruleset, plan, "origin", "from");
        source_maps(ruleset, plan, "source", "to");
        first_chain(ruleset, plan);
    } else {
        source_maps(ruleset, plan, "source", "from");
    }
    if let Some(marks) = marks {
        verdict_chains(ruleset, plan);
        answer_chains(ruleset, plan, marks);
    }
    leg_chains(ruleset, plan);
    prerouting_chain(ruleset, plan);
    translated_chain(ruleset, plan);
    passage_chains(ruleset, plan);
}

fn dynamic_sets(ruleset: &mut Ruleset, plan: &Plan, carried: &Carried) {
    for set in DynamicSet::ALL {
        if set != DynamicSet::HeldSyns || plan.holds() {
            ruleset.dynamic_set(set, carried);
        }
    }
}

fn address_sets(ruleset: &mut Ruleset, plan: &Plan) {
    for &family in &plan.families {
        let n = digit(family);
        for (index, campus) in plan.campuses.iter().enumerate() {
            let ranges: Vec<String> = campus.of(family).map(Range::to_string).collect();
            ruleset.address_set(&format!("campus{n}_{index}"), family, &ranges);
        }
        let all = plan.ranges(family).into_iter().map(|(range, _)| range);
        let all: Vec<String> = joined(all).iter().map(Range::to_string).collect();
        ruleset.address_set(&format!("all{n}"), family, &all);
    }
}

/// Writes the maps from the campus that a packet comes from to a chain of that campus's.
fn source_maps(ruleset: &mut Ruleset, plan: &Plan, map: &str, chain: &str) {
    for &family in &plan.families {
        let elements: Vec<String> = plan
            .ranges(family)
            .iter()
            .map(|(range, index)| format!("{range} : goto {chain}_{index}"))
            .collect();
        ruleset.verdict_map(&format!("{map}{}", digit(family)), family, &elements);
    }
}
