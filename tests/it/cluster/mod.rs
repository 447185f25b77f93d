//! Boxes that stand in for each other: whether one is fit, and the files of config/ for those who ask.

mod ready;
mod ready_peers;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use pepd_testbed::{Finished, run};

use crate::harness::{LIMIT, PEPD};

/// `pepd ready …` of the daemon at `socket`.
fn ready(socket: &Path, words: &[&str]) -> Result<Finished> {
    let mut command = Command::new(PEPD);
    run(
        command.arg("ready").args(words).arg("--socket").arg(socket),
        LIMIT,
    )
}

/// Returns whether it is fit, and what it says of it.
fn is_ready(socket: &Path, words: &[&str]) -> Result<(bool, String)> {
    let asked = ready(socket, words)?;
    match asked.status.code() {
        Some(0) => Ok((true, asked.stdout.trim_end().to_owned())),
        Some(1) => Ok((false, asked.stdout.trim_end().to_owned())),
        _ => anyhow::bail!("{asked:?}"),
    }
}

/// Returns where a file of config/ is.
fn config_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config")
        .join(name)
}

/// Returns a file of config/ in which some words are others. Each has to be in it.
fn adapted(name: &str, changes: &[(&str, &str)]) -> Result<String> {
    let mut text = fs::read_to_string(config_file(name)).context(name.to_owned())?;
    for (from, to) in changes {
        anyhow::ensure!(text.contains(from), "config/{name} has no `{from}`");
        text = text.replace(from, to);
    }
    Ok(text)
}
