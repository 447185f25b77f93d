//! A ruleset as text, written object by object, and counted while it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::elements::Interval;
use super::expr::{address_type, comment, ip};
use super::hook::Hook;
use super::names::{DynamicSet, TABLE};
use crate::prefix::{Family, Range};

/// A set of addresses, or a map from addresses to chains, that stays as it is.
#[derive(Debug)]
pub(crate) struct FixedSet {
    pub(super) is_map: bool,
    pub(super) family: Family,
    /// In ascending order.
    pub(crate) intervals: Vec<Interval>,
}

/// A ruleset, and how many rules and elements it makes: what verification counts.
#[derive(Debug, Default)]
pub(crate) struct Ruleset {
    pub(crate) text: String,
    /// Chain to number of rules.
    pub(crate) chains: BTreeMap<String, usize>,
    /// The chains that hooks call.
    pub(super) hooks: BTreeMap<String, Hook>,
    /// The sets and maps but for the dynamic ones.
    pub(crate) sets: BTreeMap<String, FixedSet>,
    /// The dynamic sets.
    pub(crate) dynamic: Vec<DynamicSet>,
    /// The families that have a table beside the first.
    pub(crate) beside: Vec<Family>,
    /// The counters that have a name.
    pub(crate) counters: BTreeSet<String>,
}

impl Ruleset {
    /// Makes the batch whole: the box's name, the commands that clear the place, and the tables.
    pub(super) fn end(mut self, node: &str, cleared: &str) -> Ruleset {
        let node = comment(node);
        self.text = format!(
            "# pepd on {node}\n{cleared}table inet {TABLE} {{\n{}",
            self.text
        );
        self
    }

    /// Writes a table of one family after the end of the first.
    pub(super) fn table(&mut self, family: Family, fill: impl FnOnce(&mut Ruleset)) {
        let _ = writeln!(self.text, "table {} {TABLE} {{", ip(family));
        fill(self);
        self.text.push_str("}\n");
        self.beside.push(family);
    }

    /// Ends the first table.
    pub(super) fn end_table(&mut self) {
        self.text.push_str("}\n");
    }

    /// Writes counters, which go on where the earlier table's stay.
    pub(super) fn counters(&mut self, counters: &[(&str, &str)]) {
        for &(name, about) in counters {
            self.counter(name, about);
        }
    }

    /// Writes one counter with a comment.
    pub(super) fn counter(&mut self, name: &str, about: &str) {
        let _ = write!(
            self.text,
            "\tcounter {name} {{\n\t\tcomment \"{about}\"\n\t\tpackets 0 bytes 0\n\t}}\n"
        );
        self.counters.insert(name.to_owned());
    }

    /// Writes a dynamic set, which keeps its elements where the earlier table's stays.
    pub(super) fn dynamic_set(&mut self, set: DynamicSet) {
        let (flags, size) = (set.flags(), set.size());
        let kind = match (set.element_type(), set.key()) {
            (Some(kind), _) => format!("type {kind}"),
            (None, key) => format!("typeof {}", key.unwrap_or_default()),
        };
        let _ = write!(
            self.text,
            "\tset {set} {{\n\t\t{kind}\n\t\tflags {flags}\n\t\tsize {size}\n"
        );
        if let Some(seconds) = set.timeout() {
            let _ = writeln!(self.text, "\t\ttimeout {seconds}s");
        }
        self.text.push_str("\t}\n");
        self.dynamic.push(set);
    }

    /// Writes a set of addresses, which are in ascending order.
    pub(super) fn address_set(&mut self, name: &str, family: Family, ranges: &[Range]) {
        let elements = ranges.iter().map(|range| (range, None)).collect();
        self.fixed_set(name, family, false, elements);
    }

    /// Writes a map from addresses, which are in ascending order, to chains.
    pub(super) fn chain_map(&mut self, name: &str, family: Family, chains: &[(Range, String)]) {
        let elements = chains
            .iter()
            .map(|(range, chain)| (range, Some(chain.as_str())));
        self.fixed_set(name, family, true, elements.collect());
    }

    fn fixed_set(
        &mut self,
        name: &str,
        family: Family,
        is_map: bool,
        elements: Vec<(&Range, Option<&str>)>,
    ) {
        let (kind, of) = if is_map {
            ("map", " : verdict")
        } else {
            ("set", "")
        };
        let _ = write!(
            self.text,
            "\t{kind} {name} {{\n\t\ttype {}{of}\n\t\tflags interval\n",
            address_type(family)
        );
        let written = |(range, chain): &(&Range, Option<&str>)| {
            chain.map_or_else(
                || range.to_string(),
                |chain| format!("{range} : goto {chain}"),
            )
        };
        let written: Vec<String> = elements.iter().map(written).collect();
        if !written.is_empty() {
            let _ = write!(
                self.text,
                "\t\telements = {{\n\t\t\t{}\n\t\t}}\n",
                written.join(",\n\t\t\t")
            );
        }
        self.text.push_str("\t}\n");
        let intervals = elements
            .iter()
            .map(|(range, chain)| Interval::new(range, *chain));
        let set = FixedSet {
            is_map,
            family,
            intervals: intervals.collect(),
        };
        self.sets.insert(name.to_owned(), set);
    }

    /// Writes a chain that a hook calls; the first line is the hook.
    pub(super) fn base_chain(&mut self, name: &str, lines: &[String]) {
        self.chain(name, None, lines);
        let hook = lines.first().and_then(|line| Hook::written(line));
        self.hooks.extend(hook.map(|hook| (name.to_owned(), hook)));
        // The first line is the hook, not a rule.
        self.chains
            .insert(name.to_owned(), lines.len().saturating_sub(1));
    }

    /// Writes a chain that other chains jump to, with the name of the campus that it is about: at its first rule, as chains
    /// stay where another table takes the place of this one, whatever a campus is called.
    pub(super) fn chain(&mut self, name: &str, about: Option<&str>, lines: &[String]) {
        let rules = lines.iter().filter(|line| !line.starts_with('#')).count();
        self.chains.insert(name.to_owned(), rules);
        let _ = writeln!(self.text, "\tchain {name} {{");
        let mut about = about.map(|about| format!(" comment \"campus {}\"", comment(about)));
        for line in lines {
            let about = about.take().unwrap_or_default();
            let _ = writeln!(self.text, "\t\t{line}{about}");
        }
        self.text.push_str("\t}\n");
    }
}
