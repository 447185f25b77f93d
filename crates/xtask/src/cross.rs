//! Compiling for musl: programs that need no library of the machine they run on, of either processor.
//!
//! No C is compiled, so that Rust's own linker is enough, and what the toolchain has of musl.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::directories::source_directory;
use crate::packages::{self, Need};

/// What is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// 64-bit Arm.
    Aarch64,
    /// x86-64.
    X86_64,
}

/// The linker that each of Rust's own toolchains has.
const LINKER: &str = "rust-lld";

impl Target {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// Returns the name that the compiler has for it.
    pub fn triple(self) -> &'static str {
        match self {
            Self::Aarch64 => "aarch64-unknown-linux-musl",
            Self::X86_64 => "x86_64-unknown-linux-musl",
        }
    }

    /// Returns the processor's name.
    pub fn processor(self) -> &'static str {
        match self {
            Self::Aarch64 => "aarch64",
            Self::X86_64 => "x86_64",
        }
    }

    /// Tells whether this machine has such a processor.
    pub fn is_native(self) -> bool {
        self.processor() == env::consts::ARCH
    }

    /// Makes sure that the compiler has the standard library for it, and says what it downloads for that.
    ///
    /// # Errors
    /// When that cannot be had. The message says how.
    pub fn provide(self) -> Result<()> {
        let triple = self.triple();
        if is_there(triple)? {
            return Ok(());
        }
        println!("Adding the standard library for {triple} to the Rust toolchain (rustup)");
        let added = in_sources("rustup")?
            .args(["target", "add", triple])
            .status();
        let cure = "`rustup target add` adds it, where Rust is rustup's (https://rustup.rs) and its server is \
                    reached; else your distribution may have it in a package of its own";
        ensure!(
            added.is_ok_and(|status| status.success()) && is_there(triple)?,
            "there is no standard library for {triple}: {cure}"
        );
        Ok(())
    }

    /// Returns cargo, to be given a subcommand whose `--target` is this.
    ///
    /// # Errors
    /// When the linker is not there. The message says what else would do.
    pub fn cargo(self) -> Result<Command> {
        let prefix = format!(
            "CARGO_TARGET_{}",
            self.triple().to_uppercase().replace('-', "_")
        );
        let mut cargo = in_sources(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))?;
        // Whoever has another linker for it may say so.
        let linker = format!("{prefix}_LINKER");
        if env::var_os(&linker).is_none() {
            ensure!(
                linker_of_rust()?.is_file(),
                "this Rust toolchain has no {LINKER}; rustup's (https://rustup.rs) have it, or set {linker} to a \
                 program that links for {}",
                self.triple()
            );
            cargo.env(linker, LINKER);
        }
        if !self.is_native()
            && let Some(emulator) = self.emulator()
        {
            cargo.env(format!("{prefix}_RUNNER"), emulator);
        }
        Ok(cargo)
    }

    /// Returns a program that runs programs for it, if there is one.
    pub fn emulator(self) -> Option<PathBuf> {
        // Debian's qemu-user-static, and its qemu-user since that is static, too.
        let names = ["-static", ""].map(|end| format!("qemu-{}{end}", self.processor()));
        names.iter().find_map(|name| packages::find(name))
    }

    /// Makes sure that programs for it can be run, and says what it installs for that.
    ///
    /// # Errors
    /// As [`packages::provide`].
    pub fn provide_emulator(self) -> Result<()> {
        if self.is_native() || self.emulator().is_some() {
            return Ok(());
        }
        let program = match self {
            Self::Aarch64 => "qemu-aarch64-static",
            Self::X86_64 => "qemu-x86_64-static",
        };
        packages::provide(&[Need::new(program, "qemu-user-static")])
    }

    /// Returns a command that runs a program for it: emulated, if it is another processor's.
    ///
    /// # Errors
    /// When nothing runs it.
    pub fn command(self, program: &Path) -> Result<Command> {
        if self.is_native() {
            return Ok(Command::new(program));
        }
        let emulator = self.emulator();
        let mut command = Command::new(
            emulator
                .with_context(|| format!("nothing here runs programs for {}", self.processor()))?,
        );
        command.arg(program);
        Ok(command)
    }
}

/// Tells whether the compiler has the standard library for a target.
fn is_there(triple: &str) -> Result<bool> {
    let folder = asked(&["--print", "target-libdir", "--target", triple])?;
    Ok(Path::new(&folder).is_dir())
}

/// The file of the linker that comes with the compiler.
fn linker_of_rust() -> Result<PathBuf> {
    let folder = asked(&["--print", "target-libdir"])?;
    Ok(Path::new(&folder).with_file_name("bin").join(LINKER))
}

fn asked(words: &[&str]) -> Result<String> {
    let output = in_sources("rustc")?
        .args(words)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run rustc")?;
    ensure!(
        output.status.success(),
        "`rustc {}`: {}",
        words.join(" "),
        output.status
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A command in the folder of the sources, where rustup takes the toolchain that these name.
fn in_sources(program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
    let mut command = Command::new(program);
    command.current_dir(source_directory()?);
    Ok(command)
}
