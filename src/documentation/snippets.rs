//! What pages write as a configuration is valid.

use std::collections::BTreeSet;

use pepd_config::Context;
use toml::{Table, Value};

use super::none;
use super::page::{Kind, Page};
use crate::commands::model::path;

/// The campuses of a fragment that has none: in one of them is what any of its rules is about. Its legs
/// are such that each key of a rule has an effect.
const CAMPUSES: &str = r#"
[[campus]]
name = "completed"
prefixes = ["10.1.0.0/16", "fd00:a::/48"]
leg = "completed"

[[campus]]
name = "completed-world"
prefixes = ["0.0.0.0/0", "::/0"]
leg = "completed"
"#;

#[test]
fn the_configurations_are_valid() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for page in Page::all() {
        let code = page.code();
        let is_toml = |kind: &Kind| matches!(kind, Kind::Fenced(language) if language == "toml");
        for block in code.iter().filter(|code| is_toml(&code.kind)) {
            seen += 1;
            if let Err(why) = check(&block.text) {
                wrong.push(format!("{}:\n{why}", page.at(block.line)));
            }
        }
    }
    none(wrong);
    assert!(seen > 10, "{seen} configurations were found");
}

/// A configuration that is written by its indentation is not checked: it is to be between fences.
#[test]
fn configurations_are_between_fences() {
    let mut found = Vec::new();
    for page in Page::all() {
        for block in page.code() {
            let header = block.text.lines().find(|line| is_header(line));
            if let Some(header) = header.filter(|_| block.kind == Kind::Indented) {
                found.push(format!("{}: {header}", page.at(block.line)));
            }
        }
    }
    none(found);
}

/// Whether a line begins a section, such as `[leg.radio]` or `[[rule]]`.
fn is_header(line: &str) -> bool {
    let word = line.split_whitespace().next().unwrap_or_default();
    let name = word.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let letters = |name: &str| name.chars().all(|it| it.is_ascii_lowercase() || it == '.');
    name.is_some_and(|name| letters(name.trim_matches(['[', ']'])))
}

/// Checks one of them as `pepd check` does, and as `pepd model path` where it is a file of hops.
fn check(text: &str) -> Result<(), String> {
    let table: Table = text.parse().map_err(|error| format!("{error}"))?;
    if table.contains_key("hop") {
        return path::check(text);
    }
    let text = complete(text, &table);
    let context = Context {
        ephemeral_ports: 32768..=60999,
        node: None,
        host: None,
    };
    let checked = pepd_config::parse_all("snippet", &text, &context);
    checked.map(drop).map_err(|report| report.to_string())
}

/// Adds to a fragment what it speaks of and does not have, and what no file may lack.
fn complete(text: &str, table: &Table) -> String {
    let list = |name: &str| {
        table
            .get(name)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    let mut whole = text.to_owned();
    if !table.contains_key("node") && !table.contains_key("box") {
        whole += "\n[node]\nname = \"completed\"\n";
    }
    let mut campuses = list("campus");
    if campuses.is_empty() {
        whole += CAMPUSES;
    } else if campuses.len() == 1 {
        whole += "\n[[campus]]\nname = \"completed\"\nprefixes = [\"192.0.2.0/24\"]\n";
    }
    campuses.extend(list("link"));
    let legs = table
        .get("leg")
        .and_then(Value::as_table)
        .cloned()
        .unwrap_or_default();
    let named = campuses.iter().filter_map(|it| it.get("leg"));
    let mut wanted: BTreeSet<_> = named.flat_map(strings).collect();
    if whole.contains(CAMPUSES) {
        wanted.insert("completed".to_owned());
    }
    for leg in wanted.iter().filter(|name| !legs.contains_key(*name)) {
        whole += &format!(
            "\n[leg.{leg}]\ncongestion = \"fixed-rate\"\nrate = \"10Mbit\"\n\
             link = {{ interface = \"eth1\" }}\n"
        );
    }
    whole
}

/// A text, or the texts of a list.
fn strings(value: &Value) -> Vec<String> {
    match value {
        Value::Array(values) => values.iter().flat_map(strings).collect(),
        value => value.as_str().map(str::to_owned).into_iter().collect(),
    }
}

#[test]
fn a_fragment_is_completed_and_not_forgiven() {
    assert_eq!(
        check("[leg.radio]\nlink = { interface = \"eth1\" }\n"),
        Ok(())
    );
    let wrong = check("[leg.radio]\nlink = { interfaces = \"eth1\" }\n");
    assert!(wrong.unwrap_err().contains("interfaces"));
    let unknown =
        check("[[campus]]\nname = \"a\"\nprefixes = [\"10.1.0.0/16\"]\nvia = \"nobody\"\n");
    assert!(unknown.unwrap_err().contains("nobody"));
}
