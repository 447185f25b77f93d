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
use super::names::{DynamicSet, MEASURED, WATCHED_ROUTED, WATCHED_SPLIT};
use super::text::Ruleset;
use crate::plan::Plan;
use crate::prefix::Family;
use crate::request::{Measure, PerMyriad};

/// What a connection's hash begins with: any number.
const SEED: &str = "0x70657064";

/// After the SYNs that are split have left, and those that are routed are known.
const WATCHED: i32 = super::forward::ROUTED + 1;

/// After everything that may still drop it.
const LAST: i32 = i32::MAX - 1;

/// The first segments of each direction of a connection that are passed on, and those that are later.
const LIMIT: &str = "limit rate 20/second burst 64 packets";

/// The two ways of a segment within its connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Client,
    Server,
}

/// Asks whether a connection is measured that would be split.
pub(super) fn is_measured(plan: &Plan) -> Option<String> {
    plan.measure.map(|_| "jump measured".to_owned())
}

/// Writes the chain that decides on a first SYN.
pub(super) fn measure_chains(ruleset: &mut Ruleset, plan: &Plan) {
    let Some(measure) = plan.measure else { return };
    let routed = format!(
        "{} counter name {} goto routed",
        log(measure, Some(WATCHED_ROUTED)),
        MEASURED.0
    );
    let split = log(measure, Some(WATCHED_SPLIT));
    ruleset.chain("unsplit", None, &[routed]);
    ruleset.chain("compared", None, &[split]);
    let lines: Vec<String> = plan
        .families
        .iter()
        .map(|&family| {
            format!(
                "meta nfproto ipv{} {} vmap {{ {} : goto unsplit, {} : goto compared }}",
                digit(family),
                hash(family, From::Client),
                share(measure, Arm::Unsplit),
                share(measure, Arm::Split),
            )
        })
        .collect();
    ruleset.chain("measured", None, &lines);
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
                format!("tcp flags & (fin | syn | rst) != 0 {log} accept"),
                format!("update @{set} {{ {key} {LIMIT} }} {log}"),
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
            let (ip, n) = (ip(family), digit(family));
            lines.extend(from.iter().map(|&from| {
                format!(
                    "meta nfproto ipv{n} meta l4proto tcp {} {} {ip} saddr @all{n} {ip} daddr @all{n} goto watch{n}",
                    hash(family, from),
                    share(measure, arm),
                )
            }));
        }
        ruleset.base_chain(name, &lines);
    }
}

/// Which part of the hashes.
#[derive(Clone, Copy)]
enum Arm {
    Unsplit,
    Split,
}

fn share(measure: Measure, arm: Arm) -> String {
    let share = measure.unsplit.0.clamp(1, PerMyriad::WHOLE.0 / 2);
    match arm {
        Arm::Unsplit => format!("0-{}", share - 1),
        Arm::Split => format!("{share}-{}", 2 * share - 1),
    }
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
