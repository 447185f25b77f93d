//! The manual page of the configuration, made of the files whose keys have comments.

use clap_mangen::roff::{Inline, Roff, bold, roman};

use super::commented::{Part, Section, parts};

/// Every key but those of a fleet.
const ONE_BOX: &str = include_str!("../../../config/pepd.toml");

/// The keys of a fleet, and others as an example.
const FLEET: &str = include_str!("../../../config/fleet.toml");

/// The sections that only a fleet's file has.
const OF_A_FLEET: [&str; 2] = ["[[box]]", "[[link]]"];

/// Returns the page.
pub fn page() -> String {
    let mut page = Roff::new();
    let version = concat!("pepd ", env!("CARGO_PKG_VERSION"));
    page.control("TH", ["pepd.toml", "5", "", version, "pepd"]);
    page.control("SH", ["NAME"]);
    page.text([roman("pepd.toml - the configuration of pepd")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "pepd run reads it at the start and, as far as live connections allow, at each reload. An unknown key is \
         refused. Each key is shown with a value as an example.",
    )]);
    for part in described() {
        if !part.title.is_empty() {
            page.control("SH", [&*part.title.to_uppercase()]);
        }
        for (at, text) in part.about.iter().enumerate() {
            paragraph(&mut page, text, at > 0 || part.title.is_empty());
        }
        for section in &part.sections {
            describe(&mut page, section);
        }
    }
    page.control("SH", ["FILES"]);
    page.control("TP", []).text([bold("/etc/pepd/pepd.toml")]);
    page.text([roman("The configuration, where -c does not name another.")]);
    page.control("SH", ["SEE ALSO"]);
    page.text([roman("pepd(1), tcp(7), nft(8)")]);
    page.render()
}

/// All parts: those of one box's file, and before what is exceptional those that only a fleet's has.
fn described() -> Vec<Part> {
    let mut all = parts(ONE_BOX);
    let is_fleets = |part: &Part| {
        let mut headers = part.sections.iter().map(|section| &*section.header);
        headers.any(|header| OF_A_FLEET.contains(&header))
    };
    let fleet = parts(FLEET).into_iter().filter(is_fleets);
    all.extend(fleet.map(|part| Part {
        title: format!("One file for a fleet: {}", part.title),
        ..part
    }));
    all
}

/// A section under its header, if keys of it have comments; else as an example of what is said of it.
fn describe(page: &mut Roff, section: &Section) {
    let titled = !section.keys.is_empty();
    if titled {
        page.control("SS", [&*section.header]);
    }
    for (at, text) in section.about.iter().enumerate() {
        paragraph(page, text, at > 0 || !titled);
    }
    if !section.about.is_empty() && !section.example.is_empty() {
        page.control("PP", [])
            .control("RS", ["4"])
            .control("nf", []);
        let lines = std::iter::once(&section.header).chain(&section.example);
        for line in lines {
            page.text([roman(line)]);
        }
        page.control("fi", []).control("RE", []);
    }
    for key in &section.keys {
        page.control("TP", []);
        page.text([bold(&key.name), roman(format!(" = {}", key.value))]);
        for (at, text) in key.about.iter().enumerate() {
            if at > 0 {
                page.control("IP", []);
            }
            page.text(inlines(text));
        }
    }
}

fn paragraph(page: &mut Roff, text: &str, apart: bool) {
    if apart {
        page.control("PP", []);
    }
    page.text(inlines(text));
}

/// The text, what is in it between backticks in bold.
fn inlines(text: &str) -> Vec<Inline> {
    let pieces = text.split('`').enumerate();
    let inlines = pieces.map(|(at, piece)| match at % 2 {
        0 => roman(piece),
        _ => bold(piece),
    });
    inlines.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use toml::{Table, Value};

    use super::*;

    /// Each key that a file has, with the kind of its section.
    fn keys(table: &Table) -> BTreeSet<(String, String)> {
        let mut found = BTreeSet::new();
        let mut add = |kind: &str, table: &Table| {
            for key in table.keys() {
                found.insert((kind.to_owned(), key.clone()));
            }
        };
        for (kind, value) in table {
            match value {
                Value::Table(legs) if kind == "leg" => {
                    legs.values()
                        .filter_map(Value::as_table)
                        .for_each(|leg| add(kind, leg));
                }
                Value::Table(table) => add(kind, table),
                Value::Array(list) => {
                    list.iter()
                        .filter_map(Value::as_table)
                        .for_each(|table| add(kind, table));
                }
                _ => {}
            }
        }
        found
    }

    fn uncommented(text: &str) -> Table {
        let lines = text.lines().map(|line| match line.strip_prefix('#') {
            Some(rest) if !rest.starts_with(' ') => rest,
            _ => line,
        });
        lines.collect::<Vec<_>>().join("\n").parse().unwrap()
    }

    #[test]
    fn every_key_is_described() {
        let mut described = BTreeSet::new();
        for part in super::described() {
            for section in &part.sections {
                let kind = section
                    .header
                    .trim_matches(['[', ']'])
                    .split('.')
                    .next()
                    .unwrap();
                let keys = section.keys.iter();
                described.extend(keys.map(|key| (kind.to_owned(), key.name.clone())));
            }
        }
        let mut wanted = keys(&uncommented(ONE_BOX));
        let fleet = keys(&uncommented(FLEET));
        wanted.extend(
            fleet
                .into_iter()
                .filter(|(kind, _)| ["box", "link"].contains(&&**kind)),
        );
        assert!(wanted.len() > 60, "{wanted:?}");
        let missing: Vec<_> = wanted.difference(&described).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn code_is_bold() {
        let text = Roff::new().text(inlines("see `pepd` here")).to_roff();
        assert_eq!(text, "see \\fBpepd\\fR here\n");
    }
}
