//! `cargo xtask deny`: what pepd depends on has licences, versions and sources that deny.toml
//! allows.

use std::process::Command;

use anyhow::Result;

use crate::tool::{Tool, succeed};

/// What checks, without what fetches advisories.
const DENY: Tool = Tool {
    name: "cargo-deny",
    version: "0.20.2",
    options: &["--no-default-features"],
};

/// Check the licences, versions and sources of all dependencies against deny.toml.
///
/// The first time, cargo-deny is compiled into the target directory. Advisories are not looked at:
/// their database is not on a package registry.
#[derive(clap::Args)]
pub struct Args {}

/// Compiles cargo-deny unless it is there, and runs it.
///
/// # Errors
/// When it cannot be compiled, or finds something that is not allowed.
pub fn run() -> Result<()> {
    let mut deny = Command::new(DENY.get()?);
    // Older dependencies of ours have older ones of their own: deny.toml warns of each pair.
    deny.args(["--workspace", "--locked", "--all-features", "check"])
        .args(["--hide-inclusion-graph", "licenses", "bans", "sources"]);
    succeed(&mut deny)
}
