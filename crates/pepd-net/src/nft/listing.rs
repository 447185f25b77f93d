//! What is read back of the table, and what of it verification and the next table need.

use std::collections::BTreeMap;

use serde_json::Value;

use super::elements::Elements;
use super::error::NftError;
use super::expr::address_type;
use super::hook::Hook;
use super::names::{DynamicSet, TABLE};
use super::text::{FixedSet, Ruleset};
use crate::error::Drift;

/// The tables, in which no two objects have one name, without the elements of the dynamic sets: they
/// take the same time to read however full those are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Listing {
    /// The objects as nft lists them, without elements.
    pub(super) objects: Vec<Value>,
    /// The elements of the other sets and the maps.
    elements: BTreeMap<String, Elements>,
}

/// A set or map of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListedSet<'a> {
    /// `set` or `map`.
    pub(super) kind: &'static str,
    pub(super) name: &'a str,
    /// All that nft says of it.
    declared: &'a Value,
}

impl ListedSet<'_> {
    /// Returns whether it is declared as this dynamic set is now.
    pub(super) fn is_like(&self, set: DynamicSet) -> bool {
        let size = u64::try_from(set.size()).ok();
        self.kind == "set" && self.room() == (size, set.timeout())
    }

    /// Returns how many elements it has room for, and for how long they stay, in seconds.
    fn room(&self) -> (Option<u64>, Option<u64>) {
        let number = |field: &str| self.declared.get(field).and_then(Value::as_u64);
        (number("size"), number("timeout"))
    }

    /// Returns whether it is declared as this set of addresses, or map from them, is.
    fn is_like_fixed(&self, set: &FixedSet) -> bool {
        let kind = if set.is_map { "map" } else { "set" };
        let text = |field: &str| self.declared.get(field).and_then(Value::as_str);
        let is_of_intervals = |flags: &Value| *flags == serde_json::json!(["interval"]);
        self.kind == kind
            && self.room() == (None, None)
            && text("type") == Some(address_type(set.family))
            && text("map") == set.is_map.then_some("verdict")
            && self.declared.get("flags").is_some_and(is_of_intervals)
    }
}

/// The families in which pepd has tables.
pub(super) const FAMILIES: [&str; 3] = ["inet", "ip", "ip6"];

/// Returns the place of the family of what belongs to a table of pepd's.
fn family(object: &Value) -> Option<usize> {
    let (kind, object) = object.as_object()?.iter().next()?;
    let name = if kind == "table" { "name" } else { "table" };
    let text = |field: &str| object.get(field).and_then(Value::as_str);
    let family = FAMILIES.iter().position(|of| text("family") == Some(of))?;
    (text(name) == Some(TABLE)).then_some(family)
}

impl Listing {
    /// Reads nft's listing.
    pub(super) fn parse(json: &str) -> Result<Listing, NftError> {
        let mut value: Value = serde_json::from_str(json).map_err(|error| NftError::Listing {
            reason: error.to_string(),
        })?;
        match value.get_mut("nftables").map(Value::take) {
            Some(Value::Array(objects)) => Ok(Listing {
                objects,
                elements: BTreeMap::new(),
            }),
            _ => Err(NftError::Listing {
                reason: "there is no array `nftables`".to_owned(),
            }),
        }
    }

    /// Leaves pepd's tables of a listing of all, in the order of their families; none if there is none.
    pub(super) fn of_tables(mut self) -> Option<Listing> {
        self.objects.retain(|object| family(object).is_some());
        self.objects.sort_by_key(family);
        (!self.objects.is_empty()).then_some(self)
    }

    /// Returns whether any chain translates addresses.
    pub(super) fn has_nat_chain(&self) -> bool {
        let mut chains = self.objects.iter().filter_map(|object| object.get("chain"));
        chains.any(|chain| chain.get("type").and_then(Value::as_str) == Some("nat"))
    }

    /// Adds the elements of the sets and maps that are not dynamic.
    pub(super) fn with_elements(self, elements: BTreeMap<String, Elements>) -> Listing {
        Listing { elements, ..self }
    }

    /// Gives the table without what changes by itself: handles and counts. Two equal fingerprints
    /// mean that nobody changed the table in between.
    pub(crate) fn fingerprint(&self) -> Listing {
        let mut fingerprint = self.clone();
        fingerprint.objects.iter_mut().for_each(strip);
        fingerprint
    }

    /// Gives what the counters with a name have counted: packets and bytes.
    pub(crate) fn counters(&self) -> BTreeMap<&str, (u64, u64)> {
        let counters = self.objects.iter().filter_map(|object| {
            let counter = object.get("counter")?;
            let number = |field: &str| counter.get(field).and_then(Value::as_u64);
            let name = counter.get("name")?.as_str()?;
            Some((name, (number("packets")?, number("bytes")?)))
        });
        counters.collect()
    }

    /// Returns whether there is a table of this family.
    pub(super) fn has_table(&self, family: &str) -> bool {
        self.objects
            .iter()
            .filter_map(|object| object.get("table")?.get("family")?.as_str())
            .any(|found| found == family)
    }

    /// Adds another one.
    pub(super) fn and(mut self, other: Listing) -> Listing {
        self.objects.extend(other.objects);
        self
    }

    /// Gives the sets and maps of the table `inet`.
    pub(super) fn sets(&self) -> impl Iterator<Item = ListedSet<'_>> {
        let of_kind = |kind| self.of_family(kind, "inet").map(move |set| (kind, set));
        of_kind("set")
            .chain(of_kind("map"))
            .filter_map(|(kind, set)| {
                Some(ListedSet {
                    kind,
                    name: set.get("name")?.as_str()?,
                    declared: set,
                })
            })
    }

    /// Returns whether a set or map of the table `inet` is this one, with the same elements.
    pub(super) fn has(&self, found: &ListedSet<'_>, set: &FixedSet) -> bool {
        let elements = self.elements.get(found.name);
        found.is_like_fixed(set) && elements.is_some_and(|it| it.intervals() == set.intervals)
    }

    /// Gives the chains of a family's table, and what calls them if that is a hook.
    pub(super) fn chains<'a>(
        &'a self,
        family: &'a str,
    ) -> impl Iterator<Item = (&'a str, Option<Hook>)> {
        self.of_family("chain", family)
            .filter_map(|chain| Some((chain.get("name")?.as_str()?, Hook::listed(chain))))
    }

    /// Returns whether there is a table of this family, and nothing but chains and rules in it.
    pub(super) fn has_only_chains(&self, family: &str) -> bool {
        let others = ["set", "map", "counter"];
        let mut others = others.iter().flat_map(|kind| self.of_family(kind, family));
        self.has_table(family) && others.next().is_none()
    }

    /// Gives the objects of a kind in the table of a family.
    fn of_family<'a>(&'a self, kind: &'a str, family: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects
            .iter()
            .filter_map(move |object| object.get(kind))
            .filter(move |object| object.get("family").and_then(Value::as_str) == Some(family))
    }

    /// Returns whether it has nothing but objects of the kinds that pepd's tables have, with names
    /// such as pepd gives.
    pub(super) fn is_familiar(&self) -> bool {
        const KINDS: [&str; 6] = ["table", "counter", "set", "map", "chain", "rule"];
        let is_plain =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '\\');
        let is_named_plainly = |object: &Value| {
            let name = object.get("name").and_then(Value::as_str);
            name.is_none_or(|name| !name.is_empty() && name.chars().all(is_plain))
        };
        let mut objects = self.objects.iter().map(Value::as_object);
        objects.all(|object| {
            object.is_some_and(|object| {
                let mut parts = object.iter();
                parts.all(|(kind, part)| KINDS.contains(&kind.as_str()) && is_named_plainly(part))
            })
        })
    }

    /// Compares the numbers of rules and elements with what `ruleset` makes.
    pub(crate) fn check(&self, ruleset: &Ruleset) -> Result<(), Drift> {
        let mut rules: BTreeMap<&str, usize> = self.names("chain").map(|name| (name, 0)).collect();
        for rule in self.objects.iter().filter_map(|object| object.get("rule")) {
            if let Some(chain) = rule.get("chain").and_then(Value::as_str) {
                *rules.entry(chain).or_default() += 1;
            }
        }
        for (chain, &expected) in &ruleset.chains {
            let found = rules.get(chain.as_str()).copied();
            differs("chain", chain, "rules", expected, found)?;
        }
        for (set, expected) in &ruleset.sets {
            let expected = expected.intervals.len();
            let found = self.elements.get(set).map(Elements::count);
            differs("set", set, "elements", expected, found)?;
        }
        for &set in &ruleset.dynamic {
            if !self
                .sets()
                .any(|found| found.name == set.name() && found.is_like(set))
            {
                return Err(Drift::new(format!(
                    "nft set {set} of table inet {TABLE} is not there, or not as it was made"
                )));
            }
        }
        Ok(())
    }

    /// Gives the names of the objects of a kind in the table `inet`.
    pub(super) fn own_names<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a str> {
        self.of_family(kind, "inet")
            .filter_map(|object| object.get("name")?.as_str())
    }

    /// Gives the names of the objects of a kind.
    fn names<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a str> {
        self.objects
            .iter()
            .filter_map(move |object| object.get(kind)?.get("name")?.as_str())
    }
}

fn differs(
    kind: &str,
    name: &str,
    what: &str,
    expected: usize,
    found: Option<usize>,
) -> Result<(), Drift> {
    if found == Some(expected) {
        return Ok(());
    }
    let found = found.map_or_else(
        || "it is not there".to_owned(),
        |found| format!("it has {found}"),
    );
    Err(Drift::new(format!(
        "nft {kind} {name} of table {TABLE} should have {expected} {what}; {found}"
    )))
}

/// Removes handles and counts, at any depth.
fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for key in ["handle", "packets", "bytes"] {
                map.remove(key);
            }
            map.values_mut().for_each(strip);
        }
        Value::Array(array) => array.iter_mut().for_each(strip),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_that_is_no_listing_is_an_error() {
        for json in ["", "{}", "[]", "{\"nftables\": 1}", "nft"] {
            assert!(Listing::parse(json).is_err(), "{json}");
        }
    }

    fn listing(handle: u32, packets: u32, size: u32) -> Listing {
        let all = Listing::parse(&format!(
            r#"{{"nftables": [{{"metainfo": {{"version": "1"}}}},
            {{"table": {{"family": "inet", "name": "pepd", "handle": {handle}}}}},
            {{"table": {{"family": "inet", "name": "other", "handle": 7}}}},
            {{"chain": {{"family": "inet", "table": "other", "name": "own"}}}},
            {{"counter": {{"family": "inet", "table": "pepd", "name": "captured",
                "handle": {handle}, "packets": {packets}, "bytes": 1}}}},
            {{"set": {{"family": "inet", "table": "pepd", "name": "routed", "size": {size},
                "timeout": 64}}}},
            {{"map": {{"family": "inet", "table": "pepd", "name": "source4"}}}},
            {{"chain": {{"family": "inet", "table": "pepd", "name": "own"}}}}]}}"#
        ));
        all.unwrap().of_tables().unwrap()
    }

    #[test]
    fn the_fingerprint_ignores_what_changes_by_itself() {
        let (before, after) = (listing(1, 2, 16384), listing(3, 4, 16384));
        assert_eq!(before.fingerprint(), after.fingerprint());
        assert_ne!(before.fingerprint(), listing(1, 2, 7).fingerprint());
        assert_eq!(after.counters()["captured"], (4, 1));
    }

    #[test]
    fn another_table_is_none_of_ours() {
        assert_eq!(listing(1, 2, 3).names("chain").collect::<Vec<_>>(), ["own"]);
        let other = r#"{"nftables": [{"table": {"family": "netdev", "name": "pepd"}}]}"#;
        assert!(Listing::parse(other).unwrap().of_tables().is_none());
    }

    #[test]
    fn tables_come_in_the_order_of_their_families() {
        let list = |families: [&str; 2]| {
            let tables = families
                .map(|family| format!(r#"{{"table": {{"family": "{family}", "name": "pepd"}}}}"#));
            Listing::parse(&format!(r#"{{"nftables": [{}]}}"#, tables.join(","))).unwrap()
        };
        let (one, other) = (list(["ip6", "inet"]), list(["inet", "ip6"]));
        assert_ne!(one, other);
        assert_eq!(one.of_tables(), other.of_tables());
    }

    #[test]
    fn any_chain_of_the_type_nat_translates() {
        let list = |kind: &str| {
            let chain = format!(
                r#"{{"chain": {{"family": "ip", "table": "x", "name": "y", "type": "{kind}"}}}}"#
            );
            Listing::parse(&format!(r#"{{"nftables": [{chain}]}}"#)).unwrap()
        };
        assert!(list("nat").has_nat_chain());
        assert!(!list("filter").has_nat_chain());
    }

    #[test]
    fn a_set_is_like_ours_where_its_size_and_time_are() {
        let routed = |size| {
            let listing = listing(1, 2, size);
            let set = listing.sets().find(|set| set.kind == "set").unwrap();
            set.is_like(DynamicSet::RoutedSyns)
        };
        assert!(routed(16384));
        assert!(!routed(65535));
    }
}
