//! The files that pepd comes with.

use std::fs;
use std::path::{Path, PathBuf};

use super::{context, designed};
use crate::{keys, parse_all};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config")
}

fn text(name: &str) -> String {
    let path = folder().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_file_is_valid() {
    let mut names: Vec<String> = fs::read_dir(folder())
        .expect("there is a config folder")
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".toml"))
        .collect();
    names.sort();
    for role in [
        "campus-box.toml",
        "earth-station.toml",
        "fleet.toml",
        "gateway.toml",
        "pepd.toml",
        "radio.toml",
    ] {
        assert!(
            names.iter().any(|name| name == role),
            "{role} is missing from {names:?}"
        );
    }
    for name in names {
        if let Err(report) = parse_all(&format!("config/{name}"), &text(&name), &context()) {
            panic!("{report}");
        }
    }
}

#[test]
fn fleet_toml_is_valid_for_every_box() {
    let configs = parse_all("fleet.toml", &text("fleet.toml"), &context());
    let configs = configs.unwrap_or_else(|report| panic!("{report}"));
    let names: Vec<_> = configs.iter().map(|config| &config.node.name).collect();
    assert_eq!(names, ["hb-a", "hb-i", "hb-b", "hb-c"]);
}

/// Uncommenting every line that is a key or a header gives a file with everything there is.
pub(super) fn uncommented(text: &str) -> String {
    let bare = |line: &str| match line.strip_prefix('#') {
        Some(key) if !key.starts_with([' ', '#']) && !key.is_empty() => format!("{key}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(bare).collect()
}

#[test]
fn the_commented_out_keys_of_pepd_toml_are_valid() {
    let text = uncommented(&text("pepd.toml"));
    if let Err(report) = designed(&text) {
        panic!("{report}");
    }
}

/// Not merely mentioned: each key is written as it would be used, in its own section.
#[test]
fn pepd_toml_has_every_key() {
    let read = |name| -> toml::Table {
        let text = uncommented(&text(name));
        text.parse().expect("it is valid TOML")
    };
    let (one, fleet) = (read("pepd.toml"), read("fleet.toml"));
    for (title, keys) in keys::ALL {
        // No file can have these and `[[peer]]` as well.
        let (name, document) = match *title {
            "[[box]]" | "[[link]]" => ("fleet.toml", &fleet),
            _ => ("pepd.toml", &one),
        };
        let path: Vec<&str> = title.trim_matches(['[', ']']).split('.').collect();
        for key in *keys {
            let found = tables(document, &path)
                .iter()
                .any(|table| table.contains_key(*key));
            assert!(found, "{title} `{key}` is not in config/{name}");
        }
    }
}

/// Returns the tables at `path`, in which `NAME` is any key and a list stands for its elements.
fn tables<'t>(table: &'t toml::Table, path: &[&str]) -> Vec<&'t toml::Table> {
    let Some((first, rest)) = path.split_first() else {
        return vec![table];
    };
    let here = table
        .iter()
        .filter(|(key, _)| *first == "NAME" || key == first);
    here.flat_map(|(_, value)| match value {
        toml::Value::Table(table) => vec![table],
        toml::Value::Array(array) => array.iter().filter_map(|it| it.as_table()).collect(),
        _ => Vec::new(),
    })
    .flat_map(|table| tables(table, rest))
    .collect()
}
