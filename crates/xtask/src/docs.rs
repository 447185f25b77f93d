//! `cargo xtask docs`: the documentation, checked, and as one site. What is checked is in src/documentation/,
//! since the commands and configurations in it are the program's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::directories::{source_directory, target_directory};
use crate::tool::{Tool, succeed};

/// What builds the site, without the server and the watcher.
const MDBOOK: Tool = Tool {
    name: "mdbook",
    version: "0.5.4",
    options: &["--no-default-features", "--features", "search"],
};

/// What the site has of the root of the sources, beside docs/ and config/.
const AT_ROOT: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
];

/// What mdBook is to know. A page's links lead to files beside it, as they do in the repository.
const BOOK: &str = "\
[book]
title = \"pepd\"
description = \"A transparent TCP performance enhancing proxy for Linux routers\"
language = \"en\"

[output.html]
default-theme = \"light\"
preferred-dark-theme = \"navy\"

[output.html.print]
enable = false
";

/// Check the documentation and build it as one site, target/docs/index.html.
///
/// Checked are links and anchors, the names of files and pages, the commands and the configurations,
/// as `cargo xtask test` does, too; and the links of the site. The first time, mdBook is compiled into the
/// target directory, which takes a minute.
#[derive(clap::Args)]
pub struct Args {
    /// Do not check the sources, only build the site
    #[arg(long)]
    no_check: bool,
}

/// Runs the tests of the documentation, and builds the site.
///
/// # Errors
/// When one of them fails, mdBook cannot be had, or a link of the site is dead.
pub fn run(args: &Args) -> Result<()> {
    if !args.no_check {
        let mut tests = Command::new("cargo");
        tests.args([
            "test",
            "--locked",
            "--quiet",
            "--bin",
            "pepd",
            "documentation::",
        ]);
        succeed(&mut tests)?;
    }
    let target = target_directory()?;
    let program = MDBOOK.get()?;
    let (staged, site) = (target.join("docs-source"), target.join("docs"));
    stage(&staged)?;
    let mut build = Command::new(&program);
    build.arg("build").arg(&staged).arg("--dest-dir").arg(&site);
    succeed(&mut build)?;
    let (pages, dead) = dead_links(&site)?;
    ensure!(
        dead.is_empty(),
        "dead links in the site:\n{}",
        dead.join("\n")
    );
    println!("{pages} pages: {}", site.join("index.html").display());
    Ok(())
}

/// Lays out afresh what mdBook reads: pages, and the files that they lead to.
fn stage(folder: &Path) -> Result<()> {
    let source = source_directory()?;
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    let pages = folder.join("src");
    for part in ["docs", "config"] {
        copy_folder(&source.join(part), &pages.join(part))?;
    }
    for name in AT_ROOT {
        copy(&source.join(name), &pages.join(name))?;
    }
    let contents = pages.join("docs/SUMMARY.md");
    let text = fs::read_to_string(&contents).context("read docs/SUMMARY.md")?;
    fs::remove_file(&contents).context("move docs/SUMMARY.md")?;
    write(&pages.join("SUMMARY.md"), &from_root(&text))?;
    for folder in [pages.join("docs"), pages] {
        name_index(&folder)?;
    }
    write(&folder.join("book.toml"), BOOK)
}

/// Gives the first page the name that mdBook shows it by, to which it does not turn the other pages' links.
fn name_index(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_none_or(|it| it != "md") {
            continue;
        }
        let text = fs::read_to_string(&path);
        let text = text.with_context(|| format!("read {}", path.display()))?;
        let text = text
            .replace("README.md)", "index.md)")
            .replace("README.md#", "index.md#");
        if path.ends_with("README.md") {
            fs::remove_file(&path).with_context(|| format!("move {}", path.display()))?;
            write(&path.with_file_name("index.md"), &text)?;
        } else {
            write(&path, &text)?;
        }
    }
    Ok(())
}

/// Has the links of a page in docs/ lead to the same from the root.
fn from_root(text: &str) -> String {
    text.replace("](", "](docs/").replace("](docs/../", "](")
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    let entries = fs::read_dir(from).with_context(|| format!("list {}", from.display()))?;
    for entry in entries {
        let path = entry
            .with_context(|| format!("list {}", from.display()))?
            .path();
        if let Some(name) = path.file_name().filter(|_| path.is_file()) {
            copy(&path, &to.join(name))?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// Gives the number of the site's pages, and their links within it that lead nowhere.
fn dead_links(site: &Path) -> Result<(usize, Vec<String>)> {
    let mut texts: BTreeMap<PathBuf, String> = BTreeMap::new();
    for folder in [site.to_owned(), site.join("docs")] {
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let path = entry?.path();
            // The page for what is not found may be shown at any address, and so leads from the root.
            if path.extension().is_some_and(|it| it == "html") && !path.ends_with("404.html") {
                let text = fs::read_to_string(&path);
                let text = text.with_context(|| format!("read {}", path.display()))?;
                texts.insert(path, text);
            }
        }
    }
    let anchors: BTreeMap<_, _> = texts
        .iter()
        .map(|(path, text)| (path, values(text, " id=\"").collect::<BTreeSet<_>>()))
        .collect();
    let mut dead = Vec::new();
    for (path, text) in &texts {
        for link in values(text, " href=\"").chain(values(text, " src=\"")) {
            if link.contains(':') {
                continue;
            }
            let (name, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match name {
                "" => path.clone(),
                _ => tidy(&path.with_file_name("").join(name)),
            };
            let there = anchors.get(&target);
            let found = target.exists()
                && (anchor.is_empty() || there.is_some_and(|there| there.contains(anchor)));
            if !found {
                let page = path.strip_prefix(site).unwrap_or(path);
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    dead.dedup();
    Ok((texts.len(), dead))
}

/// What stands in the attribute that begins so, each time.
fn values<'t>(text: &'t str, begin: &str) -> impl Iterator<Item = &'t str> {
    let mut parts = text.split(begin);
    parts.next();
    parts.filter_map(|part| part.split_once('"').map(|(value, _)| value))
}

/// The path without `..`.
fn tidy(path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(tidy.pop()),
            part => tidy.push(part),
        }
    }
    tidy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contents_lead_to_the_same_from_the_root() {
        let text = "[a](../README.md)\n- [b](admin.md)\n";
        assert_eq!(from_root(text), "[a](README.md)\n- [b](docs/admin.md)\n");
    }

    #[test]
    fn a_dead_link_of_the_site_is_found() -> Result<()> {
        let site = tempfile::tempdir()?;
        fs::create_dir(site.path().join("docs"))?;
        let page = "<h1 id=\"a\"></h1> <a href=\"docs/b.html#c\"></a><a href=\"#a\"></a><a href=\"x.html\"></a>";
        fs::write(site.path().join("index.html"), page)?;
        let other = "<h1 id=\"c\"></h1><a href=\"../index.html#nowhere\"></a><a href=\"https://x.net/\"></a>";
        fs::write(site.path().join("docs/b.html"), other)?;
        let (pages, dead) = dead_links(site.path())?;
        assert_eq!(pages, 2);
        assert_eq!(
            dead,
            ["docs/b.html: ../index.html#nowhere", "index.html: x.html"]
        );
        Ok(())
    }
}
