//! Programs of cargo's registry, each of one version, compiled into the target directory the first time.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::directories::{source_directory, target_directory};

/// A program that a package of the registry has.
pub struct Tool {
    /// The package, and the program in it.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// How it is compiled, besides quickly: not optimized.
    pub options: &'static [&'static str],
}

impl Tool {
    /// Returns where the program is, and compiles it unless it is there.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn get(&self) -> Result<PathBuf> {
        let Self { name, version, .. } = self;
        let folder = target_directory()?
            .join("tools")
            .join(format!("{name}-{version}"));
        let program = folder.join("bin").join(name);
        if !program.exists() {
            println!("Compiling {name} {version}, once");
            let mut cargo = Command::new("cargo");
            cargo
                .args(["install", name, "--version", version, "--locked"])
                .args(["--debug", "--quiet", "--root"])
                .arg(folder)
                .env("CARGO_PROFILE_DEV_DEBUG", "0")
                .args(self.options);
            succeed(&mut cargo)?;
        }
        Ok(program)
    }
}

/// Runs a program in the folder of the sources.
///
/// # Errors
/// When it cannot be run, or fails.
pub fn succeed(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let status = command
        .current_dir(source_directory()?)
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program}: {status}");
    Ok(())
}
