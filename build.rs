//! Tells the binary of what it is made: `pepd --version` says the commit and the target.

use std::env;
use std::fs;
use std::process::Command;

fn main() {
    let commit = from_git().or_else(from_package);
    let target = env::var("TARGET").unwrap_or_default();
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let commit = commit.map_or_else(String::new, |commit| format!("commit {commit}, "));
    println!("cargo::rustc-env=PEPD_VERSION={version} ({commit}{target})");
    println!("cargo::rerun-if-changed=build.rs");
}

/// Asks git for the commit of this checkout, and to be run again when there is another.
fn from_git() -> Option<String> {
    // Of a package that is unpacked within some other checkout that one's commit would say nothing.
    let prefix = git(&["rev-parse", "--show-prefix"])?;
    if !prefix.is_empty() {
        return None;
    }
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name])
            && fs::exists(&path).unwrap_or(false)
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let said = output.status.success().then_some(output.stdout)?;
    Some(String::from_utf8(said).ok()?.trim().to_owned())
}

/// Reads the commit that `cargo package` has noted.
fn from_package() -> Option<String> {
    let noted = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = noted.split_once("\"sha1\": \"")?;
    rest.get(..12).map(str::to_owned)
}
