//! `cargo xtask bpf` compiles the BPF programs of pepd-bpf. What comes out is kept in the repository, so that
//! whoever builds pepd needs no compiler for it.
//!
//! It is one version of clang that decides what that is, byte for byte: another one's instructions are others.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::directories::source_directory;
use crate::packages;

/// Compile the BPF programs of the congestion controls, as it is kept in the repository
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

/// Where the programs are, their sources as well as what is kept.
const FOLDER: &str = "crates/pepd-bpf/src/bpf";

/// The programs' names: `NAME.bpf.c` is compiled to `NAME.TARGET.o`.
const PROGRAMS: [&str; 2] = ["leg_rate", "resume"];

/// What each is compiled for: processors of either byte order.
const TARGETS: [&str; 2] = ["bpfel", "bpfeb"];

/// Compiles the programs, or compares what is kept with that.
pub fn run(args: &Args) -> Result<()> {
    packages::provide(packages::BPF)?;
    let folder = source_directory()?.join(FOLDER);
    for (program, target) in all() {
        let compiled = compile(&folder, program, target)?;
        let object = object(program, target);
        let kept = folder.join(&object);
        if args.check {
            check(&kept, &compiled, program)?;
        } else {
            fs::write(&kept, &compiled).with_context(|| kept.display().to_string())?;
            println!("{FOLDER}/{object}: {} bytes", compiled.len());
        }
    }
    Ok(())
}

/// Gives each program with each target.
fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    PROGRAMS
        .into_iter()
        .flat_map(|program| TARGETS.map(|target| (program, target)))
}

fn source(program: &str) -> String {
    format!("{program}.bpf.c")
}

fn object(program: &str, target: &str) -> String {
    format!("{program}.{target}.o")
}

fn check(kept: &Path, compiled: &[u8], program: &str) -> Result<()> {
    let bytes = fs::read(kept).with_context(|| kept.display().to_string())?;
    ensure!(
        bytes == compiled,
        "{} is not what {CLANG} makes of {FOLDER}/{}: run `cargo xtask bpf`, and commit it",
        kept.display(),
        source(program)
    );
    Ok(())
}

/// Returns what the source gives, without what nobody reads: a debugger's tables, labels, and relocations of
/// the types, which loaders do without.
fn compile(folder: &Path, program: &str, target: &str) -> Result<Vec<u8>> {
    let scratch = tempfile::tempdir()?;
    let (source, object) = (source(program), scratch.path().join("object"));
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
            .args(["-Wall", "-Wextra", "-Werror", "-c", &source, "-o"])
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
        let check = |program, target| {
            let kept = folder.join(object(program, target));
            check(&kept, &compile(scratch.path(), program, target)?, program)
        };
        all().try_for_each(|(program, target)| check(program, target))?;
        for (program, constant) in [
            ("leg_rate", "#define WINDOW 3"),
            ("resume", "#define MICROSECONDS 1"),
        ] {
            let source = scratch.path().join(source(program));
            let (before, after) = (fs::read_to_string(&source)?, format!("{constant}0"));
            let changed = before.replace(constant, &after);
            fs::write(&source, changed)?;
            for target in TARGETS {
                let refused = check(program, target);
                assert!(refused.unwrap_err().to_string().contains("cargo xtask bpf"));
            }
        }
        Ok(())
    }
}
