//! Pieces of nft's language.

use pepd_packet::MarkValue;

use super::names::{DynamicSet, GATES, HOLD_ACKS, SYN_KEY};
use crate::plan::{Addresses, Plan};
use crate::prefix::{Family, Range, union};
use crate::request::{Action, Handshake, Mark, Queues, Rule, SocketMarks};

/// A first SYN, with or without ECN (RFC 3168).
pub(super) const FIRST_SYN: &str = "tcp flags & (fin | syn | rst | ack) == syn";

/// A TCP header that is there as far as its last fixed field. No host takes a segment without, and
/// `tproxy` finds no listener for it (nft_tproxy_eval_v4, net/netfilter/nft_tproxy.c).
pub(super) const WHOLE_HEADER: &str = "tcp urgptr >= 0";

/// The answer to a segment that belongs to no connection (RFC 9293, section 3.5.2).
pub(super) const STRAY_RST: &str = "tcp flags & (fin | syn | rst | ack) == rst";

/// Neither a SYN nor a RST.
pub(super) const PLAIN: &str = "tcp flags & (syn | rst) == 0";

/// Neither a first SYN nor an answer to one.
pub(super) const NO_SYN: &str = "tcp flags & syn == 0";

/// Any RST.
const RST: &str = "tcp flags & rst == rst";

/// Matches what is for a socket of this host, of any state. Each question about a socket looks it up, and what is routed has
/// none: this one is asked before the others.
pub(super) const OF_A_SOCKET: &str = "socket transparent >= 0";

/// Lets go what is for this host itself.
pub(super) const FOREIGN: &str = "fib daddr type { local, broadcast, anycast, multicast } return";

/// The way of a packet between the ends of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// From the client to the server.
    Forth,
    /// From the server to the client.
    Back,
}

impl Way {
    /// Names the fields of the client's address, the server's address and the server's port.
    fn fields(self) -> [&'static str; 3] {
        match self {
            Way::Forth => ["saddr", "daddr", "dport"],
            Way::Back => ["daddr", "saddr", "sport"],
        }
    }
}

/// Writes a configuration rule as nft rules for a first SYN.
pub(super) fn rule_lines(plan: &Plan, index: usize, rule: &Rule) -> Vec<String> {
    let (end, about) = match rule.action {
        Action::Split => {
            let handshake = rule.handshake.unwrap_or(plan.handshake);
            (
                format!("counter goto {}", end_of_rules(plan, handshake)),
                "split",
            )
        }
        Action::Auto => {
            let handshake = rule.handshake.unwrap_or(plan.handshake);
            (
                format!("counter goto {}", choice(plan, handshake, plan.chooses())),
                "auto",
            )
        }
        Action::Bypass => ("counter counter name bypassed accept".to_owned(), "bypass"),
        Action::HoldAcks => (
            format!("counter counter name {} accept", HOLD_ACKS.0),
            "hold-acks",
        ),
    };
    let end = format!("{end} comment \"rule {}: {about}\"", index + 1);
    rule_matches(plan, rule, Way::Forth, &end)
}

/// Matches the packets that go this way of the connections that a configuration rule is about, and
/// ends in `end`: one nft rule per family where it names addresses.
pub(super) fn rule_matches(plan: &Plan, rule: &Rule, way: Way, end: &str) -> Vec<String> {
    let [client, server, port] = way.fields();
    let Some(ports) = ports(rule, port) else {
        return Vec::new();
    };
    let end = format!("{ports}{end}");
    if rule.source.is_empty() && rule.destination.is_empty() {
        return vec![end];
    }
    plan.families
        .iter()
        .filter_map(|&family| {
            let source = addresses(family, client, Addresses::of(family, &rule.source))?;
            let destination = addresses(family, server, Addresses::of(family, &rule.destination))?;
            Some(format!("{source}{destination}{end}"))
        })
        .collect()
}

/// Matches addresses; none if nothing can match it.
pub(super) fn addresses(family: Family, field: &str, addresses: Addresses) -> Option<String> {
    match addresses {
        Addresses::Any => Some(String::new()),
        Addresses::Nothing => None,
        Addresses::These(ranges) => Some(format!("{} {field} {} ", ip(family), braces(&ranges))),
    }
}

/// Reads what a packet's source is counted by.
pub(super) fn source(plan: &Plan, family: Family) -> String {
    match (family, plan.source_prefix.mask()) {
        (Family::V6, Some(mask)) => format!("ip6 saddr & {mask}"),
        (Family::V4, _) | (Family::V6, None) => format!("{} saddr", ip(family)),
    }
}

/// Matches the server's ports in a field; none if nothing can match it.
fn ports(rule: &Rule, field: &str) -> Option<String> {
    if rule.destination_port.is_empty() {
        return Some(String::new());
    }
    let mut ranges: Vec<(u16, u16)> = rule
        .destination_port
        .iter()
        .filter(|range| !range.is_empty())
        .map(|range| (*range.start(), *range.end()))
        .collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    let shown: Vec<String> = merged
        .iter()
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    (!shown.is_empty()).then(|| format!("tcp {field} {{ {} }} ", shown.join(", ")))
}

/// Gives the listeners' addresses as an anonymous set; none if there is no campus.
pub(super) fn listeners(plan: &Plan, family: Family) -> Option<String> {
    let prefixes = plan.campuses.iter().map(|campus| match family {
        Family::V4 => ipnet::IpNet::from(std::net::IpAddr::V4(campus.listener.v4)),
        Family::V6 => ipnet::IpNet::from(std::net::IpAddr::V6(campus.listener.v6)),
    });
    let ranges = union(family, prefixes);
    (!ranges.is_empty()).then(|| braces(&ranges))
}

/// Joins neighbours among ranges in ascending order.
pub(super) fn joined(ranges: impl Iterator<Item = Range>) -> Vec<Range> {
    let mut out: Vec<Range> = Vec::new();
    for range in ranges {
        match out.last_mut() {
            Some(previous) if previous.last.checked_add(1) == Some(range.first) => {
                previous.last = range.last;
            }
            _ => out.push(range),
        }
    }
    out
}

/// Writes ranges as an anonymous set.
pub(super) fn braces(ranges: &[Range]) -> String {
    let shown: Vec<String> = ranges.iter().map(Range::to_string).collect();
    format!("{{ {} }}", shown.join(", "))
}

/// Sets pepd's bits of the mark, and no others.
pub(super) fn set_mark(plan: &Plan) -> String {
    set_bits(plan, plan.mark.value)
}

/// Matches packets that are delivered here.
pub(super) fn marked(plan: &Plan) -> String {
    mark_is(plan, plan.mark.value)
}

/// Sets pepd's bits of the mark to a value.
pub(super) fn set_bits(plan: &Plan, value: MarkValue) -> String {
    format!(
        "meta mark set meta mark & {:#x} | {value:#x}",
        !plan.mark.mask
    )
}

/// Matches what comes while the gate is closed.
pub(super) fn gate_closed() -> String {
    GATES
        .map(|gate| format!("meta l4proto != @{gate}"))
        .join(" ")
}

/// Shuts the gate until the daemon renews it.
pub(super) fn shut_gate() -> String {
    GATES
        .map(|gate| format!("delete @{gate} {{ meta l4proto }}"))
        .join(" ")
}

/// Ends the chains for a packet before connection tracking sees it.
pub(super) fn passed(plan: &Plan) -> &'static str {
    match plan.mark.sockets() {
        Some(_) => "goto half",
        None => "accept",
    }
}

/// Names the chain in which the first pass of a SYN ends.
pub(super) fn end_of_rules(plan: &Plan, handshake: Handshake) -> &'static str {
    match handshake {
        Handshake::EndToEnd if plan.holds() => "hold",
        Handshake::Early | Handshake::EndToEnd => "early",
    }
}

/// Names the chain in which the first pass of a SYN ends, where it may be `chosen` by its path.
pub(super) fn choice(plan: &Plan, handshake: Handshake, chosen: bool) -> String {
    let end = end_of_rules(plan, handshake);
    match chosen {
        true => format!("choose_{end}"),
        false => end.to_owned(),
    }
}

/// Matches pepd's bits of the mark.
pub(super) fn mark_is(plan: &Plan, value: MarkValue) -> String {
    format!("meta mark & {:#x} == {value:#x}", plan.mark.mask)
}

/// Passes a packet to a queue, by the hash of both addresses, so that a SYN and those that repeat
/// it meet.
pub(super) fn queue(queues: Queues) -> String {
    match queues.count {
        0 | 1 => format!("queue num {} bypass", queues.first),
        count => format!(
            "queue num {}-{} bypass",
            queues.first,
            queues.first.last_of(count)
        ),
    }
}

/// Matches the pairs of addresses whose answers take another way.
pub(super) fn asymmetric_routes(plan: &Plan) -> impl Iterator<Item = String> {
    plan.families.iter().map(|&family| {
        let (ip, set) = (ip(family), DynamicSet::AsymmetricRoutes(family));
        format!("{ip} saddr . {ip} daddr @{set}")
    })
}

/// Matches what would end the handshake of an upstream leg without a client, which has this mark: not
/// its SYN, and not the RST that gives it up.
pub(super) fn final_ack(unclaimed: Mark) -> String {
    let Mark { value, mask } = unclaimed;
    format!("meta l4proto tcp meta mark & {mask:#x} == {value:#x} tcp flags & (syn | rst) == 0")
}

/// Remembers a SYN in a set.
pub(super) fn remember(set: DynamicSet) -> String {
    format!("update @{set} {{ {SYN_KEY} }}")
}

/// The answer to a SYN-ACK, with or without data.
pub(super) const ACKNOWLEDGEMENT: &str = "tcp flags & (syn | rst | ack) == ack";

/// Does something with the sets of handshakes that are not finished: a rule for each family.
pub(super) fn half_open(plan: &Plan, operation: &str) -> impl Iterator<Item = String> {
    plan.families.iter().map(move |&family| {
        let set = DynamicSet::HalfOpen(family);
        let key = set.key().unwrap_or_default();
        format!("{operation} @{set} {{ {key} }}")
    })
}

/// Notes, at a RST from a leg's peer, that nothing after it is this connection's: a rule for each
/// family.
pub(super) fn ends(plan: &Plan) -> impl Iterator<Item = String> {
    let whose = match plan.mark.sockets() {
        Some(marks) => format!("socket mark & {:#x} {}", plan.mark.mask, established(marks)),
        None => "socket transparent 1".to_owned(),
    };
    plan.families.iter().map(move |&family| {
        let set = DynamicSet::Ended(family);
        let key = set.key().unwrap_or_default();
        format!("{RST} {whose} update @{set} {{ {key} }}")
    })
}

/// Notes, at a RST to a leg's peer, that what still comes from there is no connection's any more.
pub(super) fn is_ended(plan: &Plan, marks: SocketMarks) -> impl Iterator<Item = String> {
    let whose = format!("meta mark & {:#x} {}", plan.mark.mask, established(marks));
    plan.families.iter().map(move |&family| {
        let (set, answers) = (DynamicSet::Ended(family), answers(family));
        format!("{RST} {whose} update @{set} {{ {answers} }}")
    })
}

/// Forgets, at a first SYN, how earlier connections with its addresses and ports ended.
pub(super) fn begins(plan: &Plan) -> impl Iterator<Item = String> {
    plan.families.iter().flat_map(|&family| {
        let set = DynamicSet::Ended(family);
        let key = set.key().unwrap_or_default();
        [key.to_owned(), answers(family)].map(|key| format!("delete @{set} {{ {key} }}"))
    })
}

/// Gives the marks of legs that both ends know of. One that has no client yet may be given up, and
/// its SYN routed.
fn established(
    SocketMarks {
        client, upstream, ..
    }: SocketMarks,
) -> String {
    format!("{{ {client:#x}, {upstream:#x} }}")
}

/// Gives the key of what answers a packet in a set of connections.
fn answers(family: Family) -> String {
    let ip = ip(family);
    format!("{ip} daddr . {ip} saddr . tcp dport . tcp sport")
}

/// Notes that a SYN is not held any more.
pub(super) fn forget_held() -> String {
    format!("delete @{} {{ {SYN_KEY} }}", DynamicSet::HeldSyns)
}

/// Names a family's ICMP as a protocol.
pub(super) fn icmp(family: Family) -> &'static str {
    match family {
        Family::V4 => "icmp",
        Family::V6 => "icmpv6",
    }
}

/// Makes text safe within an nft string or after a `#`: names may contain anything, and
/// nft has no escapes. Cut to what a kernel comment holds (128 bytes with nft's framing).
pub(super) fn comment(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '"' | '\\' => '_',
            c if c.is_ascii_graphic() || c == ' ' => c,
            _ => '_',
        })
        .take(64)
        .collect()
}

/// Names a family as the keyword of its header.
pub(super) fn ip(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// Gives the digit by which the names of sets and chains distinguish the families.
pub(super) fn digit(family: Family) -> char {
    match family {
        Family::V4 => '4',
        Family::V6 => '6',
    }
}

/// Names the type of a family's addresses.
pub(super) fn address_type(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4_addr",
        Family::V6 => "ipv6_addr",
    }
}
