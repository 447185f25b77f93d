//! What a chain of the operator's does with a packet of a split connection, judged by its rules as
//! nft lists them, without sending anything.
//!
//! A rule matches for sure, not at all, or perhaps: what is known of the packet is its family, that
//! it is TCP, pepd's bits of its mark, what connection tracking thinks of it, and that it does not
//! come by `lo`; addresses, ports and devices may be any. An expression that is not understood
//! matches perhaps. So "drops" and "passes" are true of every such packet, and everything else is
//! "may drop".

use std::collections::HashMap;

use serde_json::Value;

use crate::prefix::Family;
use crate::request::Mark;

/// The most rules that are looked at for one packet; beyond them nothing is known for sure.
const MOST_RULES: usize = 20_000;

/// The most jumps within one another that the kernel takes (NFT_JUMP_STACK_SIZE).
const DEEPEST: usize = 16;

/// What is known of a packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packet {
    pub(super) family: Family,
    /// Its mark; only the bits of its mask are known.
    pub(super) mark: Mark,
    /// What `ct state` says; none if that is not known.
    pub(super) state: Option<&'static str>,
}

/// What becomes of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It passes, whatever its addresses and ports are.
    Passes,
    /// It may be dropped there.
    MayDrop(By),
    /// It is dropped there, whatever its addresses and ports are.
    Drops(By),
}

/// What drops a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum By {
    /// The policy of the base chain.
    Policy,
    /// A rule, by its chain and handle.
    Rule(String, u64),
}

/// The rules of a table, as nft lists them, by the chain that they are in: each jump looks one up, and
/// a ruleset may have thousands of both.
pub(super) struct Rules<'a>(HashMap<&'a str, Vec<&'a Value>>);

impl<'a> Rules<'a> {
    pub(super) fn of(rules: impl IntoIterator<Item = &'a Value>) -> Self {
        let mut of_chain: HashMap<&str, Vec<&Value>> = HashMap::new();
        for rule in rules {
            of_chain.entry(text(rule, "chain")).or_default().push(rule);
        }
        Self(of_chain)
    }
}

/// Judges what the base chain `name`, with its policy, does with a packet; `rules` are those of its
/// table.
pub(super) fn judge(rules: &Rules<'_>, name: &str, drops: bool, packet: Packet) -> Judgement {
    let mut walk = Walk {
        rules,
        packet,
        looked_at: 0,
        may_pass: false,
        may_drop: None,
    };
    let end = match walk.chain(name, 0, true) {
        Next::End(end) => end,
        Next::On if drops => End::Dropped(By::Policy),
        Next::On => End::Passed,
    };
    match (end, walk.may_drop) {
        // Whichever drops it: none that may match before lets it pass.
        (End::Dropped(by), _) if !walk.may_pass => Judgement::Drops(by),
        (End::Dropped(_) | End::Passed, Some(by)) | (End::Dropped(by), None) => {
            Judgement::MayDrop(by)
        }
        (End::Passed, None) => Judgement::Passes,
    }
}

struct Walk<'a> {
    rules: &'a Rules<'a>,
    packet: Packet,
    looked_at: usize,
    /// Whether a rule that matches perhaps lets it pass.
    may_pass: bool,
    /// The first rule that matches perhaps and drops it.
    may_drop: Option<By>,
}

/// Where a packet goes after a rule or a chain.
enum Next {
    On,
    End(End),
}

enum End {
    Passed,
    Dropped(By),
}

/// Where a packet goes after one verdict.
enum Taken {
    NextRule,
    /// The chain ends for sure.
    Return,
    End(End),
}

/// Whether a rule's conditions hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Yes,
    No,
    Perhaps,
}

impl Holds {
    fn of(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }

    fn not(self) -> Self {
        match self {
            Self::Yes => Self::No,
            Self::No => Self::Yes,
            Self::Perhaps => Self::Perhaps,
        }
    }
}

impl<'a> Walk<'a> {
    /// Walks through a chain; `sure`: the packet comes to it for sure.
    fn chain(&mut self, name: &str, depth: usize, mut sure: bool) -> Next {
        if depth > DEEPEST {
            self.may_pass = true;
            return Next::On;
        }
        for &rule in self.rules.0.get(name).into_iter().flatten() {
            self.looked_at += 1;
            if self.looked_at > MOST_RULES {
                self.may_pass = true;
                return Next::On;
            }
            match self.rule(rule, depth, &mut sure) {
                Taken::NextRule => {}
                Taken::Return => return Next::On,
                Taken::End(end) => return Next::End(end),
            }
        }
        Next::On
    }

    fn rule(&mut self, rule: &'a Value, depth: usize, sure: &mut bool) -> Taken {
        let statements = rule.get("expr").and_then(Value::as_array);
        let mut certain = *sure;
        for statement in statements.into_iter().flatten() {
            let Some((kind, body)) = statement
                .as_object()
                .and_then(|object| object.iter().next())
            else {
                continue;
            };
            match kind.as_str() {
                "match" => match self.holds(body) {
                    Holds::Yes => {}
                    Holds::No => return Taken::NextRule,
                    Holds::Perhaps => certain = false,
                },
                "vmap" => return self.map(rule, body, depth, certain, sure),
                "accept" | "drop" | "reject" | "jump" | "goto" | "return" | "queue" => {
                    return self.verdict(rule, kind, body, depth, certain, sure);
                }
                // Statements that every packet passes on to the next.
                "counter" | "log" | "mangle" | "notrack" | "set" | "map" | "comment" => {}
                // iptables' own matches, limits, and whatever nft may have yet.
                _ => certain = false,
            }
        }
        Taken::NextRule
    }

    fn verdict(
        &mut self,
        rule: &'a Value,
        kind: &str,
        body: &Value,
        depth: usize,
        certain: bool,
        sure: &mut bool,
    ) -> Taken {
        match kind {
            "accept" if certain => Taken::End(End::Passed),
            "drop" | "reject" if certain => Taken::End(End::Dropped(by(rule))),
            "drop" | "reject" => {
                self.may_drop.get_or_insert_with(|| by(rule));
                Taken::NextRule
            }
            "jump" | "goto" => {
                let target = text(body, "target").to_owned();
                match self.chain(&target, depth + 1, certain) {
                    Next::End(end) => Taken::End(end),
                    Next::On if kind == "goto" && certain => Taken::Return,
                    Next::On => {
                        // A `goto` that is taken perhaps skips the rest of this chain perhaps.
                        *sure &= kind == "jump";
                        Taken::NextRule
                    }
                }
            }
            "return" if certain => Taken::Return,
            "return" => {
                *sure = false;
                Taken::NextRule
            }
            // To user space, which lets it pass or not; or `accept`, perhaps.
            _ => {
                self.may_pass = true;
                Taken::NextRule
            }
        }
    }

    /// A verdict map. Only that of `ct state` is known to be looked up.
    fn map(
        &mut self,
        rule: &'a Value,
        body: &'a Value,
        depth: usize,
        certain: bool,
        sure: &mut bool,
    ) -> Taken {
        let key = body.get("key");
        let by_state = key.and_then(|key| key.get("ct")).map(|ct| text(ct, "key")) == Some("state");
        let state = self.packet.state.filter(|_| by_state);
        let Some(elements) = body.pointer("/data/set").and_then(Value::as_array) else {
            // A map with a name, whose elements are not looked at.
            self.may_pass = true;
            return Taken::NextRule;
        };
        for element in elements {
            let (Some(value), Some(verdict)) = (element.get(0), element.get(1)) else {
                continue;
            };
            let Some((kind, target)) = verdict.as_object().and_then(|object| object.iter().next())
            else {
                continue;
            };
            match state {
                Some(state) if contains(value, state) => {
                    return self.verdict(rule, kind, target, depth, certain, sure);
                }
                Some(_) => {}
                None => {
                    // Each of them perhaps: none ends the walk.
                    let _ = self.verdict(rule, kind, target, depth, false, sure);
                }
            }
        }
        Taken::NextRule
    }

    /// Judges one comparison.
    fn holds(&self, comparison: &Value) -> Holds {
        let (Some(left), Some(right)) = (comparison.get("left"), comparison.get("right")) else {
            return Holds::Perhaps;
        };
        let equal = match (left.get("meta"), left.get("ct"), left.get("payload")) {
            (Some(meta), _, _) => self.meta(text(meta, "key"), right),
            (_, Some(ct), _) if text(ct, "key") == "state" => match self.packet.state {
                Some(state) => Holds::of(contains(right, state)),
                None => Holds::Perhaps,
            },
            (_, _, Some(payload)) => self.payload(payload, right),
            _ => self.masked(left, right),
        };
        match text(comparison, "op") {
            "!=" => equal.not(),
            "==" | "in" => equal,
            _ => Holds::Perhaps,
        }
    }

    fn meta(&self, key: &str, right: &Value) -> Holds {
        match key {
            "nfproto" => Holds::of(contains(right, self.nfproto())),
            "l4proto" => Holds::of(contains(right, "tcp")),
            // What goes between hosts never comes or leaves by it.
            "iif" | "iifname" | "oif" | "oifname" if right.as_str() == Some("lo") => Holds::No,
            "mark" => match right.as_u64() {
                Some(mark) if mark & self.mask() != self.mark() => Holds::No,
                _ => Holds::Perhaps,
            },
            _ => Holds::Perhaps,
        }
    }

    fn payload(&self, payload: &Value, right: &Value) -> Holds {
        match (text(payload, "protocol"), text(payload, "field")) {
            ("ip", "protocol") | ("ip6", "nexthdr") if !contains(right, "tcp") => Holds::No,
            ("ip", _) if self.packet.family == Family::V6 => Holds::No,
            ("ip6", _) if self.packet.family == Family::V4 => Holds::No,
            ("tcp" | "th" | "ip" | "ip6", _) => Holds::Perhaps,
            (
                "udp" | "udplite" | "icmp" | "icmpv6" | "igmp" | "sctp" | "dccp" | "ah" | "esp",
                _,
            ) => Holds::No,
            _ => Holds::Perhaps,
        }
    }

    /// Judges `meta mark & MASK`.
    fn masked(&self, left: &Value, right: &Value) -> Holds {
        let operands = left.get("&").and_then(Value::as_array);
        let Some([field, mask]) = operands.map(Vec::as_slice) else {
            return Holds::Perhaps;
        };
        let is_mark = field.get("meta").map(|meta| text(meta, "key")) == Some("mark");
        match (mask.as_u64(), right.as_u64()) {
            (Some(mask), Some(value)) if is_mark && mask & !self.mask() == 0 => {
                Holds::of(self.mark() & mask == value)
            }
            _ => Holds::Perhaps,
        }
    }

    fn nfproto(&self) -> &'static str {
        match self.packet.family {
            Family::V4 => "ipv4",
            Family::V6 => "ipv6",
        }
    }

    fn mask(&self) -> u64 {
        self.packet.mark.mask.0.into()
    }

    fn mark(&self) -> u64 {
        self.packet.mark.value.0.into()
    }
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Returns whether a value, or a set or list of them, names `word`.
fn contains(value: &Value, word: &str) -> bool {
    match value {
        Value::String(text) => text == word,
        Value::Array(values) => values.iter().any(|value| contains(value, word)),
        Value::Object(object) => object.get("set").is_some_and(|set| contains(set, word)),
        // Protocols may be numbers.
        Value::Number(number) => word == "tcp" && number.as_u64() == Some(6),
        _ => false,
    }
}

fn by(rule: &Value) -> By {
    let handle = rule.get("handle").and_then(Value::as_u64);
    By::Rule(text(rule, "chain").to_owned(), handle.unwrap_or_default())
}
