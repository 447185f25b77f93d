//! What this kernel has, or could load.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Whether the kernel has something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It is loaded or built in.
    Loaded,
    /// It can be loaded.
    Loadable,
    /// It is neither.
    Missing,
}

/// The kernel's modules by name, with `_` and not `-`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Modules {
    /// The release (uname -r).
    pub release: String,
    loaded: BTreeSet<String>,
    loadable: BTreeSet<String>,
}

/// A function that each has, by which it is recognised where it is built in and no list says so.
const FUNCTIONS: [(&str, &str); 5] = [
    ("ipip", "ipip_rcv"),
    ("sit", "ipip6_rcv"),
    ("ip6_tunnel", "ip6_tnl_xmit"),
    ("sch_fq", "fq_init"),
    ("nft_queue", "nft_queue_eval"),
];

impl Modules {
    /// Reads what is loaded, built in or loadable.
    pub fn gather() -> Self {
        let release = nix::sys::utsname::uname()
            .map(|name| name.release().to_string_lossy().into_owned())
            .unwrap_or_default();
        let tree = Path::new("/lib/modules").join(&release);
        let list = |name: &str| fs::read_to_string(tree.join(name)).unwrap_or_default();
        let mut loaded: BTreeSet<String> = fs::read_dir("/sys/module")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        loaded.extend(list("modules.builtin").lines().filter_map(module_name));
        let loadable = list("modules.dep")
            .lines()
            .filter_map(module_name)
            .collect();
        loaded.extend(built_in());
        Self {
            release,
            loaded,
            loadable,
        }
    }

    /// Tells whether `module` is there.
    pub fn presence(&self, module: &str) -> Presence {
        if self.loaded.contains(module) {
            Presence::Loaded
        } else if self.loadable.contains(module) {
            Presence::Loadable
        } else {
            Presence::Missing
        }
    }

    /// Pretends, for tests, that these are loaded, and those could be.
    #[cfg(test)]
    pub fn of(loaded: &[&str], loadable: &[&str]) -> Self {
        let own = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Self {
            release: "6.1.0".to_owned(),
            loaded: own(loaded),
            loadable: own(loadable),
        }
    }
}

/// Gives those of [`FUNCTIONS`] that the running kernel has.
fn built_in() -> Vec<String> {
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let known: BTreeSet<&str> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    FUNCTIONS
        .iter()
        .filter(|(_, function)| known.contains(function))
        .map(|(module, _)| (*module).to_owned())
        .collect()
}

/// Gives the module of a line of modules.dep or modules.builtin: `kernel/net/ipv4/ipip.ko.xz: …`.
fn module_name(line: &str) -> Option<String> {
    let path = line.split(':').next()?;
    let (name, _) = path.rsplit('/').next()?.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_known_by_its_file() {
        for line in [
            "kernel/net/ipv4/tcp_bbr.ko",
            "kernel/net/ipv4/tcp_bbr.ko.xz: kernel/lib/a.ko",
            "extra/tcp-bbr.ko.zst:",
        ] {
            assert_eq!(module_name(line).as_deref(), Some("tcp_bbr"));
        }
        assert_eq!(module_name(""), None);
    }
}
