//! What stays of a table when another takes its place.
//!
//! A reload neither closes the gate nor starts the counters again. The dynamic sets and the
//! counters stay where they are, and everything else is taken away and made anew, in one batch: so
//! it costs the same however full the sets are, and no element loses its time.

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
        // The tables beside the first have nothing that stays.
        let is_wanted = |family: &&Family| {
            ruleset.beside.contains(family)
                || listing.is_some_and(|listing| listing.has_table(ip(**family)))
        };
        let beside = Family::ALL.iter().filter(is_wanted);
        let mut text: String = beside.map(|family| deleted(ip(*family))).collect();
        let familiar = listing.filter(|listing| listing.is_familiar() && listing.has_table("inet"));
        let Some(listing) = familiar else {
            return deleted("inet") + &text;
        };
        // The rules and elements first, which refer to chains.
        let _ = writeln!(text, "flush table inet {TABLE}");
        for set in listing.sets() {
            let stays = DynamicSet::named(set.name).is_some_and(|kind| {
                ruleset.dynamic.contains(&kind)
                    && set.is_like(kind)
                    && (is_own || kind.outlives_the_daemon())
            });
            if !stays {
                let _ = writeln!(text, "delete {} inet {TABLE} {}", set.kind, set.name);
            }
        }
        for chain in listing.own_names("chain") {
            let _ = writeln!(text, "delete chain inet {TABLE} {chain}");
        }
        for counter in listing.own_names("counter") {
            if !(is_own && ruleset.counters.contains(counter)) {
                let _ = writeln!(text, "delete counter inet {TABLE} {counter}");
            }
        }
        text
    }
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
