//! `cargo xtask ci`: the gate.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::directories::source_directory;

/// Run what must be green before anything lands: format, lints, docs, and every test.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the gate, which is a script so that it can be started where xtask does not build.
pub fn run() -> Result<()> {
    let gate = source_directory()?.join(".ci/run");
    let status = Command::new(&gate)
        .status()
        .with_context(|| format!("run {}", gate.display()))?;
    ensure!(status.success(), "the gate is not green: {status}");
    Ok(())
}
