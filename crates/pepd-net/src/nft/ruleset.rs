//! The nft script of a plan.
//!
//! The path of a packet through it:
//!
//! - `legs`, before connection tracking, refuses connections straight to the listeners
//!   (`direct`), and looks at TCP between campus addresses, at ICMP to them, and at what belongs
//!   to the relay's sockets. It hands first SYNs to listeners and keeps connection tracking from
//!   seeing client legs: see the module `legs`.
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
//! Where there are tunnels, `guard` comes before all of this, and `clamp` looks at what is routed:
//! see their modules.
//!
//! "Accept" ends only this table's look at the packet: the operator's own chains see it as
//! ever, with all mark bits but pepd's untouched.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pepd_packet::MarkValue;

use super::expr::{
    address_type, comment, detours, digit, icmp, ip, joined, marked, on_hold, passed, remember,
    rule_lines, set_bits, set_mark, unsplit,
};
pub(crate) use super::tunnel_filter::{GUARD, STRANGERS};
use crate::plan::{Plan, PlannedCampus};
use crate::prefix::{Family, Range};
use crate::request::SocketMarks;

/// The table's name, in the `inet` family.
pub(crate) const TABLE: &str = "pepd";
/// The sets that hold `tcp` while the daemon is well. They are renewed in turn: while an element
/// is replaced, a packet that looks for it may find neither the old one nor the new one: it has
/// read which generation is in force just before the next one is, and the old element is gone when
/// it looks (nft_rhash_lookup, net/netfilter/nft_set_hash.c; newer kernels look again).
pub(crate) const GATES: [&str; 2] = ["gate", "second_gate"];

/// The set that holds `tcp` while the workers read what is held, be the gate open or closed. Where
/// a packet misses the element as described above, it is treated as if they did not.
pub(crate) const READERS: &str = "readers";

/// Matches what comes while the gate is closed.
const CLOSED: &str = "meta l4proto != @gate meta l4proto != @second_gate";

/// The counters, in the order in which they are listed.
const COUNTERS: [(&str, &str); 7] = [
    ("captured", "connections handed to the listener"),
    ("bypassed", "connections that a rule exempts"),
    ("gate_closed", "routed: the daemon was not there or full"),
    ("source_full", "routed: the source has its share"),
    ("repeated", "routed: it repeats a SYN that was"),
    ("no_listener", "routed: nobody listens"),
    ("refused_direct", "connections straight to the listener"),
];

/// The counters that are there only where SYNs are held.
const HOLD_COUNTERS: [(&str, &str); 3] = [
    ("detoured", "routed: the answers take another way"),
    ("held", "SYNs that wait for their destination's answer"),
    ("unread", "routed: held, but nobody read them"),
];

/// The counters of SYNs that went on unsplit, and what an operator is told about each.
pub(crate) const UNSPLIT: [(&str, &str); 7] = [
    ("bypassed", "SYNs routed: a rule exempts them"),
    (
        "gate_closed",
        "SYNs routed: the daemon was full, ending, or not well",
    ),
    ("source_full", "SYNs routed: their source has its share"),
    ("repeated", "SYNs routed: they repeat one that was"),
    ("no_listener", "SYNs routed: nobody listened"),
    ("detoured", "SYNs routed: their answers take another way"),
    ("unread", "SYNs routed: held, but nobody read them"),
];

/// A first SYN, with or without ECN (RFC 3168).
pub(super) const FIRST_SYN: &str = "tcp flags & (fin | syn | rst | ack) == syn";

/// The answer to a segment that belongs to no connection (RFC 9293, section 3.5.2).
pub(super) const STRAY_RST: &str = "tcp flags & (fin | syn | rst | ack) == rst";

/// Not for this host itself.
pub(super) const FOREIGN: &str = "fib daddr type { local, broadcast, anycast, multicast } return";

/// Sets whose elements come and go by netlink, and what type they are.
pub(crate) const DYNAMIC_SETS: [(&str, &str); 7] = [
    (GATES[0], "inet_proto"),
    (GATES[1], "inet_proto"),
    (READERS, "inet_proto"),
    (full_set(Family::V4), "ipv4_addr"),
    (full_set(Family::V6), "ipv6_addr"),
    (detour_set(Family::V4), "ipv4_addr . ipv4_addr"),
    (detour_set(Family::V6), "ipv6_addr . ipv6_addr"),
];

/// The set of a family's sources that are over their limit.
pub(crate) const fn full_set(family: Family) -> &'static str {
    match family {
        Family::V4 => "full4",
        Family::V6 => "full6",
    }
}

/// The set of a family's pairs of source and destination whose answers take another way.
pub(crate) const fn detour_set(family: Family) -> &'static str {
    match family {
        Family::V4 => "detour4",
        Family::V6 => "detour6",
    }
}

/// The SYNs that were routed, of both families, by their ports and sequence number.
pub(crate) const ROUTED: &str = "routed";

/// The SYNs that are held, in the same way.
pub(crate) const WAITING: &str = "waiting";

/// What the elements of [`ROUTED`] and [`WAITING`] are. The addresses are left out: without them no
/// two connections are alike either, since a client chooses its first sequence number at random
/// (RFC 6528), and who guesses another's gets it routed, no more.
pub(super) const SYN_KEY: &str = "tcp sport . tcp dport . tcp sequence";

/// Bounds the memory that a flood takes (some 2 MiB of the kernel's), and the time that it takes to
/// list the table. What finds no room is not remembered.
const SYNS: u32 = 16384;

/// The longest that a client waits before it sends a SYN again and has not given up (the sixth time,
/// by RFC 6298 and net.ipv4.tcp_syn_retries). Each repetition starts the time again.
const SYN_SECONDS: u32 = 64;

/// What a table passes on to the one that takes its place, so that a reload neither closes
/// the gate nor starts the counters again.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Counter to (packets, bytes).
    pub(crate) counters: BTreeMap<String, (u64, u64)>,
    /// Dynamic set to its elements, in nft syntax.
    pub(crate) elements: BTreeMap<String, Vec<String>>,
}

impl Carried {
    /// What is true whichever daemon has made the table: the clients repeat their SYNs.
    pub(crate) fn of_any_daemon(mut self) -> Carried {
        self.counters.clear();
        self.elements.retain(|set, _| set == ROUTED);
        self
    }
}

/// A script, and how many rules and elements it makes: what verification counts.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) text: String,
    /// Chain to number of rules.
    pub(crate) chains: BTreeMap<String, usize>,
    /// Set or map to number of elements; the dynamic ones are left out.
    pub(crate) sets: BTreeMap<String, usize>,
    /// The dynamic sets.
    pub(crate) dynamic: Vec<&'static str>,
}

impl Script {
    pub(crate) fn new(plan: &Plan, carried: &Carried) -> Script {
        let mut script = Script::default();
        // Adding first makes deleting succeed where there is no such table; the three
        // together replace it in one step.
        let _ = write!(
            script.text,
            "# pepd on {}\nadd table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n",
            comment(&plan.node)
        );
        script.guard_counters(plan, carried);
        if !plan.captures {
            script.address_sets(plan);
            script.guard_chains(plan);
            script.clamp_chains(plan);
            script.text.push_str("}\n");
            return script;
        }
        script.counters(&COUNTERS, carried);
        if plan.holds() {
            script.counters(&HOLD_COUNTERS, carried);
        }
        script.dynamic_sets(plan, carried);
        script.address_sets(plan);
        script.own_chain(plan);
        script.untracking_chains(plan);
        script.rule_chain(plan);
        script.admission_chain(plan);
        if let Some(marks) = plan.verdict_marks() {
            script.hold_chains(plan, marks);
        }
        for (index, campus) in plan.campuses.iter().enumerate() {
            script.campus_chain(plan, index, campus);
        }
        if plan.holds() {
            script.source_maps(plan, "origin", "from");
            script.source_maps(plan, "source", "to");
            script.first_chain(plan);
        } else {
            script.source_maps(plan, "source", "from");
        }
        if let Some(marks) = plan.verdict_marks() {
            script.fate_chains(plan);
            script.answer_chains(plan, marks);
        }
        script.leg_chains(plan);
        script.base_chains(plan);
        script.translated_chain(plan);
        script.guard_chains(plan);
        script.clamp_chains(plan);
        script.text.push_str("}\n");
        script
    }

    fn counters(&mut self, counters: &[(&str, &str)], carried: &Carried) {
        for &(name, about) in counters {
            self.counter(name, about, carried);
        }
    }

    pub(super) fn counter(&mut self, name: &str, about: &str, carried: &Carried) {
        let (packets, bytes) = carried.counters.get(name).copied().unwrap_or_default();
        let _ = write!(
            self.text,
            "\tcounter {name} {{\n\t\tcomment \"{about}\"\n\t\tpackets {packets} bytes {bytes}\n\t}}\n"
        );
    }

    fn dynamic_sets(&mut self, plan: &Plan, carried: &Carried) {
        for (name, kind) in DYNAMIC_SETS {
            let elements = carried.elements.get(name).map_or(&[][..], Vec::as_slice);
            self.declare(&format!("set {name}"), kind, "timeout", elements);
            self.dynamic.push(name);
        }
        self.syn_set(ROUTED, carried);
        if plan.holds() {
            self.syn_set(WAITING, carried);
        }
    }

    fn syn_set(&mut self, name: &'static str, carried: &Carried) {
        let _ = write!(
            self.text,
            "\tset {name} {{\n\t\ttypeof {SYN_KEY}\n\t\tflags dynamic, timeout\n\
             \t\tsize {SYNS}\n\t\ttimeout {SYN_SECONDS}s\n"
        );
        self.elements(carried.elements.get(name).map_or(&[][..], Vec::as_slice));
        self.dynamic.push(name);
    }

    fn address_sets(&mut self, plan: &Plan) {
        for &family in &plan.families {
            let n = digit(family);
            for (index, campus) in plan.campuses.iter().enumerate() {
                let ranges: Vec<String> = campus.of(family).map(Range::to_string).collect();
                self.set(&format!("campus{n}_{index}"), family, &ranges);
            }
            let all = plan.ranges(family).into_iter().map(|(range, _)| range);
            let all: Vec<String> = joined(all).iter().map(Range::to_string).collect();
            self.set(&format!("all{n}"), family, &all);
        }
    }

    pub(super) fn set(&mut self, name: &str, family: Family, elements: &[String]) {
        self.sets.insert(name.to_owned(), elements.len());
        self.declare(
            &format!("set {name}"),
            address_type(family),
            "interval",
            elements,
        );
    }

    fn source_maps(&mut self, plan: &Plan, map: &str, chain: &str) {
        for &family in &plan.families {
            let name = format!("{map}{}", digit(family));
            let elements: Vec<String> = plan
                .ranges(family)
                .iter()
                .map(|(range, index)| format!("{range} : goto {chain}_{index}"))
                .collect();
            self.sets.insert(name.clone(), elements.len());
            let kind = format!("{} : verdict", address_type(family));
            self.declare(&format!("map {name}"), &kind, "interval", &elements);
        }
    }

    fn declare(&mut self, what: &str, kind: &str, flags: &str, elements: &[String]) {
        let _ = write!(
            self.text,
            "\t{what} {{\n\t\ttype {kind}\n\t\tflags {flags}\n"
        );
        self.elements(elements);
    }

    fn elements(&mut self, elements: &[String]) {
        if !elements.is_empty() {
            let _ = write!(
                self.text,
                "\t\telements = {{\n\t\t\t{}\n\t\t}}\n",
                elements.join(",\n\t\t\t")
            );
        }
        self.text.push_str("\t}\n");
    }

    /// Packets of connections that a proxy on this box has already taken.
    fn own_chain(&mut self, plan: &Plan) {
        self.chain(
            "own",
            None,
            &[
                // Another program's wildcard listener is no reason to take a connection
                // that was never handed to it.
                "socket wildcard 1 accept".to_owned(),
                format!("socket transparent 1 {} accept", set_mark(plan)),
                // Never back to the chain that came from: that one has decided.
                "accept".to_owned(),
            ],
        );
    }

    fn rule_chain(&mut self, plan: &Plan) {
        let lines: Vec<String> = plan
            .rules
            .iter()
            .enumerate()
            .flat_map(|(index, rule)| rule_lines(plan, index, rule))
            .chain(
                plan.holds()
                    .then(|| format!("goto {}", on_hold(plan.handshake))),
            )
            .collect();
        self.chain("rules", None, &lines);
    }

    fn admission_chain(&mut self, plan: &Plan) {
        self.chain(
            "routed",
            None,
            // Where there is no room, nft goes on with the next rule.
            &[remember(ROUTED), unsplit(plan).to_owned()],
        );
        let mut lines = Vec::new();
        if plan.holds() {
            lines.extend(detours(plan));
            lines.push(format!(
                "{SYN_KEY} @{WAITING} meta l4proto @{READERS} return"
            ));
        }
        lines.push(format!("{CLOSED} counter name gate_closed goto routed"));
        for &family in &plan.families {
            lines.push(format!(
                "{} saddr @{} counter name source_full goto routed",
                ip(family),
                full_set(family),
            ));
        }
        lines.push(format!(
            "{SYN_KEY} @{ROUTED} counter name repeated goto routed"
        ));
        self.chain("admission", None, &lines);
    }

    fn campus_chain(&mut self, plan: &Plan, index: usize, campus: &PlannedCampus) {
        let mut lines: Vec<String> = plan
            .families
            .iter()
            .map(|&family| {
                format!(
                    "{} daddr @campus{}_{index} {}",
                    ip(family),
                    digit(family),
                    unsplit(plan)
                )
            })
            .collect();
        if plan.holds() {
            lines.push("goto rules".to_owned());
            self.chain(&format!("from_{index}"), Some(&campus.name), &lines);
            lines.clear();
        } else {
            lines.push("jump rules".to_owned());
            lines.push("jump admission".to_owned());
        }
        // Connection tracking is not to see it.
        let untrack = plan.mark.sockets().map_or("", |_| "notrack ");
        for &family in &plan.families {
            let (protocol, to) = match family {
                Family::V4 => ("ipv4", format!("ip to {}", campus.listener.v4)),
                Family::V6 => ("ipv6", format!("ip6 to [{}]", campus.listener.v6)),
            };
            lines.push(format!(
                "meta nfproto {protocol} meta l4proto tcp tproxy {to}:{} {} {untrack}counter name captured accept",
                plan.port,
                set_mark(plan)
            ));
        }
        if plan.holds() {
            lines.push(format!(
                "{} counter name no_listener {}",
                set_bits(plan, MarkValue::NONE),
                passed(plan)
            ));
            self.chain(&format!("to_{index}"), Some(&campus.name), &lines);
        } else {
            lines.push(format!("counter name no_listener {}", passed(plan)));
            self.chain(&format!("from_{index}"), Some(&campus.name), &lines);
        }
    }

    fn base_chains(&mut self, plan: &Plan) {
        let mut prerouting =
            vec!["type filter hook prerouting priority mangle; policy accept;".to_owned()];
        // Nearly every packet is one of a live connection, known since `legs`, and ends here.
        prerouting.push(format!("{} accept", marked(plan)));
        // Another table's chain may have set a mark of its own in between.
        prerouting.extend(plan.mark.sockets().map(|SocketMarks { client, upstream }| {
            format!(
                "meta l4proto tcp socket mark & {:#x} {{ {client:#x}, {upstream:#x} }} {} accept",
                plan.mark.mask,
                set_mark(plan)
            )
        }));
        for &family in &plan.families {
            let (ip, n) = (ip(family), digit(family));
            let mut tcp = vec![FOREIGN.to_owned()];
            if plan.holds() {
                tcp.push(format!("{FIRST_SYN} jump answer"));
            }
            tcp.push("goto own".to_owned());
            self.chain(&format!("tcp{n}"), None, &tcp);
            prerouting.push(format!(
                "meta l4proto tcp {ip} saddr @all{n} {ip} daddr @all{n} goto tcp{n}"
            ));
            // From any router on the path: only the destination is a campus address.
            prerouting.push(format!(
                "meta l4proto {} {ip} daddr @all{n} goto own",
                icmp(family)
            ));
        }
        self.base_chain("prerouting", &prerouting);
    }

    pub(super) fn base_chain(&mut self, name: &str, lines: &[String]) {
        self.chain(name, None, lines);
        // The first line is the hook, not a rule.
        self.chains
            .insert(name.to_owned(), lines.len().saturating_sub(1));
    }

    pub(super) fn chain(&mut self, name: &str, about: Option<&str>, lines: &[String]) {
        let rules = lines.iter().filter(|line| !line.starts_with('#')).count();
        self.chains.insert(name.to_owned(), rules);
        let _ = writeln!(self.text, "\tchain {name} {{");
        if let Some(about) = about {
            let _ = writeln!(self.text, "\t\tcomment \"campus {}\"", comment(about));
        }
        for line in lines {
            let _ = writeln!(self.text, "\t\t{line}");
        }
        self.text.push_str("\t}\n");
    }
}
