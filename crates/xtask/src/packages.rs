//! Installs on a Debian machine the programs that a task needs and does not find.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;

/// A program, or a file by its whole name, and the Debian package that has it.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    program: &'static str,
    package: &'static str,
}

impl Need {
    /// Returns `program`, which comes with `package`.
    pub const fn new(program: &'static str, package: &'static str) -> Self {
        Self { program, package }
    }

    fn is_met(self) -> bool {
        find(self.program).is_some()
    }
}

/// Finds a program, or a file by its whole name.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var("PATH").unwrap_or_default();
    // Root's programs are not on everybody's path. A whole name stays as it is.
    path.split(':')
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"])
        .map(|directory| Path::new(directory).join(program))
        .find(|file| file.is_file())
}

/// What the namespaces, the proxy and nearly every test need.
pub const NETWORK: &[Need] = &[
    Need::new("ip", "iproute2"),
    Need::new("ss", "iproute2"),
    Need::new("nft", "nftables"),
    Need::new("ethtool", "ethtool"),
    Need::new("curl", "curl"),
    Need::new("nginx", "nginx-light"),
];

/// What the tests need beyond that.
pub const TESTS: &[Need] = &[
    Need::new("sshd", "openssh-server"),
    Need::new("ssh", "openssh-client"),
    Need::new("iperf3", "iperf3"),
    Need::new("ping", "iputils-ping"),
    Need::new("prlimit", "util-linux"),
    Need::new("setpriv", "util-linux"),
    Need::new("strace", "strace"),
    Need::new("script", "bsdutils"),
    Need::new("cmp", "diffutils"),
    Need::new("groff", "groff-base"),
    Need::new("nmap", "nmap"),
    Need::new("tcpdump", "tcpdump"),
    Need::new("bird", "bird2"),
    Need::new("keepalived", "keepalived"),
    Need::new("vtysh", "frr"),
    Need::new("iptables", "iptables"),
    Need::new("systemd-analyze", "systemd"),
    Need::new("promtool", "prometheus"),
    Need::new("chromium", "chromium"),
];

/// What compiles the BPF program of the congestion controls, which is in the repository compiled: `bpf.rs`.
pub const BPF: &[Need] = &[
    Need::new("clang-19", "clang-19"),
    Need::new("llvm-strip-19", "llvm-19"),
];

/// Makes sure that everything in `needs` is there, and says what it installs for that.
///
/// # Errors
/// When something is missing and this is not root, not Debian, or apt fails. The message names
/// the packages.
pub fn provide(needs: &[Need]) -> Result<()> {
    let mut packages: Vec<&str> = needs
        .iter()
        .filter(|need| !need.is_met())
        .map(|need| need.package)
        .collect();
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    ensure!(
        Path::new("/etc/debian_version").exists(),
        "missing programs; on Debian they are in: {list}"
    );
    ensure!(
        geteuid().is_root(),
        "missing; run as root: apt-get install {list}"
    );
    println!("Installing with apt-get what is missing: {list}");
    println!("(Debian starts services such as nginx, ssh and bird when it installs them.)");
    apt_get(&["update", "--quiet"])?;
    let install = ["install", "--quiet", "--yes", "--no-install-recommends"];
    apt_get(&[&install, packages.as_slice()].concat())
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .context("cannot run apt-get")?;
    ensure!(
        status.success(),
        "`apt-get {}`: {status}",
        arguments.join(" ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Need;

    #[test]
    fn what_is_there_is_found_and_what_is_not_is_not() {
        assert!(Need::new("sh", "dash").is_met());
        assert!(Need::new("/bin/sh", "dash").is_met());
        assert!(!Need::new("/bin/no-such-file", "none").is_met());
        assert!(!Need::new("no-such-program-here", "none").is_met());
    }
}
