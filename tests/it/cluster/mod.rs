//! Boxes that stand in for each other: whether one is fit, and the files of config/ for those who ask.

mod announced;
mod ground;
pub mod moves;
mod ready;
mod ready_peers;
mod side_by_side;
mod vrrp;

use std::path::Path;
use std::process::Command;

use anyhow::Result;
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
