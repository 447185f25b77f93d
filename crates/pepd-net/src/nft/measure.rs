//! The chains by which it is measured what splitting is worth: see [`super::ruleset`].
//!
//! Of the connections that would be split a share is routed instead, by a hash of the addresses and ports: a
//! SYN that is sent again has the same, and so have all segments of its connection, without a set in
//! which they would have to be. As many others are watched with them. The seed is the same on every box: in
//! a chain of boxes that measure, the same connections are routed by all.
//!
//! The headers of what is watched go to the daemon by NFLOG, while the packets go on: of split connections
//! those of the client's side only, which `input` receives from the client and `output` sends to it. (The other
//! leg has the same addresses, but goes the other ways.) All SYNs, FINs and RSTs, and so many others that
//! short transfers are seen whole and long ones to a twentieth of a second.

use super::expr::{FIRST_SYN, digit, ip};
use super::names::{AUTO, DynamicSet, MEASURED, WATCHED_ROUTED, WATCHED_SPLIT};
use super::text::Ruleset;
use crate::plan::Plan;
use crate::prefix::Family;
use crate::request::{Measure, PerMyriad};

/// The first hash of connections that are split and watched.
const COMPARED: u16 = PerMyriad::WHOLE.0 / 2;

/// How many of the hashes are routed, and how many split and watched, between campuses of which it is being
/// found out what splitting is worth.
const EXPLORED: u16 = PerMyriad::WHOLE.0 / 4;

/// What a connection's hash begins with: any number.
const SEED: &str = "0x70657064";

/// After the SYNs that are split have left, and those that are routed are known.
const WATCHED: i32 = super::forward::ROUTED + 1;

/// After everything that may still drop it.
const LAST: i32 = i32::MAX - 1;

/// The first segments of each direction of a connection that are passed on, and those that are later.
const LIMIT: &str = "limit rate 20/second burst 64 packets";

/// The first SYNs of each kind that are passed on, so that those of a flood, for which nobody will answer, neither
/// keep the daemon busy nor take all the room for connections that are watched.
const SYN_LIMIT: &str = "limit rate 120/second burst 120 packets";

/// The segments of all connections of a family that are passed on by one rule.
const ALL_LIMIT: &str = "limit rate 4000/second burst 4000 packets";

/// The two ways of a segment within its connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Client,
    Server,
}

impl From {
    /// Names it, in the names of chains.
    fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// Asks whether a connection is measured that would be split.
pub(super) fn is_measured(plan: &Plan) -> Option<String> {
    plan.measure.map(|_| "jump measured".to_owned())
}

/// Writes the chain that decides on a first SYN.
pub(super) fn measure_chains(ruleset: &mut Ruleset, plan: &Plan) {
    let Some(measure) = plan.measure else { return };
    let routed = [
        format!("{SYN_LIMIT} {}", log(measure, Some(WATCHED_ROUTED))),
        format!("counter name {} goto routed", MEASURED.0),
    ];
    let split = format!("{SYN_LIMIT} {}", log(measure, Some(WATCHED_SPLIT)));
    ruleset.chain("unsplit", None, &routed);
    ruleset.chain("compared", None, &[split]);
    let lines: Vec<String> = plan
        .families
        .iter()
        .map(|&family| {
            format!(
                "meta nfproto ipv{} {} vmap {{ {} : goto unsplit, {} : goto compared }}",
                digit(family),
                hash(family, From::Client),
                share(part(measure), Arm::Unsplit),
                share(part(measure), Arm::Split),
            )
        })
        .collect();
    ruleset.chain("measured", None, &lines);
}

/// Writes the chains of SYNs that are routed where splitting does not pay on their path, and else go on to be
/// split. What is measured in any case is not asked: it would not be chosen at random any more. Where it is being
/// found out, half of all are measured.
pub(super) fn choice_chains(ruleset: &mut Ruleset, plan: &Plan) {
    let Some(measure) = plan.measure.filter(|_| plan.chooses()) else {
        return;
    };
    let mut lines = Vec::new();
    for &family in &plan.families {
        let (ip, n) = (ip(family), digit(family));
        let hash = hash(family, From::Client);
        let [measured, explored] = [part(measure), EXPLORED]
            .map(|part| [Arm::Unsplit, Arm::Split].map(|arm| share(part, arm)));
        // What is measured in any case is the next chain's.
        lines.push(format!(
            "meta nfproto ipv{n} {hash} {{ {} }} return",
            measured.join(", ")
        ));
        let [unsplit, split] = explored;
        lines.push(format!(
            "{ip} saddr . {ip} daddr @{} {hash} vmap {{ {unsplit} : goto unsplit, {split} : goto compared }}",
            DynamicSet::Explored(family)
        ));
        lines.push(format!(
            "{ip} saddr . {ip} daddr @{} counter name {} goto routed",
            DynamicSet::Auto(family),
            AUTO.0
        ));
    }
    ruleset.chain("choose", None, &lines);
    for end in ["early", "hold"] {
        if end == "early" || plan.holds() {
            // First, so that what is not split for another reason is not said to be for this one.
            let lines = [
                "jump admission".to_owned(),
                "jump choose".to_owned(),
                format!("goto {end}"),
            ];
            ruleset.chain(&format!("choose_{end}"), None, &lines);
        }
    }
}

/// Writes the chains that pass on the headers of what is watched.
pub(super) fn watch_chains(ruleset: &mut Ruleset, plan: &Plan) {
    let Some(measure) = plan.measure else { return };
    let log = log(measure, None);
    for &family in &plan.families {
        let set = DynamicSet::Watched(family);
        let key = set.key().unwrap_or_default();
        ruleset.chain(
            &format!("watch{}", digit(family)),
            None,
            &[
                // It was passed on when it was decided on.
                format!("{FIRST_SYN} accept"),
                format!("tcp flags & (fin | syn | rst) != 0 {ALL_LIMIT} {log} accept"),
                format!("update @{set} {{ {key} {LIMIT} }} {ALL_LIMIT} {log} accept"),
            ],
        );
    }
    let hooks = [
        (
            "watch_routed",
            "forward",
            WATCHED,
            Arm::Unsplit,
            &[From::Client, From::Server][..],
        ),
        ("watch_received", "input", LAST, Arm::Split, &[From::Client]),
        ("watch_sent", "output", LAST, Arm::Split, &[From::Server]),
    ];
    for (name, hook, priority, arm, from) in hooks {
        let mut lines = vec![format!(
            "type filter hook {hook} priority {priority}; policy accept;"
        )];
        for &family in &plan.families {
            for &from in from {
                let (n, hash) = (digit(family), hash(family, from));
                let chain = format!("{name}_{}{n}", from.name());
                let candidates = candidates(plan, measure, arm, (family, from));
                lines.push(format!(
                    "meta nfproto ipv{n} meta l4proto tcp {hash} {} jump {chain}",
                    share(most(plan, measure), arm),
                ));
                ruleset.chain(&chain, None, &candidates);
            }
        }
        ruleset.base_chain(name, &lines);
    }
}

/// Gives the rules for segments by whose hash they may be of a connection that is watched, if they come from that end: one may
/// be said of a segment's hash by chance, and the other end is asked next. Of most segments only one hash is made for each end.
fn candidates(
    plan: &Plan,
    measure: Measure,
    arm: Arm,
    (family, from): (Family, From),
) -> Vec<String> {
    let (ip, n) = (ip(family), digit(family));
    let hash = hash(family, from);
    let mut lines = vec![format!(
        "{hash} {} {ip} saddr @all{n} {ip} daddr @all{n} goto watch{n}",
        share(part(measure), arm),
    )];
    if plan.chooses() {
        let ends = match from {
            From::Client => format!("{ip} saddr . {ip} daddr"),
            From::Server => format!("{ip} daddr . {ip} saddr"),
        };
        lines.push(format!(
            "{hash} {} {ends} @{} goto watch{n}",
            share(EXPLORED, arm),
            DynamicSet::Explored(family)
        ));
    }
    lines
}

/// Gives how many of the hashes are those of connections that are routed, between whatever campuses.
fn most(plan: &Plan, measure: Measure) -> u16 {
    match plan.chooses() {
        true => part(measure).max(EXPLORED),
        false => part(measure),
    }
}

/// Which part of the hashes.
#[derive(Clone, Copy)]
enum Arm {
    Unsplit,
    Split,
}

/// Gives the hashes of the connections of which so many are `part`.
fn share(part: u16, arm: Arm) -> String {
    let first = match arm {
        Arm::Unsplit => 0,
        Arm::Split => COMPARED,
    };
    format!("{first}-{}", first + part - 1)
}

/// Gives how many of the hashes are those of connections that are routed.
fn part(measure: Measure) -> u16 {
    measure.unsplit.0.clamp(1, PerMyriad::WHOLE.0 / 2)
}

/// Hashes a connection, by a segment that comes from one of its ends.
fn hash(family: Family, from: From) -> String {
    let ip = ip(family);
    let ends = match from {
        From::Client => format!("{ip} saddr . {ip} daddr . tcp sport . tcp dport"),
        From::Server => format!("{ip} daddr . {ip} saddr . tcp dport . tcp sport"),
    };
    format!("jhash {ends} mod {} seed {SEED}", PerMyriad::WHOLE.0)
}

/// Passes the headers of a packet on, with a word before them.
fn log(measure: Measure, word: Option<&str>) -> String {
    let word = word.map_or_else(String::new, |word| format!("prefix \"{word}\" "));
    format!("log {word}group {} snaplen 128", measure.group)
}
