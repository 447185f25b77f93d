//! The shell script that tells a guest what to do.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::copies::Copies;
use super::error::Result;
use super::guest::Guest;
use super::kernel::Kernel;
use super::outcome::RESULTS;
use crate::require::{GUEST, VIRTUAL_TIME};

/// Modules that pepd, its tests and the lab have the kernel load. In virtual time they are loaded
/// beforehand: the wait for the host would be minutes or hours of the guest's. Those of nf_tables
/// always are: for each that a ruleset lacks the kernel starts a program or two and begins with the
/// ruleset again, which takes an emulated machine longer than pepd waits for `nft`.
const MODULES: [&str; 39] = [
    "dummy",
    "inet_diag",
    "ip6_tunnel",
    "ipip",
    "nf_tables",
    "nfnetlink_queue",
    "nft_chain_nat",
    "nft_connlimit",
    "nft_ct",
    "nft_dup_ipv4",
    "nft_dup_ipv6",
    "nft_fib_inet",
    "nft_limit",
    "nft_objref",
    "nft_queue",
    "nft_quota",
    "nft_reject_inet",
    "nft_socket",
    "nft_tproxy",
    "sch_fq",
    "sit",
    "tcp_bbr",
    "tcp_bic",
    "tcp_cdg",
    "tcp_dctcp",
    "tcp_diag",
    "tcp_highspeed",
    "tcp_htcp",
    "tcp_hybla",
    "tcp_illinois",
    "tcp_lp",
    "tcp_nv",
    "tcp_scalable",
    "tcp_vegas",
    "tcp_veno",
    "tcp_westwood",
    "tcp_yeah",
    "unix_diag",
    "veth",
];

/// What the guest's own file systems hide.
const HIDING: [&str; 3] = ["/tmp", "/run", "/dev/shm"];

/// The shell script that tells a guest what to do.
pub(super) struct Script(Vec<u8>);

impl Script {
    pub(super) fn new(guest: &Guest, kernel: &Kernel, command: &[OsString]) -> Result<Self> {
        let mut copies = Copies::of(&guest.copies, &guest.directory)?;
        if guest.is_virtual() {
            copies.add_usual();
        }
        let mut script = Self(Vec::new());
        script.assign("modules", kernel.modules.as_os_str());

        script.line(&[OsStr::new("keep_paths() {")]);
        // A function needs a body.
        script.line(&[OsStr::new(":")]);
        let visible = guest.visible.iter().chain([&guest.directory]);
        let visible = visible.filter_map(|path| path.canonicalize().ok());
        let visible: BTreeSet<_> = visible.chain(copies.targets.iter().cloned()).collect();
        for path in visible.iter().filter(|path| is_hidden(path)) {
            script.call("keep", &[path.as_os_str()]);
        }
        script.line(&[OsStr::new("}")]);

        script.line(&[OsStr::new("copy_paths() {")]);
        script.line(&[OsStr::new(":")]);
        for path in copies.links.iter().chain(&copies.targets) {
            script.call("copy", &[path.as_os_str()]);
        }
        let modules = MODULES.iter().map(OsStr::new);
        let is_wanted =
            |module: &&OsStr| guest.is_virtual() || module.as_encoded_bytes().starts_with(b"nf");
        let modules: Vec<_> = modules.filter(is_wanted).collect();
        script.call("load", &modules);
        script.line(&[OsStr::new("}")]);

        script.line(&[OsStr::new("run_command() {")]);
        for (name, value) in &guest.environment {
            script.export(name, value);
        }
        script.export(OsStr::new(GUEST), OsStr::new("1"));
        if guest.is_virtual() {
            script.export(OsStr::new(VIRTUAL_TIME), OsStr::new("1"));
        }
        script.export(OsStr::new("PEPD_RESULTS"), OsStr::new(RESULTS));
        // Where this fails there is nothing to go on with.
        script.line(&[OsStr::new("set -e")]);
        script.call("cd", &[guest.directory.as_os_str()]);
        let command: Vec<_> = command.iter().map(OsString::as_os_str).collect();
        script.call("exec", &command);
        script.line(&[OsStr::new("}")]);
        Ok(script)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn assign(&mut self, name: &str, value: &OsStr) {
        self.line(&[OsStr::new(name), OsStr::new("="), &quoted(value)]);
    }

    fn export(&mut self, name: &OsStr, value: &OsStr) {
        self.line(&[OsStr::new("export "), name, OsStr::new("="), &quoted(value)]);
    }

    fn call(&mut self, function: &str, arguments: &[&OsStr]) {
        self.0.extend_from_slice(function.as_bytes());
        for argument in arguments {
            self.0.push(b' ');
            self.0.extend_from_slice(quoted(argument).as_bytes());
        }
        self.0.push(b'\n');
    }

    fn line(&mut self, parts: &[&OsStr]) {
        for part in parts {
            self.0.extend_from_slice(part.as_bytes());
        }
        self.0.push(b'\n');
    }
}

fn is_hidden(path: &Path) -> bool {
    HIDING.iter().any(|hiding| path.starts_with(hiding))
}

/// Quotes `word` so that a shell takes it for one.
fn quoted(word: &OsStr) -> OsString {
    let mut quoted = OsString::from("'");
    for (index, part) in word.as_bytes().split(|&byte| byte == b'\'').enumerate() {
        if index > 0 {
            quoted.push("'\\''");
        }
        quoted.push(OsStr::from_bytes(part));
    }
    quoted.push("'");
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_word_stays_one_word() {
        assert_eq!(quoted(OsStr::new("a b")), "'a b'");
        assert_eq!(quoted(OsStr::new("it's $x")), r"'it'\''s $x'");
        assert_eq!(quoted(OsStr::new("")), "''");
    }

    #[test]
    fn only_what_the_guest_covers_is_hidden() {
        assert!(is_hidden(Path::new("/tmp/x")) && is_hidden(Path::new("/run")));
        assert!(!is_hidden(Path::new("/tmpfs/x")) && !is_hidden(Path::new("/home/run")));
    }
}
