//! `cargo xtask deb`: a package for Debian, and a trial of it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::demo::build;
use crate::directories::target_directory;
use crate::packages::{self, Need};
use crate::tool::{Tool, succeed};

/// What makes the package of Cargo.toml's `[package.metadata.deb]`.
const CARGO_DEB: Tool = Tool {
    name: "cargo-deb",
    version: "3.8.0",
    options: &[],
};

/// The most that the program may take on a router's disk, stripped, in bytes.
const BUDGET: u64 = 12_000_000;

/// What the package has that the program says of itself: how it is asked, and the file's name.
const GENERATED: [(&[&str], &str); 5] = [
    (&["man", "pepd"], "pepd.1"),
    (&["man", "pepd.toml"], "pepd.toml.5"),
    (&["completions", "bash"], "pepd.bash"),
    (&["completions", "zsh"], "_pepd"),
    (&["completions", "fish"], "pepd.fish"),
];

/// Build target/debian/pepd_VERSION_ARCHITECTURE.deb.
///
/// The first time, cargo-deb is compiled into the target directory, which takes two minutes.
#[derive(clap::Args)]
pub struct Args {
    /// Install, use, upgrade and purge it afterwards in a copy of this Debian (needs root); nothing is left
    /// of that
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
    fs::create_dir_all(&generated).with_context(|| generated.display().to_string())?;
    for (words, name) in GENERATED {
        let path = generated.join(name);
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        succeed(Command::new(&pepd).args(words).stdout(file))?;
    }
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
        try_out(&package)?;
    }
    Ok(())
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
    ensure!(
        size <= BUDGET,
        "the program takes {size} bytes of {BUDGET}: what has it grown by?"
    );
    println!("the program takes {size} bytes of {BUDGET}");
    Ok(())
}

/// What is tried, in a copy of this Debian that ends with its mounts. `$1` is the package.
const TRIAL: &str = r##"
set -eu
copy=$(mktemp -d)
mount -t tmpfs pepd-trial "$copy"
mkdir "$copy/upper" "$copy/work" "$copy/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$copy/upper,workdir=$copy/work" "$copy/root"
mount -t proc proc "$copy/root/proc"
cp "$1" "$copy/root/pepd.deb"
exec chroot "$copy/root" sh -eux -c '
    export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
    dpkg --purge pepd
    dpkg --install /pepd.deb
    pepd --version
    pepd check -c /etc/pepd/pepd.toml
    pepd check
    systemd-analyze verify /lib/systemd/system/pepd.service
    for page in man1/pepd.1 man5/pepd.toml.5; do gzip -t /usr/share/man/$page.gz; done
    bash -n /usr/share/bash-completion/completions/pepd
    echo "# of this network" >> /etc/pepd/pepd.toml
    dpkg --install /pepd.deb
    grep "of this network" /etc/pepd/pepd.toml
    dpkg --remove pepd
    test ! -e /usr/bin/pepd
    test -e /etc/pepd/pepd.toml
    dpkg --purge pepd
    test ! -e /etc/pepd
    ! dpkg --status pepd
'
"##;

/// Installs the package, uses it, installs it over itself, removes and purges it.
fn try_out(package: &Path) -> Result<()> {
    packages::provide(&[
        Need::new("unshare", "util-linux"),
        Need::new("systemd-analyze", "systemd"),
    ])?;
    let mut trial = Command::new("unshare");
    trial
        .args([
            "--mount", "--pid", "--fork", "--net", "sh", "-c", TRIAL, "sh",
        ])
        .arg(package);
    succeed(&mut trial)?;
    println!("it has been installed, upgraded, removed and purged");
    Ok(())
}
