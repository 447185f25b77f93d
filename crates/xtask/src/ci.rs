//! `cargo xtask ci`: the gate.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Run what must be green before anything lands: format, lints, docs, and every test.
#[derive(clap::Args)]
pub struct Args {}

/// The gate is a script, so that it can be started where xtask does not build.
pub fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let gate = root.join(".ci/run");
    let status = Command::new(&gate)
        .status()
        .with_context(|| format!("run {}", gate.display()))?;
    ensure!(status.success(), "the gate is not green: {status}");
    Ok(())
}
