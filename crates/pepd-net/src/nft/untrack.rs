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
//! by which the chains that follow let it pass: a socket is looked up once. The others are first
//! SYNs (`syns`), and what belongs to a handshake or to TIME_WAIT (`half`): such sockets have no
//! mark to tell (net/netfilter/nft_socket.c). Any full socket that comes this far is another
//! program's.

use pepd_packet::MarkValue;

use super::expr::{
    ACKNOWLEDGEMENT, FIRST_SYN, FOREIGN, OF_A_SOCKET, PLAIN, STRAY_RST, begins, digit, ends,
    final_ack, forget_held, half_open, icmp, ip, is_ended, listeners, mark_is, marked, passed,
    remember, set_bits, set_mark,
};
use super::names::{DynamicSet, SYN_KEY};
use super::passage::{departures, returns};
use super::text::Ruleset;
use crate::plan::Plan;
use crate::request::{Mark, SocketMarks};

/// Writes the chains in which packets end before connection tracking.
pub(super) fn untracking_chains(ruleset: &mut Ruleset, plan: &Plan) {
    if plan.mark.sockets().is_none() {
        return;
    }
    let to_socket = set_mark(plan);
    let deliver = format!("{to_socket} notrack accept");
    let mut client = vec![format!("tcp flags & rst == 0 {deliver}")];
    client.extend(ends(plan));
    client.push(deliver);
    ruleset.chain("client", None, &client);
    ruleset.chain("upstream", None, &returns(plan, &to_socket));
    let half = [
        "socket mark >= 0 accept",
        "socket wildcard 1 accept",
        "socket transparent 1 counter name completing notrack",
        "accept",
    ];
    ruleset.chain("half_owned", None, &half.map(str::to_owned));
    let half = [
        format!("{OF_A_SOCKET} goto half_owned"),
        "accept".to_owned(),
    ];
    ruleset.chain("half", None, &half);
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
        ruleset.chain(&format!("pass{n}"), None, &pass(plan));
        legs.push(format!(
            "meta l4proto tcp {ip} saddr @all{n} {ip} daddr @all{n} goto pass{n}"
        ));
        legs.extend(
            marks.map(|_| format!("meta l4proto {} {ip} daddr @all{n} goto half", icmp(family))),
        );
    }
    ruleset.base_chain("legs", &legs);
    if let Some(marks) = marks {
        to_peers_chain(ruleset, plan, marks);
    }
}

/// Writes the chain of what the relay's sockets send, after the queues at `raw`: what a queue had no
/// room for comes here with the mark of an unclaimed leg, and what has been released from it does
/// not.
fn to_peers_chain(ruleset: &mut Ruleset, plan: &Plan, marks: SocketMarks) {
    let mut lines = vec![
        "type filter hook output priority raw + 1; policy accept;".to_owned(),
        format!(
            "meta l4proto tcp meta mark & {:#x} == {:#x} notrack",
            plan.mark.mask, marks.client
        ),
    ];
    lines.extend(
        plan.unclaimed_mark()
            .map(|mark| format!("{} drop", final_ack(mark))),
    );
    lines.push(format!("{PLAIN} accept"));
    lines.extend(is_ended(plan, marks));
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
///
/// The copies of SYNs are delivered here rather than in `legs`: a reverse-path filter of the
/// operator's (`fib`) lets pass what comes by the loopback device, but, on newer kernels, not what
/// has a socket already (nft_fib_can_skip, include/net/netfilter/nft_fib.h).
pub(super) fn translated_chain(ruleset: &mut Ruleset, plan: &Plan) {
    if plan.mark.sockets().is_none() {
        return;
    }
    let mut lines = vec![
        "type filter hook prerouting priority dstnat + 5; policy accept;".to_owned(),
        format!("{} accept", marked(plan)),
        format!(
            "iif \"lo\" {FIRST_SYN} {} goto deliver",
            mark_is(plan, plan.split_mark())
        ),
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

/// Writes the chains of first SYNs before connection tracking.
///
/// Nearly all go on, to be routed. Those that have been through the queue, or have been copied to
/// the loopback device, say by their mark what becomes of them. The third kind belongs to a
/// socket of the relay's: it repeats the SYN of a handshake that is under way, or uses the 4-tuple
/// of a connection in TIME_WAIT again, and cannot be routed, because the kernel drops what it
/// forwards if early demultiplexing has found a socket for it (ip_forward, net/ipv4/ip_forward.c).
/// It goes to the listener at once: `tproxy` knows what to do with both.
pub(super) fn syn_chains(ruleset: &mut Ruleset, plan: &Plan) {
    let listeners: Vec<String> = plan
        .families
        .iter()
        .map(|&family| format!("{} saddr vmap @source{}", ip(family), digit(family)))
        .collect();
    // Of a campus that has just gone: it must not reach this host either.
    let nobodys = "counter name no_listener drop".to_owned();
    let deliver: Vec<String> = half_open(plan, "update")
        .chain(listeners.iter().cloned())
        .chain([nobodys])
        .collect();
    ruleset.chain("deliver", None, &deliver);
    cookie_chains(ruleset, plan, listeners);
    let sockets = plan.mark.sockets();
    let untrack = sockets.map(|_| "notrack".to_owned());
    let again = ["jump admission", "goto deliver"].map(str::to_owned);
    let again: Vec<String> = untrack.into_iter().chain(again).collect();
    ruleset.chain("again", None, &again);
    let split = mark_is(plan, plan.split_mark());
    let mut syns: Vec<String> = sockets
        .map(|_| format!("iif \"lo\" {split} accept"))
        .into_iter()
        .collect();
    if plan.holds() {
        syns.extend(decided(plan));
    } else {
        syns.push(format!("{split} goto deliver"));
    }
    syns.extend([FOREIGN, "socket wildcard 1 accept"].map(str::to_owned));
    // A full socket of the relay's has had the packet already.
    syns.extend(sockets.map(|_| "socket mark >= 0 accept".to_owned()));
    // What it is acknowledged with must not reach a listener, if it is routed.
    syns.extend(half_open(plan, "delete"));
    syns.extend(begins(plan));
    syns.extend(["socket transparent 1 goto again", "accept"].map(str::to_owned));
    ruleset.chain("syns", None, &syns);
}

/// Matches first SYNs that have been through the queue, or on the way to a listener, by their mark.
fn decided(plan: &Plan) -> Vec<String> {
    let Mark { value, mask } = plan.mark;
    vec![
        // It was held, and has no mark: it is to be routed.
        format!(
            "{} {SYN_KEY} @{} meta l4proto @{} {}",
            mark_is(plan, MarkValue::NONE),
            DynamicSet::HeldSyns,
            DynamicSet::Readers,
            remember(DynamicSet::RoutedSyns)
        ),
        forget_held(),
        format!(
            "meta mark & {mask:#x} vmap {{ {:#x} : goto deliver, {value:#x} : goto unread_repeats }}",
            plan.split_mark()
        ),
    ]
}

/// Gives the rules for packets between campuses that are of no established leg.
fn pass(plan: &Plan) -> Vec<String> {
    let mut pass = vec![format!("{FIRST_SYN} goto syns")];
    if plan.holds() {
        // One that nobody has read: it must not be delivered here.
        pass.push(format!(
            "{STRAY_RST} {} {}",
            marked(plan),
            set_bits(plan, MarkValue::NONE)
        ));
    }
    pass.push(FOREIGN.to_owned());
    pass.extend(plan.families.iter().map(|&family| {
        let set = DynamicSet::HalfOpen(family);
        let key = set.key().unwrap_or_default();
        format!("{ACKNOWLEDGEMENT} {key} @{set} goto acknowledged")
    }));
    pass.push(passed(plan).to_owned());
    pass
}

/// Writes the chains of what acknowledges a SYN that was handed to a listener.
///
/// A listener whose queue is full answers with SYN cookies and forgets (tcp_conn_request,
/// net/ipv4/tcp_input.c): the client's acknowledgement is then the only trace of the connection,
/// matches no socket and would be routed to the server, which resets the client. Handed to the
/// listener, it is redeemed. Only what acknowledges a SYN that was handed to one comes here, since
/// a listener resets whatever it cannot redeem, and a SYN that is routed takes its element along.
fn cookie_chains(ruleset: &mut Ruleset, plan: &Plan, listeners: Vec<String>) {
    let known: Vec<String> = half_open(plan, "delete")
        .chain([passed(plan).to_owned()])
        .collect();
    ruleset.chain("known", None, &known);
    // The queue was not full.
    let acknowledged = ["socket transparent 1 goto known", "counter name cookies"];
    let acknowledged: Vec<String> = acknowledged
        .map(str::to_owned)
        .into_iter()
        .chain(listeners)
        .collect();
    ruleset.chain("acknowledged", None, &acknowledged);
}
