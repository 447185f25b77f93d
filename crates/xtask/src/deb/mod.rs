//! `cargo xtask deb`: a package for Debian, and a trial of it.

mod trial;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::demo::build;
use crate::directories::{source_directory, target_directory};
use crate::packages::{self, Need};
use crate::shipped;
use crate::tool::{Tool, succeed};

/// What makes the package of Cargo.toml's `[package.metadata.deb]`.
const CARGO_DEB: Tool = Tool {
    name: "cargo-deb",
    version: "3.8.0",
    options: &[],
};

/// Build target/debian/pepd_VERSION_ARCHITECTURE.deb.
///
/// The first time, cargo-deb is compiled into the target directory, which takes two minutes.
#[derive(clap::Args)]
pub struct Args {
    /// Install, use, upgrade and purge it afterwards in copies of this Debian (needs root), one with a systemd
    /// that runs README's commands; nothing is left of that
    #[arg(long = "try")]
    is_tried: bool,
}

/// Builds the package.
///
/// # Errors
/// When something cannot be built, the program is too large, or the trial fails.
pub fn run(args: &Args) -> Result<()> {
    packages::provide(&[Need::new("dpkg-deb", "dpkg")])?;
    let pepd = build::small()?;
    let target = target_directory()?;
    let generated = target.join("deb");
    shipped::generate(&|| Ok(Command::new(&pepd)), &generated)?;
    fs::write(generated.join("pepd.service"), unit()?)?;
    let folder = target.join("debian");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let mut deb = Command::new(CARGO_DEB.get()?);
    deb.args(["--no-build", "--profile", "dist", "--locked", "--output"])
        .arg(&folder);
    succeed(&mut deb)?;
    let package = package(&folder)?;
    hold_the_budget(&package)?;
    println!("{}", package.display());
    if args.is_tried {
        trial::run_all(&package)?;
    }
    Ok(())
}

/// The unit, which runs the package's own program, whatever is in the path before that.
fn unit() -> Result<String> {
    const BY_PATH: &str = "/usr/bin/env pepd";
    let unit = fs::read_to_string(source_directory()?.join("config/pepd.service"))?;
    ensure!(unit.contains(BY_PATH), "the unit does not run {BY_PATH}");
    Ok(unit.replace(BY_PATH, "/usr/bin/pepd"))
}

fn package(folder: &Path) -> Result<PathBuf> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            return Ok(path);
        }
    }
    bail!("no package in {}", folder.display())
}

/// Looks at how large the program in the package is.
fn hold_the_budget(package: &Path) -> Result<()> {
    let listed = Command::new("dpkg-deb")
        .arg("--contents")
        .arg(package)
        .output()
        .context("cannot run dpkg-deb")?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let line = listed
        .lines()
        .find(|line| line.ends_with(" ./usr/bin/pepd"));
    let size = line.and_then(|line| line.split_whitespace().nth(2));
    let size: u64 = size
        .context("the package has no ./usr/bin/pepd")?
        .parse()
        .with_context(|| format!("{line:?}"))?;
    shipped::hold_the_budget(size)
}
