//! `cargo xtask bpf` compiles the BPF program of pepd-bpf. What comes out is kept in the repository, so that
//! whoever builds pepd needs no compiler for it.
//!
//! It is one version of clang that decides what that is, byte for byte: another one's instructions are others.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::directories::source_directory;
use crate::packages;

/// Compile the BPF program of the congestion controls, as it is kept in the repository
#[derive(clap::Args)]
pub struct Args {
    /// Change nothing, and fail if what is kept is not what its source gives
    #[arg(long)]
    check: bool,
}

/// The compiler, which Debian 12 and 13 have.
const CLANG: &str = "clang-19";

/// What takes from an object what is for a linker and a debugger.
const STRIP: &str = "llvm-strip-19";

/// Where the program is, its source as well as what is kept.
const FOLDER: &str = "crates/pepd-bpf/src/bpf";

/// The source, and what it is compiled to, by target.
const SOURCE: &str = "leg_rate.bpf.c";
const OBJECTS: [(&str, &str); 2] = [("bpfel", "leg_rate.bpfel.o"), ("bpfeb", "leg_rate.bpfeb.o")];

/// Compiles the program, or compares what is kept with that.
pub fn run(args: &Args) -> Result<()> {
    packages::provide(packages::BPF)?;
    let folder = source_directory()?.join(FOLDER);
    for (target, object) in OBJECTS {
        let compiled = compile(&folder, target)?;
        let kept = folder.join(object);
        if args.check {
            check(&kept, &compiled)?;
        } else {
            fs::write(&kept, &compiled).with_context(|| kept.display().to_string())?;
            println!("{FOLDER}/{object}: {} bytes", compiled.len());
        }
    }
    Ok(())
}

fn check(kept: &Path, compiled: &[u8]) -> Result<()> {
    let bytes = fs::read(kept).with_context(|| kept.display().to_string())?;
    ensure!(
        bytes == compiled,
        "{} is not what {CLANG} makes of {FOLDER}/{SOURCE}: run `cargo xtask bpf`, and commit it",
        kept.display()
    );
    Ok(())
}

/// Returns what the source gives, without what nobody reads: a debugger's tables, labels, and relocations of
/// the types, which loaders do without.
fn compile(folder: &Path, target: &str) -> Result<Vec<u8>> {
    let scratch = tempfile::tempdir()?;
    let object = scratch.path().join("object");
    // Names of folders would go into it.
    let reproducibly = "-fdebug-compilation-dir=.";
    let of_types = [
        "--remove-section=.rel.BTF",
        "--remove-section=.rel.BTF.ext",
        "--remove-section=.llvm_addrsig",
    ];
    execute(
        Command::new(CLANG)
            .current_dir(folder)
            .args(["-target", target, "-mcpu=v3", "-O2", "-g", reproducibly])
            .args(["-Wall", "-Wextra", "-Werror", "-c", SOURCE, "-o"])
            .arg(&object),
    )?;
    execute(
        Command::new(STRIP)
            .args(["--strip-debug", "--discard-all"])
            .args(of_types)
            .arg(&object),
    )?;
    fs::read(&object).context("the compiled program")
}

fn execute(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let status = command.status().with_context(|| program.clone())?;
    ensure!(status.success(), "`{program}`: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use pepd_testbed::require;

    use super::*;

    #[test]
    fn what_is_kept_is_what_the_source_gives() -> Result<()> {
        require!(program("clang-19"), program("llvm-strip-19"));
        run(&Args { check: true })
    }

    /// A change of the source that changes what it gives, or an object from elsewhere.
    #[test]
    fn another_object_is_told_from_it() -> Result<()> {
        require!(program("clang-19"), program("llvm-strip-19"));
        let scratch = tempfile::tempdir()?;
        let folder = source_directory()?.join(FOLDER);
        for file in fs::read_dir(&folder)? {
            let file = file?;
            fs::copy(file.path(), scratch.path().join(file.file_name()))?;
        }
        for (target, object) in OBJECTS {
            check(&folder.join(object), &compile(scratch.path(), target)?)?;
        }
        let source = scratch.path().join(SOURCE);
        let changed = fs::read_to_string(&source)?.replace("#define WINDOW 3", "#define WINDOW 4");
        fs::write(&source, changed)?;
        for (target, object) in OBJECTS {
            let refused = check(&folder.join(object), &compile(scratch.path(), target)?);
            assert!(refused.unwrap_err().to_string().contains("cargo xtask bpf"));
        }
        Ok(())
    }
}
