//! What connection tracking sees of a split connection: its upstream leg and nothing else.
//!
//! Both legs have the same addresses and ports. Tracked, they would be one connection, which
//! address translation cannot make sense of. So packets of client legs are not tracked, neither
//! those that come (`legs`) nor those that go (`to_peers`). The upstream leg is then a connection
//! that this host opens, and is translated like any other: `masquerade` and `snat` apply to it, and
//! `translated` finds the socket for what comes back once the addresses are the client's and the
//! server's again.
//!
//! In `legs` a packet of an established leg is known by its socket's mark, and gets the packet mark
//! by which the chains that follow let it pass: a socket is looked up once. The others are SYNs,
//! which `pass4`/`pass6` hand to the listener, and what belongs to a handshake or to TIME_WAIT
//! (`half`): such sockets have no mark to tell (net/netfilter/nft_socket.c). Any full socket that
//! comes this far is another program's.

use pepd_packet::MarkValue;

use super::expr::{
    FIRST_SYN, FOREIGN, STRAY_RST, digit, final_ack, forget_held, icmp, ip, listeners, marked,
    passed, set_mark,
};
use super::passage::{departures, returns};
use super::text::Ruleset;
use crate::plan::Plan;
use crate::request::{Mark, SocketMarks, VerdictMarks};

/// Writes the chains in which packets end before connection tracking.
pub(super) fn untracking_chains(ruleset: &mut Ruleset, plan: &Plan) {
    if plan.mark.sockets().is_none() {
        return;
    }
    let to_socket = set_mark(plan);
    ruleset.chain("client", None, &[format!("{to_socket} notrack accept")]);
    ruleset.chain("upstream", None, &returns(plan, &to_socket));
    let half = [
        "socket mark >= 0 accept",
        "socket wildcard 1 accept",
        "socket transparent 1 counter name completing notrack",
        "accept",
    ];
    ruleset.chain("half", None, &half.map(str::to_owned));
}

/// Writes the chains before connection tracking, and after the operator's chains at `raw`.
pub(super) fn leg_chains(ruleset: &mut Ruleset, plan: &Plan) {
    let marks = plan.mark.sockets();
    direct_chain(ruleset, plan);
    let mut legs = vec![
        "type filter hook prerouting priority raw + 1; policy accept;".to_owned(),
        // By its mark, the listener's socket would be a leg.
        format!("tcp dport {} jump direct", plan.port),
    ];
    if let Some(SocketMarks {
        client, upstream, ..
    }) = marks
    {
        let unclaimed = plan
            .unclaimed_mark()
            .map_or_else(String::new, |Mark { value, .. }| {
                format!(", {value:#x} : goto upstream")
            });
        // TCP by itself: a comparison costs less than a set.
        legs.extend(["tcp", "{ icmp, icmpv6 }"].map(|protocol| {
            format!(
                "meta l4proto {protocol} socket mark & {:#x} \
                 vmap {{ {client:#x} : goto client, {upstream:#x} : goto upstream{unclaimed} }}",
                plan.mark.mask
            )
        }));
    }
    for &family in &plan.families {
        let (ip, n) = (ip(family), digit(family));
        let pass = match plan.verdict_marks() {
            Some(marks) => decided(plan, marks),
            None => vec![
                FOREIGN.to_owned(),
                format!("{FIRST_SYN} {ip} saddr vmap @source{n}"),
            ],
        };
        let pass: Vec<String> = pass.into_iter().chain([passed(plan).to_owned()]).collect();
        ruleset.chain(&format!("pass{n}"), None, &pass);
        legs.push(format!(
            "meta l4proto tcp {ip} saddr @all{n} {ip} daddr @all{n} goto pass{n}"
        ));
        legs.extend(
            marks.map(|_| format!("meta l4proto {} {ip} daddr @all{n} goto half", icmp(family))),
        );
    }
    ruleset.base_chain("legs", &legs);
    if let Some(SocketMarks { client, .. }) = marks {
        to_peers_chain(ruleset, plan, client);
    }
}

/// Writes the chain of what the relay's sockets send, after the queues at `raw`: what a queue had no
/// room for comes here with the mark of an unclaimed leg, and what has been released from it does
/// not.
fn to_peers_chain(ruleset: &mut Ruleset, plan: &Plan, client: MarkValue) {
    let mut lines = vec![
        "type filter hook output priority raw + 1; policy accept;".to_owned(),
        format!(
            "meta l4proto tcp meta mark & {:#x} == {client:#x} notrack",
            plan.mark.mask
        ),
    ];
    lines.extend(
        plan.unclaimed_mark()
            .map(|mark| format!("{} drop", final_ack(mark))),
    );
    lines.extend(departures(plan, "answering", "dialing"));
    ruleset.base_chain("to_peers", &lines);
}

/// Writes the chain by which nobody connects to the listeners themselves. Here rather than in
/// `input`, because a base chain costs every packet more than a rule does.
fn direct_chain(ruleset: &mut Ruleset, plan: &Plan) {
    let refused = "counter name refused_direct reject with tcp reset";
    let lines: Vec<String> = plan
        .families
        .iter()
        .filter_map(|&family| {
            let listeners = listeners(plan, family)?;
            Some(format!(
                "meta l4proto tcp {} daddr {listeners} {refused}",
                ip(family)
            ))
        })
        .collect();
    ruleset.chain("direct", None, &lines);
}

/// Writes the chain that comes after the addresses of what comes back have been translated.
pub(super) fn translated_chain(ruleset: &mut Ruleset, plan: &Plan) {
    if plan.mark.sockets().is_none() {
        return;
    }
    let mut lines = vec![
        "type filter hook prerouting priority dstnat + 5; policy accept;".to_owned(),
        format!("{} accept", marked(plan)),
    ];
    for &family in &plan.families {
        let (ip, n) = (ip(family), digit(family));
        lines.push(format!(
            "meta l4proto tcp {ip} saddr @all{n} {ip} daddr @all{n} goto own"
        ));
        lines.push(format!(
            "meta l4proto {} {ip} daddr @all{n} goto own",
            icmp(family)
        ));
    }
    ruleset.base_chain("translated", &lines);
}

/// Matches what has been through the queue, by its mark. None of it may keep the mark of what
/// waits: it would be delivered here.
fn decided(plan: &Plan, marks: VerdictMarks) -> Vec<String> {
    let Mark { value, mask } = plan.mark;
    vec![
        format!("{FIRST_SYN} {}", forget_held()),
        format!(
            "{FIRST_SYN} meta mark & {mask:#x} vmap {{ {:#x} : goto deliver, {value:#x} : goto unread }}",
            marks.split
        ),
        format!("{STRAY_RST} meta mark & {mask:#x} == {value:#x} goto unread"),
        FOREIGN.to_owned(),
    ]
}
