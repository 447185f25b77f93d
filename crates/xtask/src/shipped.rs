//! What packages and archives have beside the program, and how large that may be.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::tool::succeed;

/// The most that the program may take on a router's disk, stripped, in bytes.
const BUDGET: u64 = 12_000_000;

/// What the program says of itself: how it is asked, and the file's name.
const GENERATED: [(&[&str], &str); 5] = [
    (&["man", "pepd"], "pepd.1"),
    (&["man", "pepd.toml"], "pepd.toml.5"),
    (&["completions", "bash"], "pepd.bash"),
    (&["completions", "zsh"], "_pepd"),
    (&["completions", "fish"], "pepd.fish"),
];

/// Writes what the program says of itself into a folder: manual pages, and completions for shells.
///
/// # Errors
/// When it cannot be run or written.
pub fn generate(pepd: &dyn Fn() -> Result<Command>, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for (words, name) in GENERATED {
        let path = folder.join(name);
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        succeed(pepd()?.args(words).stdout(file))?;
    }
    Ok(())
}

/// Tells whether two folders have the same of it.
///
/// # Errors
/// When something cannot be read.
pub fn are_alike(one: &Path, other: &Path) -> Result<bool> {
    for (_, name) in GENERATED {
        if fs::read(one.join(name))? != fs::read(other.join(name))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Looks at how large the program is.
///
/// # Errors
/// When it is too large.
pub fn hold_the_budget(size: u64) -> Result<()> {
    ensure!(
        size <= BUDGET,
        "the program takes {size} bytes of {BUDGET}: what has it grown by?"
    );
    println!("the program takes {size} bytes of {BUDGET}");
    Ok(())
}
