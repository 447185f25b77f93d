//! The Debian packages that the benchmark needs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Installs what is missing of `needed` (program, package), and says so.
///
/// # Errors
/// When the host has no apt, or apt fails; it has said why.
pub fn ensure(needed: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<&str> = needed
        .iter()
        .filter(|(program, _)| !installed(program))
        .map(|&(_, package)| package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !installed("apt-get") {
        bail!("missing, and this host has no apt-get to install it with: {list}");
    }
    eprintln!("installing with apt-get: {list}");
    // An outdated package list is the usual reason for a failure.
    if apt_get("install", &missing).is_err() {
        apt_get("update", &[])?;
        apt_get("install", &missing)?;
    }
    Ok(())
}

fn apt_get(action: &str, packages: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .args(["-qq", "-y", "--no-install-recommends", action])
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .context("cannot run apt-get")?;
    if !status.success() {
        bail!("`apt-get {action} {}`: {status}", packages.join(" "));
    }
    Ok(())
}

fn installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"])
        .any(|directory| Path::new(directory).join(program).is_file())
}
