//! A ruleset as text, written object by object, and counted while it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::expr::{address_type, comment, ip};
use super::names::{DynamicSet, TABLE};
use crate::prefix::Family;

/// A ruleset, and how many rules and elements it makes: what verification counts.
#[derive(Debug, Default)]
pub(crate) struct Ruleset {
    pub(crate) text: String,
    /// Chain to number of rules.
    pub(crate) chains: BTreeMap<String, usize>,
    /// Set or map to number of elements; the dynamic ones are left out.
    pub(crate) sets: BTreeMap<String, usize>,
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

    /// Writes a set of addresses.
    pub(super) fn address_set(&mut self, name: &str, family: Family, elements: &[String]) {
        self.sets.insert(name.to_owned(), elements.len());
        self.declare(
            &format!("set {name}"),
            address_type(family),
            "interval",
            elements,
        );
    }

    /// Writes a map from addresses to verdicts.
    pub(super) fn verdict_map(&mut self, name: &str, family: Family, elements: &[String]) {
        self.sets.insert(name.to_owned(), elements.len());
        let kind = format!("{} : verdict", address_type(family));
        self.declare(&format!("map {name}"), &kind, "interval", elements);
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

    /// Writes a chain that a hook calls; the first line is the hook.
    pub(super) fn base_chain(&mut self, name: &str, lines: &[String]) {
        self.chain(name, None, lines);
        // The first line is the hook, not a rule.
        self.chains
            .insert(name.to_owned(), lines.len().saturating_sub(1));
    }

    /// Writes a chain that other chains jump to, with the name of the campus that it is about.
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
