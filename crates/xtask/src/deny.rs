//! `cargo xtask deny`: what pepd depends on has licences, versions and sources that deny.toml
//! allows.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::directories::{source_directory, target_directory};

/// The version of cargo-deny that checks.
const VERSION: &str = "0.20.2";

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
    let folder = target_directory()?
        .join("tools")
        .join(format!("cargo-deny-{VERSION}"));
    let program = folder.join("bin/cargo-deny");
    if !program.exists() {
        install(&folder)?;
    }
    let mut deny = Command::new(&program);
    // Older dependencies of ours have older ones of their own: deny.toml warns of each pair.
    deny.args(["--workspace", "--locked", "--all-features", "check"])
        .args(["--hide-inclusion-graph", "licenses", "bans", "sources"]);
    succeed(&mut deny)
}

/// Compiles it as quickly as may be, since it runs for two seconds: not optimized, and without what
/// fetches advisories.
fn install(folder: &Path) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["install", "cargo-deny", "--version", VERSION, "--locked"])
        .args(["--debug", "--no-default-features", "--quiet", "--root"])
        .arg(folder);
    succeed(&mut cargo)
}

fn succeed(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let status = command
        .current_dir(source_directory()?)
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program}: {status}");
    Ok(())
}
