//! What stays of a table when another takes its place.
//!
//! A reload neither closes the gate nor starts the counters again. The dynamic sets and the
//! counters stay where they are, and the rules are taken away and made anew, in one batch: so
//! it costs the same however full the sets are, and no element loses its time.
//!
//! The chains stay, too, and get other rules. With one that a hook calls the kernel drops whatever waits in any queue of the
//! host (nf_queue_nf_hook_drop, net/netfilter/core.c): the SYNs and ACKs that are held, and what other programs have in theirs.
//!
//! And the sets of addresses, and the maps from addresses to chains, where they are the same: made anew, one of intervals is
//! empty for as long as the kernel takes to finish the batch, as its elements are seen by packets at the very end
//! (nft_set_commit_update, net/netfilter/nf_tables_api.c; a fraction of a millisecond of Linux 6.18). A SYN would be of no
//! campus meanwhile.

use std::fmt::Write as _;

use super::expr::ip;
use super::listing::Listing;
use super::names::{DynamicSet, TABLE};
use super::text::Ruleset;
use crate::prefix::Family;

/// The table that another takes the place of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Earlier<'a> {
    /// None, or one of which nothing is to stay.
    Discarded,
    /// This daemon's own.
    Own(&'a Listing),
    /// One that another daemon left. What is true whichever daemon there is stays
    /// ([`DynamicSet::outlives_the_daemon`]); the gate may still be open, and nobody listens yet.
    Left(&'a Listing),
}

impl Earlier<'_> {
    /// Writes the commands that take away what does not stay.
    pub(super) fn cleared_for(self, ruleset: &Ruleset) -> String {
        let (listing, is_own) = match self {
            Earlier::Own(listing) => (Some(listing), true),
            Earlier::Left(listing) => (Some(listing), false),
            Earlier::Discarded => (None, false),
        };
        let familiar = listing.filter(|listing| listing.is_familiar() && listing.has_table("inet"));
        let beside = Family::ALL.iter().map(|family| {
            let (is_wanted, name) = (ruleset.beside.contains(family), ip(*family));
            match familiar.filter(|listing| is_wanted && listing.has_only_chains(name)) {
                Some(listing) => flushed(name) + &without_chains(listing, name, ruleset),
                None if is_wanted || listing.is_some_and(|it| it.has_table(name)) => deleted(name),
                None => String::new(),
            }
        });
        let beside: String = beside.collect();
        let Some(listing) = familiar else {
            return deleted("inet") + &beside;
        };
        // The rules and elements first, which refer to chains.
        let mut text = beside + &flushed("inet");
        for set in listing.sets() {
            let stays = match DynamicSet::named(set.name) {
                Some(kind) => {
                    ruleset.dynamic.contains(&kind)
                        && set.is_like(kind)
                        && (is_own || kind.outlives_the_daemon())
                }
                None => {
                    let wanted = ruleset.sets.get(set.name);
                    wanted.is_some_and(|wanted| listing.has(&set, wanted))
                }
            };
            if !stays {
                let _ = writeln!(text, "delete {} inet {TABLE} {}", set.kind, set.name);
            }
        }
        text += &without_chains(listing, "inet", ruleset);
        for counter in listing.own_names("counter") {
            if !(is_own && ruleset.counters.contains(counter)) {
                let _ = writeln!(text, "delete counter inet {TABLE} {counter}");
            }
        }
        text
    }
}

/// Writes the command that takes the rules out of a table.
fn flushed(family: &str) -> String {
    format!("flush table {family} {TABLE}\n")
}

/// Writes the commands that take chains out of a table: those that are not to be there, or to be called otherwise.
fn without_chains(listing: &Listing, family: &str, ruleset: &Ruleset) -> String {
    let mut text = String::new();
    for (chain, hook) in listing.chains(family) {
        if !ruleset.chains.contains_key(chain) || ruleset.hooks.get(chain) != hook.as_ref() {
            let _ = writeln!(text, "delete chain {family} {TABLE} {chain}");
        }
    }
    text
}

/// Writes the commands that delete a table; adding it first makes that succeed where there is none.
fn deleted(family: &str) -> String {
    format!("add table {family} {TABLE}\ndelete table {family} {TABLE}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE_LEFT: &str = r#"{"nftables": [
        {"table": {"family": "inet", "name": "pepd"}},
        {"counter": {"family": "inet", "table": "pepd", "name": "captured"}},
        {"counter": {"family": "inet", "table": "pepd", "name": "guard-old"}},
        {"set": {"family": "inet", "table": "pepd", "name": "gate", "size": 64}},
        {"set": {"family": "inet", "table": "pepd", "name": "detour4"}},
        {"set": {"family": "inet", "table": "pepd", "name": "routed", "size": 16384, "timeout": 64}},
        {"map": {"family": "inet", "table": "pepd", "name": "source4"}},
        {"chain": {"family": "inet", "table": "pepd", "name": "own"}}]}"#;

    fn ruleset() -> Ruleset {
        let mut ruleset = Ruleset::default();
        ruleset.counter("captured", "");
        DynamicSet::ALL
            .into_iter()
            .for_each(|set| ruleset.dynamic_set(set));
        ruleset
    }

    #[test]
    fn counters_and_sets_that_are_declared_alike_stay() {
        let listing = Listing::parse(TABLE_LEFT).unwrap();
        assert_eq!(
            Earlier::Own(&listing).cleared_for(&ruleset()),
            "flush table inet pepd\ndelete set inet pepd detour4\ndelete map inet pepd source4\n\
             delete chain inet pepd own\ndelete counter inet pepd guard-old\n"
        );
    }

    #[test]
    fn what_a_hook_calls_stays_if_it_is_to_be_called_there() {
        let listing = r#"{"nftables": [
            {"table": {"family": "inet", "name": "pepd"}},
            {"table": {"family": "ip", "name": "pepd"}},
            {"table": {"family": "ip6", "name": "pepd"}},
            {"set": {"family": "ip6", "table": "pepd", "name": "foreign"}},
            {"chain": {"family": "inet", "table": "pepd", "name": "legs", "type": "filter",
                "hook": "prerouting", "prio": -299, "policy": "accept"}},
            {"chain": {"family": "inet", "table": "pepd", "name": "forward", "type": "filter",
                "hook": "forward", "prio": 7, "policy": "accept"}},
            {"chain": {"family": "ip", "table": "pepd", "name": "copy4", "type": "filter",
                "hook": "forward", "prio": 161, "policy": "accept"}}]}"#;
        let listing = Listing::parse(listing).unwrap();
        let hook = |hook: &str| vec![format!("type filter hook {hook}; policy accept;")];
        let mut ruleset = Ruleset::default();
        ruleset.base_chain("legs", &hook("prerouting priority raw + 1"));
        ruleset.base_chain("forward", &hook("forward priority 40"));
        ruleset.table(Family::V4, |it| {
            it.base_chain("copy4", &hook("forward priority 161"));
        });
        ruleset.table(Family::V6, |_| ());
        assert_eq!(
            Earlier::Own(&listing).cleared_for(&ruleset),
            "flush table ip pepd\nadd table ip6 pepd\ndelete table ip6 pepd\n\
             flush table inet pepd\ndelete chain inet pepd forward\n"
        );
    }

    #[test]
    fn of_another_daemons_table_only_the_routed_syns_stay() {
        let listing = Listing::parse(TABLE_LEFT).unwrap();
        let cleared = Earlier::Left(&listing).cleared_for(&ruleset());
        assert!(!cleared.contains("routed"), "{cleared}");
        for gone in ["set inet pepd gate", "counter inet pepd captured"] {
            assert!(cleared.contains(&format!("delete {gone}\n")), "{cleared}");
        }
    }

    #[test]
    fn a_table_with_something_foreign_is_deleted_whole() {
        for foreign in [
            r#"{"flowtable": {"family": "inet", "table": "pepd", "name": "f"}}"#,
            r#"{"chain": {"family": "inet", "table": "pepd", "name": "a; flush ruleset"}}"#,
            r#"{"chain": {"family": "inet", "table": "pepd", "name": ""}}"#,
            r#"{"table": {"family": "inet", "name": "pepd"}, "chain": {"name": "a; flush ruleset"}}"#,
        ] {
            let listing = format!(r#"{{"nftables": [{foreign}]}}"#);
            let listing = Listing::parse(&listing).unwrap();
            assert_eq!(
                Earlier::Own(&listing).cleared_for(&ruleset()),
                "add table inet pepd\ndelete table inet pepd\n"
            );
        }
    }
}
