//! Building the binary that the demo runs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::cross::Target;
use crate::packages;

/// One line of cargo's `--message-format=json`, as far as it matters here.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
}

/// Provides what a command that runs `pepd` in namespaces needs, and says where the binary is: the
/// one that is given, or one that is built now.
///
/// # Errors
/// Without root, without such a file, or when it does not build.
pub fn for_namespaces(given: Option<&Path>) -> Result<PathBuf> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "network namespaces need root: run it with sudo"
    );
    packages::provide(packages::NETWORK)?;
    match given {
        Some(file) => Ok(file.canonicalize()?),
        None => release(),
    }
}

/// Builds `pepd` as a user gets it, and says where it is.
///
/// # Errors
/// When it does not build.
pub fn release() -> Result<PathBuf> {
    println!("Building pepd (release) …");
    built(&["--release"])
}

/// Builds `pepd` as packages have it, and says where it is.
///
/// # Errors
/// When it does not build.
pub fn small() -> Result<PathBuf> {
    println!("Building pepd (dist), for some minutes …");
    built(&["--profile", "dist"])
}

/// Builds `pepd` as archives have it, for another C library and maybe another processor, and says where
/// it is.
///
/// # Errors
/// When it does not build.
pub fn for_target(target: Target) -> Result<PathBuf> {
    println!(
        "Building pepd (dist, {}), for some minutes …",
        target.triple()
    );
    let profile = ["--profile", "dist", "--target", target.triple()];
    built_by(target.cargo()?, &profile)
}

/// Builds `pepd` with the parts that this program has been built of, and says where it is. That
/// takes a fraction of the time, and carries hundreds of Mbit/s as well.
///
/// # Errors
/// When it does not build.
pub fn quickly() -> Result<PathBuf> {
    println!("Building pepd, the first time for some minutes …");
    built(&[])
}

fn built(profile: &[&str]) -> Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    built_by(Command::new(cargo), profile)
}

fn built_by(mut cargo: Command, profile: &[&str]) -> Result<PathBuf> {
    let output = cargo
        .args(["build", "--locked", "--package", "pepd", "--bin", "pepd"])
        .args(profile)
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "`cargo build`: {}", output.status);
    output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Message>(line).ok())
        .find_map(|message| message.executable)
        .context("cargo has built no program")
}
