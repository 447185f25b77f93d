//! The tunnel filter: what may come out of a tunnel. Operators see it as the chain `guard`.
//!
//! The tunnel device itself takes packets only from the peer's address. Of what is in them the
//! guard lets through, before anything else looks at it,
//!
//! - what goes from a campus that is reached through this peer (or left to a routing daemon) to
//!   a campus of the file;
//! - ICMP errors, from any router, about packets *to* a campus reached through this peer: the
//!   address in question is in the packet that the error quotes;
//! - echo requests and answers of the peer itself, and of its address inside the tunnel.
//!
//! The rest is dropped and counted, but for the link-local chatter that the kernel itself starts on
//! an interface with IPv6. Where the way to a campus is left to a routing daemon, that daemon's own
//! packets pass, too.
//!
//! Whoever can send packets with the peer's address can send all of this. The outer packets of a
//! peer with `reverse_path_filter` are therefore taken only from the interface that this host's
//! route to it leads out of; what comes another way is dropped before the device sees it.
//!
//! That a peer cannot be reached, or that a packet's time was over on the way to it, anybody can say of a tunnel over
//! IPv4: nothing in such an ICMP error is a secret. For each that it gets the kernel fails a packet, and with it a
//! connection that is being established (`err_count`, net/ipv4/ipip.c, net/ipv6/sit.c). So they are dropped;
//! that a packet is too big is not, since who sends has to know. Over IPv6 the kernel passes such an error on to whoever
//! sent what it quotes, who can tell by the number in it.
//!
//! Packets of IP in IP that come to a tunnel's end from no peer are counted only: pepd's tunnels
//! do not take them, and the operator may have tunnels of the same kind. The kernel refuses what
//! no tunnel takes.

use std::net::IpAddr;

use ipnet::IpNet;

use super::expr::{braces, digit, icmp, ip, joined};
use super::names::{GUARD, STRANGERS, UNREACHABLE};
use super::text::Ruleset;
use crate::plan::Plan;
use crate::prefix::{Family, Range};
use crate::request::{Peer, Via};

/// Protocol numbers: IPv4 and IPv6 in another packet.
const IN_IP: &str = "meta l4proto { 4, 41 }";

/// OSPF; BGP; BFD, RIP, RIPng and Babel.
const ROUTING_PROTOCOLS: [&str; 4] = [
    "meta l4proto 89",
    "tcp dport 179",
    "tcp sport 179",
    "udp dport { 520, 521, 3784, 4784, 6696 }",
];

/// Writes the counters of what the guards drop.
pub(super) fn filter_counters(ruleset: &mut Ruleset, plan: &Plan) {
    if plan.tunnels.is_empty() {
        return;
    }
    let about = "IP in IP from no peer";
    ruleset.counter(STRANGERS, about);
    for peer in &plan.request.peers {
        let about = "dropped: not the peer's own, or not from behind it";
        ruleset.counter(&format!("{GUARD}{}", peer.name), about);
        if peer.remote.is_ipv4() {
            let about = "dropped: somebody says that the peer cannot be reached";
            ruleset.counter(&format!("{UNREACHABLE}{}", peer.name), about);
        }
    }
}

/// Writes the guard of each tunnel, and the chain that leads to them.
pub(super) fn filter_chains(ruleset: &mut Ruleset, plan: &Plan) {
    if plan.tunnels.is_empty() {
        return;
    }
    let mut verdicts = Vec::new();
    for (index, tunnel) in plan.tunnels.iter().enumerate() {
        for &family in &plan.families {
            let ranges = joined(plan.through(family, index).into_iter());
            ruleset.address_set(&through(family, index), family, &ranges);
        }
        let lines = guard(plan, index);
        ruleset.chain(&format!("guard_{index}"), None, &lines);
        verdicts.push(format!("\"{}\" : goto guard_{index}", tunnel.device));
    }
    let mut lines = vec!["type filter hook prerouting priority raw - 2; policy accept;".to_owned()];
    lines.extend(
        Family::ALL
            .iter()
            .filter_map(|&family| strangers(plan, family)),
    );
    lines.extend(Family::ALL.iter().flat_map(|&family| forged(plan, family)));
    lines.extend(plan.request.peers.iter().filter_map(unreachable));
    lines.push(format!("iifname vmap {{ {} }}", verdicts.join(", ")));
    ruleset.base_chain("guard", &lines);
}

fn through(family: Family, peer: usize) -> String {
    format!("through{}_{peer}", digit(family))
}

fn guard(plan: &Plan, index: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for &family in &plan.families {
        let (ip, n) = (ip(family), digit(family));
        lines.push(format!(
            "{ip} saddr @{} {ip} daddr @all{n} accept",
            through(family, index)
        ));
        lines.extend(errors(plan, family, index));
    }
    let Some(peer) = plan.request.peers.get(index) else {
        return lines;
    };
    let family = Family::of(peer.remote);
    lines.push(format!(
        "{} saddr {} {} type {{ echo-request, echo-reply }} accept",
        ip(family),
        peer.remote,
        icmp(family)
    ));
    for net in peer.inside.iter().map(IpNet::trunc) {
        let family = Family::of(net.addr());
        lines.push(format!(
            "{} saddr {net} {} type {{ echo-request, echo-reply }} accept",
            ip(family),
            icmp(family)
        ));
    }
    if plan
        .campuses
        .iter()
        .any(|campus| campus.via == Via::Routing)
    {
        lines.extend(
            ROUTING_PROTOCOLS
                .iter()
                .map(|what| format!("fib daddr type {{ local, multicast }} {what} accept")),
        );
        lines.push("ip6 saddr fe80::/10 accept".to_owned());
    }
    lines.push("ip6 saddr { ::, fe80::/10 } drop".to_owned());
    lines.push(format!("counter name \"{GUARD}{}\" drop", peer.name));
    lines
}

/// Returns the rule for ICMP errors about packets to what is behind the tunnel; none if nothing is.
fn errors(plan: &Plan, family: Family, index: usize) -> Option<String> {
    let ranges = joined(plan.through(family, index).into_iter());
    if ranges.is_empty() {
        return None;
    }
    // After the eight bytes of the ICMP header comes the packet in question (RFC 792, RFC 4443).
    let (types, destination) = match family {
        Family::V4 => (
            "destination-unreachable, time-exceeded, parameter-problem",
            "@th,192,32",
        ),
        Family::V6 => (
            "destination-unreachable, packet-too-big, time-exceeded, parameter-problem",
            "@th,256,128",
        ),
    };
    let quoted: Vec<String> = ranges
        .iter()
        .map(|range| match range.first == range.last {
            true => format!("{:#x}", range.first),
            false => format!("{:#x}-{:#x}", range.first, range.last),
        })
        .collect();
    let everything = ranges == [Range::from(family.everything())];
    let about = match everything {
        true => String::new(),
        false => format!("{destination} {{ {} }} ", quoted.join(", ")),
    };
    Some(format!(
        "{ip} daddr @all{n} {} type {{ {types} }} {about}accept",
        icmp(family),
        ip = ip(family),
        n = digit(family),
    ))
}

/// Drops what has a peer's address but comes from elsewhere.
fn forged(plan: &Plan, family: Family) -> impl Iterator<Item = String> {
    let ip = ip(family);
    let filtered = plan
        .request
        .peers
        .iter()
        .filter(move |peer| peer.reverse_path_filter && Family::of(peer.remote) == family);
    filtered.map(move |peer| {
        format!(
            "{IN_IP} {ip} saddr {} {ip} daddr {} fib saddr . iif oif missing \
             counter name \"{GUARD}{}\" drop",
            peer.remote, peer.local, peer.name
        )
    })
}

/// Drops what says that a peer cannot be reached; none if it is reached over IPv6.
fn unreachable(peer: &Peer) -> Option<String> {
    let (IpAddr::V4(local), IpAddr::V4(remote)) = (peer.local, peer.remote) else {
        return None;
    };
    // The header of the packet in question comes after eight bytes (RFC 792): its protocol, its destination.
    Some(format!(
        "ip daddr {local} icmp type {{ destination-unreachable, time-exceeded }} icmp code != frag-needed \
         @th,136,8 {{ 4, 41 }} @th,192,32 {:#x} counter name \"{UNREACHABLE}{}\" drop",
        remote.to_bits(),
        peer.name
    ))
}

/// Counts what comes to a tunnel's end from no peer; none if no tunnel has this outer family.
fn strangers(plan: &Plan, family: Family) -> Option<String> {
    let ends: Vec<_> = plan
        .tunnels
        .iter()
        .filter(|tunnel| Family::of(tunnel.local) == family)
        .collect();
    if ends.is_empty() {
        return None;
    }
    let locals = ends.iter().map(|tunnel| tunnel.local.into());
    let locals = crate::prefix::union(family, locals);
    let pairs: Vec<String> = ends
        .iter()
        .map(|tunnel| format!("{} . {}", tunnel.remote, tunnel.local))
        .collect();
    let ip = ip(family);
    Some(format!(
        "{ip} daddr {} {IN_IP} {ip} saddr . {ip} daddr != {{ {} }} counter name {STRANGERS}",
        braces(&locals),
        pairs.join(", ")
    ))
}
