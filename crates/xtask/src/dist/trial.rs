//! Trying a program that has been built for others.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use pepd_testbed::{Family, Pepd, World};

use crate::cross::Target;
use crate::directories::source_directory;
use crate::packages;

/// What is computed on the way, in floating point as well.
const MODEL: [&str; 9] = [
    "model",
    "--in",
    "rtt=200ms,loss=0.01%",
    "--out",
    "rtt=20ms,loss=1%",
    "--rate",
    "50Mbit",
    "--connections",
    "1000",
];

/// Runs what of the program can be run here.
///
/// # Errors
/// When that fails.
pub fn run(target: Target, program: &Path) -> Result<()> {
    let triple = target.triple();
    if target.command(program).is_err() {
        println!("{triple}: NOT tried: this machine has another processor, and no emulator");
        return Ok(());
    }
    let version = said(target.command(program)?.arg("--version"))?;
    ensure!(version.contains(triple), "it says that it is {version}");
    println!("{}", version.trim());
    let mut files = 0;
    for entry in fs::read_dir(source_directory()?.join("config"))? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            said(
                target
                    .command(program)?
                    .args(["check", "--all", "-c"])
                    .arg(path),
            )?;
            files += 1;
        }
    }
    ensure!(files > 0, "there is no file to check");
    let model = said(target.command(program)?.args(MODEL))?;
    ensure!(model.contains("Mbit/s"), "its model says {model}");
    if !target.is_native() {
        println!(
            "{triple}: tried under emulation: --version, check of {files} files, model; no daemon, which QEMU's \
             user mode lacks system calls for"
        );
    } else if geteuid().is_root() {
        split(program)?;
        println!(
            "{triple}: tried: --version, check of {files} files, model; connections were split, outlived a crash \
             of its daemon, and left no trace"
        );
    } else {
        println!(
            "{triple}: tried: --version, check of {files} files, model; NO connection, which takes root"
        );
    }
    Ok(())
}

fn said(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Has it split connections, and go on with them after its daemon's process has died.
fn split(program: &Path) -> Result<()> {
    const LENGTH: u64 = 1_000_000;
    packages::provide(packages::NETWORK)?;
    let world = World::standard()?;
    let before = world.kernel_state()?;
    let mut pepd = Pepd::start(program, world.hb(), &World::config())?;
    for family in Family::BOTH {
        let (pair, split) = world.probe(family)?;
        ensure!(split, "{family} is not split: {}", pepd.log());
        pair.exchange(LENGTH)?;
        // By which it ends itself, too: the C library has to know whose number that is.
        pepd.dies(Signal::SIGABRT)?;
        pair.exchange(LENGTH)
            .with_context(|| format!("after a crash: {}", pepd.log()))?;
    }
    let (status, log) = pepd.stop()?;
    ensure!(status.success(), "it ended with {status}: {log}");
    ensure!(world.kernel_state()? == before, "it has left something");
    Ok(())
}
