//! Links lead somewhere, and so do the names of files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::none;
use super::page::{Kind, Page, files, root};

/// Where things are that pages and sources may name.
const FOLDERS: [&str; 7] = [
    "benches", "config", "crates", "docs", "examples", "src", "tests",
];

#[test]
fn no_link_is_dead() {
    let pages = Page::all();
    let anchors: BTreeMap<_, _> = pages
        .iter()
        .map(|page| (page.name.clone(), page.anchors()))
        .collect();
    let mut dead = Vec::new();
    for page in &pages {
        for (line, link) in page.links() {
            if let Err(why) = follow(&page.name, &link, &anchors) {
                dead.push(format!("{}: {link}: {why}", page.at(line)));
            }
        }
    }
    none(dead);
}

/// Follows a link of the page of this name.
fn follow(
    page: &str,
    link: &str,
    anchors: &BTreeMap<String, BTreeSet<String>>,
) -> Result<(), String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(());
    }
    let (path, anchor) = link
        .split_once('#')
        .map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let target = match path {
        "" => page.to_owned(),
        _ => resolve(page, path).ok_or("it leaves the sources")?,
    };
    if !root().join(&target).exists() {
        return Err(format!("there is no {target}"));
    }
    match (anchor, anchors.get(&target)) {
        (None, _) => Ok(()),
        (Some(_), None) => Err(format!("{target} has no headings")),
        (Some(anchor), Some(there)) if there.contains(anchor) => Ok(()),
        (Some(_), Some(there)) => Err(format!("the headings there are {there:?}")),
    }
}

/// The path from the root of what `page` calls `path`.
fn resolve(page: &str, path: &str) -> Option<String> {
    let mut parts: Vec<_> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// A page or a source that a page names in passing is there: by its path from the root, or by the end
/// of its path, as ARCHITECTURE.md names those of one crate.
#[test]
fn the_files_that_pages_name_are_there() {
    let there: Vec<_> = FOLDERS.iter().flat_map(|folder| files(folder)).collect();
    let mut missing = Vec::new();
    for page in Page::all()
        .iter()
        .filter(|page| page.name != "CHANGELOG.md")
    {
        let code = page.code();
        for span in code.iter().filter(|code| code.kind == Kind::Span) {
            let name = span.text.trim_start_matches("./");
            let ends = [".rs", ".md", ".c", ".js", ".service"];
            let begins = FOLDERS
                .iter()
                .any(|folder| name.starts_with(&format!("{folder}/")));
            let is_file = begins || ends.iter().any(|end| name.ends_with(end));
            if !is_file || name.starts_with('/') || name.contains([' ', '*', ',']) {
                continue;
            }
            let end = format!("/{name}");
            if !there
                .iter()
                .any(|path| path == name || path.ends_with(&end))
                && !root().join(name).exists()
            {
                missing.push(format!("{}: there is no {name}", page.at(span.line)));
            }
        }
    }
    none(missing);
}

/// What messages, comments and files of the configuration say of docs/ is there, anchors included.
#[test]
fn the_pages_that_sources_name_are_there() {
    let anchors: BTreeMap<_, _> = Page::all()
        .iter()
        .map(|page| (page.name.clone(), page.anchors()))
        .collect();
    let mut missing = Vec::new();
    let texts = FOLDERS.iter().flat_map(|folder| files(folder));
    for name in texts.filter(|name| !name.ends_with(".md") && !name.contains("/corpus/")) {
        // What is no text names no page.
        let Ok(text) = fs::read_to_string(root().join(&name)) else {
            continue;
        };
        for (at, line) in text.lines().enumerate() {
            for (start, _) in line.match_indices("docs/") {
                let letters = |letter: char| letter.is_alphanumeric() || "-_./#".contains(letter);
                let rest = &line[start..];
                let link = &rest[..rest.find(|letter| !letters(letter)).unwrap_or(rest.len())];
                let link = link.trim_end_matches('.');
                if !link.contains(".md") {
                    continue;
                }
                if let Err(why) = follow("README.md", link, &anchors) {
                    missing.push(format!("{name}:{}: {link}: {why}", at + 1));
                }
            }
        }
    }
    none(missing);
}

/// The contents of the site name every page of it once, and no other.
#[test]
fn the_contents_are_complete() {
    let pages = Page::all();
    let is_contents = |page: &&Page| page.name == "docs/SUMMARY.md";
    let contents = pages.iter().find(is_contents).expect("docs/SUMMARY.md");
    let links = contents.links();
    let mut named: Vec<_> = links
        .iter()
        .filter_map(|(_, link)| resolve(&contents.name, link))
        .collect();
    named.sort();
    let wanted = pages
        .iter()
        .filter(|page| !page.name.starts_with("crates/") && !is_contents(page));
    let mut wanted: Vec<_> = wanted.map(|page| page.name.clone()).collect();
    wanted.sort();
    assert_eq!(named, wanted);
}
