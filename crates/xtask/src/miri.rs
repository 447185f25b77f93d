//! `cargo xtask miri`: the tests of the crate with `unsafe` under Miri.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::directories::{source_directory, target_directory};

/// Run what Miri can of the tests of pepd-sys: it looks for undefined behaviour.
///
/// It takes a nightly toolchain with Miri, which is not installed here and not part of the gate:
/// `rustup toolchain install nightly --component miri,rust-src`. Miri knows few system calls: what is
/// run is what reads the kernel's bytes, and sockets and pipes as far as it has them.
#[derive(clap::Args)]
pub struct Args {}

/// Runs them.
///
/// # Errors
/// When there is no Miri, or a test fails.
pub fn run() -> Result<()> {
    let there = miri(&["--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    ensure!(
        there.is_ok_and(|status| status.success()),
        "there is no Miri; `rustup toolchain install nightly --component miri,rust-src` installs it"
    );
    let mut test = miri(&["test", "--package", "pepd-sys", "--lib", "--locked"]);
    let status = test
        .arg("--target-dir")
        .arg(target_directory()?)
        .current_dir(source_directory()?)
        // proptest asks where it is; and so few cases take a minute.
        .env(
            "MIRIFLAGS",
            "-Zmiri-disable-isolation -Zmiri-strict-provenance",
        )
        .env("PROPTEST_CASES", "16")
        .status()
        .context("cannot run rustup")?;
    ensure!(status.success(), "cargo miri test: {status}");
    Ok(())
}

fn miri(arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", "nightly", "cargo", "miri"])
        .args(arguments);
    command
}
