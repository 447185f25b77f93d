//! A ruleset as text, written object by object, and counted while it is.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::carried::Carried;
use super::expr::{address_type, comment, ip};
use super::names::{DynamicSet, SYN_KEY, TABLE};
use crate::prefix::Family;

/// Bounds the memory that a flood takes (some 2 MiB of the kernel's), and the time that it takes to
/// list the table. What finds no room is not remembered.
const SYNS: u32 = 16384;

/// The longest that a client waits before it sends a SYN again and has not given up (the sixth
/// time, by RFC 6298 and net.ipv4.tcp_syn_retries). Each repetition starts the time again.
const SYN_SECONDS: u32 = 64;

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
}

impl Ruleset {
    /// Begins the batch that replaces the tables of the box `node`: `inet`, and those in `families`.
    pub(super) fn begin(node: &str, families: impl Iterator<Item = Family>) -> Ruleset {
        let mut ruleset = Ruleset::default();
        let _ = writeln!(ruleset.text, "# pepd on {}", comment(node));
        // Adding first makes deleting succeed where there is no such table; the three
        // together replace it in one step.
        for family in ["inet"].into_iter().chain(families.map(ip)) {
            let _ = write!(
                ruleset.text,
                "add table {family} {TABLE}\ndelete table {family} {TABLE}\n"
            );
        }
        let _ = writeln!(ruleset.text, "table inet {TABLE} {{");
        ruleset
    }

    /// Writes a table of one family after the end of the first.
    pub(super) fn table(&mut self, family: Family, fill: impl FnOnce(&mut Ruleset)) {
        let _ = writeln!(self.text, "table {} {TABLE} {{", ip(family));
        fill(self);
        self.text.push_str("}\n");
    }

    /// Ends the first table.
    pub(super) fn end(&mut self) {
        self.text.push_str("}\n");
    }

    /// Writes counters, which go on from where the earlier table's were.
    pub(super) fn counters(&mut self, counters: &[(&str, &str)], carried: &Carried) {
        for &(name, about) in counters {
            self.counter(name, about, carried);
        }
    }

    /// Writes one counter with a comment.
    pub(super) fn counter(&mut self, name: &str, about: &str, carried: &Carried) {
        let (packets, bytes) = carried.counters.get(name).copied().unwrap_or_default();
        let _ = write!(
            self.text,
            "\tcounter {name} {{\n\t\tcomment \"{about}\"\n\t\tpackets {packets} bytes {bytes}\n\t}}\n"
        );
    }

    /// Writes a dynamic set with the elements that the earlier table's had.
    pub(super) fn dynamic_set(&mut self, set: DynamicSet, carried: &Carried) {
        let elements = carried.elements_of(set);
        match set.element_type() {
            Some(kind) => self.declare(&format!("set {set}"), kind, set.flags(), elements),
            None => {
                let _ = write!(
                    self.text,
                    "\tset {set} {{\n\t\ttypeof {SYN_KEY}\n\t\tflags dynamic, timeout\n\
                     \t\tsize {SYNS}\n\t\ttimeout {SYN_SECONDS}s\n"
                );
                self.elements(elements);
            }
        }
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
