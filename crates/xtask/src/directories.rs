//! The directories of the workspace.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Returns the root of the workspace.
///
/// # Errors
/// When the sources that this program was built of are gone.
pub fn source_directory() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize()
        .with_context(|| format!("cannot find {}", root.display()))
}

/// Returns the directory that cargo builds in.
///
/// # Errors
/// As [`source_directory`].
pub fn target_directory() -> Result<PathBuf> {
    let source = source_directory()?;
    Ok(source.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())))
}
