//! `cargo xtask dist`: programs that need nothing of the machine they run on, tried, and archives of them.

mod archive;
mod elf;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::cross::Target;
use crate::demo::build;
use crate::directories::target_directory;
use crate::packages::{self, Need};
use crate::shipped;

/// Build static programs for x86-64 and aarch64, try them, and pack target/dist/pepd-VERSION-TARGET.tar.gz.
///
/// It takes some minutes for each. Rust's standard library for the two is added by rustup where it is
/// missing. The program of the other processor is tried under emulation where that can be had (Debian's
/// qemu-user-static); as root, that of this one splits connections in network namespaces.
#[derive(clap::Args)]
pub struct Args {
    /// Only this processor's; may be repeated
    #[arg(long = "for", value_name = "PROCESSOR")]
    targets: Vec<Target>,
}

impl ValueEnum for Target {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.processor()))
    }
}

/// What archives are made of, which Debian has.
const ARCHIVERS: &[Need] = &[
    Need::new("tar", "tar"),
    Need::new("gzip", "gzip"),
    Need::new("sha256sum", "coreutils"),
];

/// Builds, tries and packs them.
///
/// # Errors
/// When something is missing, does not build, is not static or too large, or fails its trial.
pub fn run(args: &Args) -> Result<()> {
    packages::provide(ARCHIVERS)?;
    let targets = match &args.targets[..] {
        [] => &Target::ALL[..],
        some => some,
    };
    // What is missing is said before minutes of building.
    for target in targets {
        target.provide()?;
        if let Err(error) = target.provide_emulator() {
            println!("Not to be tried here: {}: {error:#}", target.triple());
        }
    }
    let mut built = Vec::new();
    for &target in targets {
        built.push((target, build::for_target(target)?));
    }
    for (target, program) in &built {
        let bytes = fs::read(program).with_context(|| program.display().to_string())?;
        elf::is_static(&bytes, *target)
            .with_context(|| format!("{} is no static program", program.display()))?;
        println!("{}: static", target.triple());
        shipped::hold_the_budget(u64::try_from(bytes.len())?)?;
        trial::run(*target, program)?;
    }
    let folder = target_directory()?.join("dist");
    let generated = generate(&built, &folder)?;
    let archives = archive::pack(&built, &generated, &folder)?;
    for archive in archives {
        println!("{}", archive.display());
    }
    Ok(())
}

/// Has each of the programs that run here write its pages, which are the same for all.
fn generate(built: &[(Target, PathBuf)], folder: &Path) -> Result<PathBuf> {
    let mut of_the_first: Option<PathBuf> = None;
    for (target, program) in built {
        if target.command(program).is_err() {
            continue;
        }
        let own = folder.join("generated").join(target.triple());
        shipped::generate(&|| target.command(program), &own)?;
        match &of_the_first {
            None => of_the_first = Some(own),
            Some(first) => ensure!(
                shipped::are_alike(first, &own)?,
                "{} and {} differ",
                first.display(),
                own.display()
            ),
        }
    }
    of_the_first.context(
        "none of these programs runs here, and they alone can write their manual pages: add this machine's own \
         processor, or install an emulator (Debian: qemu-user-static)",
    )
}
