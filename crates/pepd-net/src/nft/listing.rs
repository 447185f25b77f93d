//! What `nft -j` lists, and what of it verification and the next table need.

use std::collections::BTreeMap;

use serde_json::Value;

use super::carried::Carried;
use super::error::NftError;
use super::expr::ip;
use super::names::{DynamicSet, TABLE};
use super::text::Ruleset;
use crate::error::Drift;
use crate::prefix::Family;

/// The tables as nft lists them, in which no two objects have one name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Listing {
    pub(super) objects: Vec<Value>,
}

impl Listing {
    pub(super) fn parse(json: &str) -> Result<Listing, NftError> {
        let mut value: Value = serde_json::from_str(json).map_err(|error| NftError::Listing {
            reason: error.to_string(),
        })?;
        match value.get_mut("nftables").map(Value::take) {
            Some(Value::Array(objects)) => Ok(Listing { objects }),
            _ => Err(NftError::Listing {
                reason: "there is no array `nftables`".to_owned(),
            }),
        }
    }

    /// Gives the table without what changes by itself: handles, counts and dynamic elements.
    /// Two equal fingerprints mean that nobody changed the table in between.
    pub(crate) fn fingerprint(&self) -> Listing {
        let mut objects = self.objects.clone();
        objects.retain(|object| object.get("metainfo").is_none());
        for object in &mut objects {
            let dynamic = object
                .get("set")
                .and_then(|set| set.get("name"))
                .and_then(Value::as_str)
                .is_some_and(|name| DynamicSet::named(name).is_some());
            if dynamic && let Some(set) = object.get_mut("set").and_then(Value::as_object_mut) {
                set.remove("elem");
            }
            strip(object);
        }
        Listing { objects }
    }

    /// Returns whether there is a table of this family.
    pub(super) fn has_table(&self, family: &str) -> bool {
        self.objects
            .iter()
            .filter_map(|object| object.get("table")?.get("family")?.as_str())
            .any(|found| found == family)
    }

    /// Gives what the next table takes over from this one.
    pub(crate) fn carried(&self) -> Carried {
        let mut carried = Carried {
            families: Family::ALL
                .into_iter()
                .filter(|&family| self.has_table(ip(family)))
                .collect(),
            ..Carried::default()
        };
        for object in &self.objects {
            if let Some(counter) = object.get("counter")
                && let (Some(name), Some(packets), Some(bytes)) = (
                    counter.get("name").and_then(Value::as_str),
                    counter.get("packets").and_then(Value::as_u64),
                    counter.get("bytes").and_then(Value::as_u64),
                )
            {
                carried.counters.insert(name.to_owned(), (packets, bytes));
            }
            if let Some(set) = object.get("set")
                && let Some(name) = set.get("name").and_then(Value::as_str)
                && let Some(kind) = DynamicSet::named(name)
                && let Some(elements) = set.get("elem").and_then(Value::as_array)
            {
                let elements = elements.iter().filter_map(|e| carried_element(kind, e));
                carried.elements.insert(name.to_owned(), elements.collect());
            }
        }
        carried
    }

    /// Compares the numbers of rules and elements with what `ruleset` makes.
    pub(crate) fn check(&self, ruleset: &Ruleset) -> Result<(), Drift> {
        let chains = self.names("chain");
        let mut rules: BTreeMap<&str, usize> =
            chains.iter().map(|chain| (chain.as_str(), 0)).collect();
        for rule in self.objects.iter().filter_map(|object| object.get("rule")) {
            if let Some(chain) = rule.get("chain").and_then(Value::as_str) {
                *rules.entry(chain).or_default() += 1;
            }
        }
        for (chain, &expected) in &ruleset.chains {
            let found = rules.get(chain.as_str()).copied();
            differs("chain", chain, "rules", expected, found)?;
        }
        for (set, &expected) in &ruleset.sets {
            differs("set", set, "elements", expected, self.elements(set))?;
        }
        for set in &ruleset.dynamic {
            if self.elements(set.name()).is_none() {
                differs("set", set.name(), "elements", 0, None)?;
            }
        }
        Ok(())
    }

    fn names(&self, kind: &str) -> Vec<String> {
        self.objects
            .iter()
            .filter_map(|object| object.get(kind)?.get("name")?.as_str())
            .map(str::to_owned)
            .collect()
    }

    /// Counts the elements of a set or map; none if there is no such set.
    fn elements(&self, name: &str) -> Option<usize> {
        self.objects
            .iter()
            .filter_map(|object| object.get("set").or_else(|| object.get("map")))
            .find(|set| set.get("name").and_then(Value::as_str) == Some(name))
            .map(|set| {
                set.get("elem")
                    .and_then(Value::as_array)
                    .map_or(0, Vec::len)
            })
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

/// Writes an element with the time it has left, in nft syntax.
///
/// nft's JSON has whole seconds only. The gate therefore starts its time again (the daemon
/// is alive: it is the one that reloads), and a source stays out for at least a second.
fn carried_element(set: DynamicSet, element: &Value) -> Option<String> {
    let element = element.get("elem")?;
    let value = match element.get("val")? {
        Value::String(value) => value.clone(),
        pair => {
            let parts = pair.get("concat")?.as_array()?.iter();
            let parts: Option<Vec<String>> = parts.map(carried_part).collect();
            parts?.join(" . ")
        }
    };
    let time = match set {
        DynamicSet::Gate | DynamicSet::SecondGate | DynamicSet::Readers => "timeout",
        DynamicSet::FullSources(_)
        | DynamicSet::AsymmetricRoutes(_)
        | DynamicSet::RoutedSyns
        | DynamicSet::HeldSyns => "expires",
    };
    let seconds = element.get(time)?.as_u64()?.max(1);
    Some(format!("{value} timeout {seconds}s"))
}

/// Writes an address, or a number.
fn carried_part(part: &Value) -> Option<String> {
    let number = || part.as_u64().map(|number| number.to_string());
    part.as_str().map(str::to_owned).or_else(number)
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

    #[test]
    fn the_fingerprint_ignores_what_changes_by_itself() {
        let listing = |handle: u32, packets: u32, gate: &str, element: &str| {
            Listing::parse(&format!(
                r#"{{"nftables": [{{"metainfo": {{"version": "1"}}}},
                {{"counter": {{"name": "captured", "handle": {handle}, "packets": {packets}, "bytes": 1}}}},
                {{"set": {{"name": "gate", "handle": {handle} {gate}}}}},
                {{"set": {{"name": "all4", "elem": ["{element}"]}}}}]}}"#
            ))
            .unwrap()
        };
        let open = r#", "elem": [{"elem": {"val": "tcp", "timeout": 2, "expires": 0}}]"#;
        let before = listing(1, 2, "", "10.0.0.1");
        let after = listing(3, 4, open, "10.0.0.1");
        assert_eq!(before.fingerprint(), after.fingerprint());
        let changed = listing(1, 2, "", "10.0.0.2");
        assert_ne!(before.fingerprint(), changed.fingerprint());

        let carried = after.carried();
        assert_eq!(carried.counters["captured"], (4, 1));
        assert_eq!(carried.elements["gate"], ["tcp timeout 2s"]);

        let detour = Listing::parse(
            r#"{"nftables": [{"set": {"name": "detour4", "elem": [{"elem":
            {"val": {"concat": ["10.1.0.2", "10.2.0.2"]}, "timeout": 9, "expires": 7}}]}}]}"#,
        );
        let carried = detour.unwrap().carried();
        assert_eq!(
            carried.elements["detour4"],
            ["10.1.0.2 . 10.2.0.2 timeout 7s"]
        );

        let routed = Listing::parse(
            r#"{"nftables": [{"set": {"name": "routed", "timeout": 64, "elem": [{"elem":
            {"val": {"concat": [40000, 80, 4126259287]}, "expires": 19}}]}}]}"#,
        );
        let carried = routed.unwrap().carried();
        assert_eq!(
            carried.elements["routed"],
            ["40000 . 80 . 4126259287 timeout 19s"]
        );
        assert_eq!(carried.clone().of_any_daemon(), carried);

        let waiting = Listing::parse(
            r#"{"nftables": [{"set": {"name": "waiting", "timeout": 64, "elem": [{"elem":
            {"val": {"concat": [40000, 80, 4126259287]}, "expires": 63}}]}}]}"#,
        );
        let carried = waiting.unwrap().carried();
        assert_eq!(carried.elements["waiting"].len(), 1);
        assert_eq!(
            carried.of_any_daemon(),
            Carried::default(),
            "who held it is gone"
        );
    }
}
