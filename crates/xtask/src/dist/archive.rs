//! Archives of the program with what belongs to it, laid out as below /usr/local.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cross::Target;
use crate::directories::source_directory;

/// Where what the program has written of itself goes.
const GENERATED: [(&str, &str); 5] = [
    ("pepd.1", "share/man/man1/pepd.1"),
    ("pepd.toml.5", "share/man/man5/pepd.toml.5"),
    ("pepd.bash", "share/bash-completion/completions/pepd"),
    ("_pepd", "share/zsh/site-functions/_pepd"),
    ("pepd.fish", "share/fish/vendor_completions.d/pepd.fish"),
];

/// Where files of the sources go; a folder stands for what is in it, but for the unit.
const SOURCES: [(&str, &str); 7] = [
    ("config/pepd.service", "lib/systemd/system/pepd.service"),
    ("config", "share/doc/pepd/examples"),
    ("docs", "share/doc/pepd/docs"),
    ("README.md", "share/doc/pepd/README.md"),
    ("CHANGELOG.md", "share/doc/pepd/CHANGELOG.md"),
    ("LICENSE-MIT", "share/doc/pepd/LICENSE-MIT"),
    ("LICENSE-APACHE", "share/doc/pepd/LICENSE-APACHE"),
];

/// Packs each program into an archive, whose names it returns; and writes the sums of all beside them. The
/// same sources give the same bytes.
///
/// # Errors
/// When something is missing or cannot be written.
pub fn pack(built: &[(Target, PathBuf)], generated: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for (target, program) in built {
        let name = format!("pepd-{}-{}", env!("CARGO_PKG_VERSION"), target.triple());
        let stage = folder.join("staged");
        remove(&stage)?;
        let root = stage.join(&name);
        put(program, &root.join("bin/pepd"), 0o755)?;
        for (from, to) in GENERATED {
            put(&generated.join(from), &root.join(to), 0o644)?;
        }
        for (from, to) in SOURCES {
            put_all(&source_directory()?.join(from), &root.join(to))?;
        }
        let archive = format!("{name}.tar.gz");
        run(Command::new("tar")
            .args(["--create", "--gzip", "--file"])
            .arg(folder.join(&archive))
            .arg("--directory")
            .arg(&stage)
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
            .arg(format!("--mtime=@{}", time()?))
            .arg(&name))?;
        remove(&stage)?;
        names.push(archive);
    }
    let sums = folder.join("SHA256SUMS");
    let output = Command::new("sha256sum")
        .args(&names)
        .current_dir(folder)
        .output()
        .context("cannot run sha256sum")?;
    ensure!(output.status.success(), "sha256sum: {}", output.status);
    fs::write(&sums, output.stdout).with_context(|| sums.display().to_string())?;
    let archives = names.iter().map(|name| folder.join(name));
    Ok(archives.chain([sums]).collect())
}

/// The time that all files have, in seconds since 1970: that of the commit, or what the environment says
/// (reproducible-builds.org).
fn time() -> Result<String> {
    if let Ok(time) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(time);
    }
    let output = Command::new("git")
        .args(["log", "-1", "--format=%ct"])
        .current_dir(source_directory()?)
        .output();
    let said = output.ok().filter(|output| output.status.success());
    let said = said.context("these sources are in no git repository: set SOURCE_DATE_EPOCH")?;
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

fn put_all(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return put(from, to, 0o644);
    }
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        let is_unit = path.extension().is_some_and(|it| it == "service");
        if let Some(name) = path.file_name().filter(|_| path.is_file() && !is_unit) {
            put(&path, &to.join(name), 0o644)?;
        }
    }
    Ok(())
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
    run(Command::new("install")
        .arg("-D")
        .arg(format!("--mode={mode:o}"))
        .arg(from)
        .arg(to))
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
