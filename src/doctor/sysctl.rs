//! Kernel parameters: a snapshot of those that the doctor judges.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::finding::Cure;

/// The parameters of which there is one for the network namespace or the host.
const GLOBAL: [&str; 23] = [
    "fs/file-max",
    "fs/nr_open",
    "fs/pipe-user-pages-soft",
    "net/core/default_qdisc",
    "net/core/rmem_max",
    "net/core/somaxconn",
    "net/ipv4/ip_forward",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/tcp_available_congestion_control",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_fastopen",
    "net/ipv4/tcp_max_syn_backlog",
    "net/ipv4/tcp_mem",
    "net/ipv4/tcp_moderate_rcvbuf",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_sack",
    "net/ipv4/tcp_slow_start_after_idle",
    "net/ipv4/tcp_timestamps",
    "net/ipv4/tcp_window_scaling",
    "net/ipv4/tcp_wmem",
    "net/ipv6/conf/all/forwarding",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
];

/// The parameters that each interface has, for IPv4.
const PER_INTERFACE: [&str; 3] = ["forwarding", "rp_filter", "src_valid_mark"];

/// Parameters by their path below /proc/sys; those that the kernel does not have are missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sysctls(BTreeMap<String, String>);

impl Sysctls {
    /// Reads them.
    pub fn gather() -> Self {
        let root = Path::new("/proc/sys");
        let interfaces = fs::read_dir(root.join("net/ipv4/conf"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned());
        let per_interface = interfaces.flat_map(|interface| {
            PER_INTERFACE.map(|name| format!("net/ipv4/conf/{interface}/{name}"))
        });
        let paths = GLOBAL.iter().map(ToString::to_string).chain(per_interface);
        let read = |path: String| {
            let text = fs::read_to_string(root.join(&path)).ok()?;
            Some((path, text.trim().to_owned()))
        };
        Self(paths.filter_map(read).collect())
    }

    /// Gives the value as text.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }

    /// Gives the value, if it is one number.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Gives the values, if they are three numbers: least, default and most.
    pub fn triple(&self, path: &str) -> Option<[u64; 3]> {
        let numbers: Vec<u64> = self
            .text(path)?
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        numbers.try_into().ok()
    }

    /// Gives the value of an interface's IPv4 parameter, or that of `all` or `default`.
    pub fn interface(&self, interface: &str, name: &str) -> Option<u64> {
        self.number(&of_interface(interface, name))
    }

    /// Gives every interface that there is, without `all`, `default` and `lo`.
    pub fn interfaces(&self) -> BTreeSet<&str> {
        let named = |path: &'_ str| -> Option<usize> {
            let rest = path.strip_prefix("net/ipv4/conf/")?;
            rest.rfind('/')
        };
        self.0
            .keys()
            .filter_map(|path| {
                let end = named(path)?;
                path.get("net/ipv4/conf/".len()..)?.get(..end)
            })
            .filter(|name| !["all", "default", "lo"].contains(name))
            .collect()
    }

    /// Pretends, for tests, that these are the values.
    #[cfg(test)]
    pub fn of(values: &[(&str, &str)]) -> Self {
        let own = |&(path, value): &(&str, &str)| (path.to_owned(), value.to_owned());
        Self(values.iter().map(own).collect())
    }
}

/// Gives the path of an interface's IPv4 parameter.
pub fn of_interface(interface: &str, name: &str) -> String {
    format!("net/ipv4/conf/{interface}/{name}")
}

/// Gives a parameter's name as sysctl(8) takes it: with dots, unless an interface has one in its
/// name.
pub fn name(path: &str) -> String {
    if path.contains('.') {
        path.to_owned()
    } else {
        path.replace('/', ".")
    }
}

/// Gives the command that sets a parameter.
pub fn set(path: &str, value: impl ToString) -> Cure {
    let value = value.to_string();
    let quote = if value.contains(' ') { "\"" } else { "" };
    Cure::Sysctl(format!("sysctl -w {}={quote}{value}{quote}", name(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_with_a_dot_is_named_with_slashes() {
        assert_eq!(
            *set(&of_interface("eth0.10", "rp_filter"), 2),
            *"sysctl -w net/ipv4/conf/eth0.10/rp_filter=2"
        );
        assert_eq!(
            *set("net/ipv4/tcp_rmem", "4096 131072 33554432"),
            *"sysctl -w net.ipv4.tcp_rmem=\"4096 131072 33554432\""
        );
    }

    #[test]
    fn interfaces_are_those_of_their_own() {
        let sysctls = Sysctls::of(&[
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/default/rp_filter", "0"),
            ("net/ipv4/conf/lo/rp_filter", "0"),
            ("net/ipv4/conf/eth0.10/rp_filter", "0"),
            ("net/ipv4/conf/eth0.10/forwarding", "0"),
        ]);
        assert_eq!(
            sysctls.interfaces().into_iter().collect::<Vec<_>>(),
            ["eth0.10"]
        );
    }
}
