//! The nft ruleset of a plan.
//!
//! The path of a packet through it:
//!
//! - `legs`, before connection tracking, refuses connections straight to the listeners
//!   (`direct`), and looks at TCP between campus addresses, at ICMP to them, and at what belongs
//!   to the relay's sockets. It keeps connection tracking from seeing client legs: see the module
//!   `untrack`. First SYNs go on (`syns`), through everything that the host and its operator do
//!   with what is routed.
//! - `forward`, after the operator's filters: see the module `forward`. `from_N`: nothing within
//!   the campus; then the configuration's `rules`, which end in `early` or `hold`; in both
//!   `admission`, the gate and the per-source limit. What is to be split gets a mark.
//! - `copy4` and `copy6`, in the tables `ip pepd` and `ip6 pepd`, send a copy of that to the
//!   loopback device and drop it.
//! - `deliver`, when the copy comes by `legs`: by `to_N`, `tproxy` hands it to the listener of the
//!   campus that it comes from. Where nobody listens, `tproxy` ends the rule before the mark is
//!   set, and the gate is shut: the client's next SYN is routed.
//! - `routed` remembers each SYN that `admission` or `unread` lets go unsplit, so that `admission`
//!   knows those that repeat it: its destination may have answered, and another SYN from the same
//!   address and port, the upstream leg's, would reset that answer (RFC 9293, section 3.10.7.3).
//!   The relay does the same for those that it routes itself.
//! - `prerouting` delivers here what belongs to an established socket of the relay: `legs` has
//!   marked it. Besides it looks only at TCP between campus addresses, and at ICMP to them.
//! - `own` delivers here what belongs to any other socket of a proxy, and lets everything else
//!   be routed. The relay's own come here while a handshake is under way and in TIME_WAIT:
//!   `socket mark` knows full sockets only (net/netfilter/nft_socket.c). SYNs that are not to be
//!   split come here too: one may repeat the SYN of a connection that was accepted before the
//!   gate closed, or use the 4-tuple of one in TIME_WAIT again. It cannot be routed, because the
//!   kernel drops what it forwards if early demultiplexing has found a socket for it; the answer
//!   of the old socket makes the client try again, with success.
//!   What comes after a RST has ended its connection (the sets `ended4` and `ended6`, filled where
//!   RSTs come to legs and leave them) is answered with a RST there.
//! - `translated`, after address translation, delivers here what has come back to an upstream
//!   leg whose address was translated on its way out.
//!
//! Where a connection is established end to end, the SYN waits in a queue, and pepd's bits of its
//! mark say how far it has come:
//!
//! - `hold` marks the SYN for the queue (nft's own, or the one that iptables fills in `security`)
//!   and enters it in the set `waiting`.
//! - `decided`: the mark says what becomes of it. To be split it goes on as above; it may be an
//!   `answer`, or `unread`: the queue let it pass because nobody reads, or it is full.
//! - `first` (before everything else): what repeats a SYN that is `waiting` goes into the queue
//!   there (`repeats`; with iptables, from `raw`), as long as the workers read (the set `readers`)
//!   and whatever the gate says: routed, it and the upstream leg's SYN would spoil each other's
//!   answers at the destination. Its verdict is seen in `legs` (`deliver`) and in `prerouting`
//!   (`answer`); where it is to be routed, it is remembered as such before it comes to `forward`.
//! - A RST that is for no socket of this host goes through the queue too (`stray`): a client gives
//!   one to the answer that its held SYN got by another way.
//! - ICMP errors of this host's own go through the queue in `output`: the relay recognises
//!   those about SYNs of its own.
//!
//! What costs the queue more than others can wait for does not come to it: SYNs to destinations of
//! which the daemon says that they are flooded are routed by `admission`; one that repeats a held SYN
//! more often than any client does is dropped (`excess`); and of RSTs only so many a second are read.
//!
//! Where destinations are translated on this host, `forward` leaves alone what has another one than
//! the client asked for: the listener would answer in the wrong name.
//! - `delivered` and `sent`, the last of `input` and of `output`, count what came through: see the
//!   module `passage`.
//!
//! Where a rule holds ACKs, its connections are routed, and `in_outages`, at the priority of `forward`,
//! looks at what is no SYN and no RST, between two campuses, as long as a link is away (the set
//! `away`). Such a segment comes to `hold_rules`, the configuration's rules in both directions, and
//! from there to `hold_acks`, which puts it into a queue of its own: nft's, or by a mark the one that
//! iptables fills in `security`; `unheld` takes the mark off. See the module `hold_acks`.
//!
//! Where it is measured what splitting is worth, `measured` is the last that `early` and `hold` ask: it routes a
//! share, and has as many others watched. `watch_routed`, `watch_received` and `watch_sent` pass on the headers
//! of these. Where it depends on the path whether a connection is split, it comes by `choose_early` or
//! `choose_hold`, which routes it if its addresses are in `auto4` or `auto6`, and measures many of those in
//! `explored4` or `explored6`. See the module `measure`.
//!
//! Where connections move to other boxes, `moving`, `moving_out`, `send_on4` and `send_on6` see to their packets:
//! see the module `moving`.
//!
//! Where there are tunnels, `guard` comes before all of this, and `clamp` looks at what is routed:
//! see the modules `tunnel_filter` and `mss_clamp`.
//!
//! "Accept" ends only this table's look at the packet: the operator's own chains see it as
//! ever, with all mark bits but pepd's untouched.

use super::capture::{
    admission_chains, campus_chains, early_chain, own_chain, prerouting_chain, rule_chain,
};
use super::carried::Earlier;
use super::expr::{digit, joined};
use super::forward::{copying_tables, forward_chains};
use super::held_syn::{answer_chains, first_chain, hold_chains, unread_chains};
use super::hold_acks::hold_acks_chains;
use super::measure::{choice_chains, measure_chains, watch_chains};
use super::moving::moving_chains;
use super::mss_clamp::clamp_chains;
use super::names::{
    AUTO, COMPLETING, COUNTERS, DynamicSet, HOLD_ACKS, HOLD_COUNTERS, MEASURED, PASSAGE_COUNTERS,
    SENT_ON,
};
use super::passage::passage_chains;
use super::text::Ruleset;
use super::tunnel_filter::{filter_chains, filter_counters};
use super::untrack::{leg_chains, syn_chains, translated_chain, untracking_chains};
use crate::plan::Plan;
use crate::prefix::Range;

/// Writes a plan's ruleset, to take the place of an earlier table.
pub(crate) fn write(plan: &Plan, earlier: Earlier<'_>) -> Ruleset {
    let mut ruleset = Ruleset::default();
    filter_counters(&mut ruleset, plan);
    if plan.captures {
        ruleset.counters(&COUNTERS);
        ruleset.counters(&PASSAGE_COUNTERS);
        ruleset.counters(&[COMPLETING]);
        if plan.holds() {
            ruleset.counters(&HOLD_COUNTERS);
        }
        if plan.has_hold_acks() {
            ruleset.counters(&[HOLD_ACKS]);
        }
        if plan.measure.is_some() {
            ruleset.counters(&[MEASURED]);
        }
        if plan.chooses() {
            ruleset.counters(&[AUTO]);
        }
        if !plan.neighbors.is_empty() {
            ruleset.counters(&[SENT_ON]);
        }
        dynamic_sets(&mut ruleset, plan);
    }
    address_sets(&mut ruleset, plan);
    if plan.captures {
        capturing_chains(&mut ruleset, plan);
    }
    filter_chains(&mut ruleset, plan);
    clamp_chains(&mut ruleset, plan);
    ruleset.end_table();
    if plan.captures {
        copying_tables(&mut ruleset, plan);
    }
    let cleared = earlier.cleared_for(&ruleset);
    ruleset.end(&plan.node, &cleared)
}

fn capturing_chains(ruleset: &mut Ruleset, plan: &Plan) {
    own_chain(ruleset, plan);
    untracking_chains(ruleset, plan);
    admission_chains(ruleset, plan);
    measure_chains(ruleset, plan);
    early_chain(ruleset, plan);
    if plan.holds() {
        hold_chains(ruleset, plan);
    }
    choice_chains(ruleset, plan);
    rule_chain(ruleset, plan);
    for (index, campus) in plan.campuses.iter().enumerate() {
        campus_chains(ruleset, plan, index, campus);
    }
    source_maps(ruleset, plan, "origin", "from");
    source_maps(ruleset, plan, "source", "to");
    if let Some(marks) = plan.verdict_marks() {
        first_chain(ruleset, plan);
        unread_chains(ruleset, plan);
        answer_chains(ruleset, plan, marks);
    }
    forward_chains(ruleset, plan);
    hold_acks_chains(ruleset, plan);
    syn_chains(ruleset, plan);
    leg_chains(ruleset, plan);
    prerouting_chain(ruleset, plan);
    translated_chain(ruleset, plan);
    passage_chains(ruleset, plan);
    watch_chains(ruleset, plan);
    moving_chains(ruleset, plan);
}

fn dynamic_sets(ruleset: &mut Ruleset, plan: &Plan) {
    for set in DynamicSet::ALL {
        let is_used = match set {
            DynamicSet::HeldSyns | DynamicSet::SynRates | DynamicSet::FloodedDestinations(_) => {
                plan.holds()
            }
            DynamicSet::Away => plan.hold_acks.is_some(),
            DynamicSet::Watched(family) => {
                plan.measure.is_some() && plan.families.contains(&family)
            }
            DynamicSet::Auto(family) | DynamicSet::Explored(family) => {
                plan.chooses() && plan.families.contains(&family)
            }
            DynamicSet::HalfOpen(family) | DynamicSet::Ended(family) => {
                plan.families.contains(&family)
            }
            DynamicSet::Frozen(family) | DynamicSet::Coming(family) => {
                !plan.neighbors.is_empty() && plan.families.contains(&family)
            }
            DynamicSet::Moved(family, neighbor) => {
                usize::from(neighbor) < plan.neighbors.len() && plan.families.contains(&family)
            }
            _ => true,
        };
        if is_used {
            ruleset.dynamic_set(set);
        }
    }
}

fn address_sets(ruleset: &mut Ruleset, plan: &Plan) {
    for &family in &plan.families {
        let n = digit(family);
        for (index, campus) in plan.campuses.iter().enumerate() {
            let ranges: Vec<Range> = campus.of(family).copied().collect();
            ruleset.address_set(&format!("campus{n}_{index}"), family, &ranges);
        }
        let all = plan.ranges(family).into_iter().map(|(range, _)| range);
        ruleset.address_set(&format!("all{n}"), family, &joined(all));
    }
}

/// Writes the maps from the campus that a packet comes from to a chain of that campus's.
fn source_maps(ruleset: &mut Ruleset, plan: &Plan, map: &str, chain: &str) {
    for &family in &plan.families {
        let ranges = plan.ranges(family).into_iter();
        let chains: Vec<(Range, String)> = ranges
            .map(|(range, index)| (range, format!("{chain}_{index}")))
            .collect();
        ruleset.chain_map(&format!("{map}{}", digit(family)), family, &chains);
    }
}
