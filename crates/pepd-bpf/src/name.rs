//! The names by which the kernel knows the controls.

use std::fmt;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt as _;

/// Every control that the kernel has, of all network namespaces.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// A network namespace, by the number of its inode: at most one daemon runs in each.
///
/// The kernel has one list of congestion controls for all namespaces, so two daemons on a host need
/// different names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NetworkNamespace(u32);

impl NetworkNamespace {
    /// Takes the inode number of a namespace (`struct ns_common`, `inum`).
    pub fn new(inode: u32) -> Self {
        Self(inode)
    }

    /// Returns the namespace of the calling thread.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn current() -> io::Result<Self> {
        let inode = fs::metadata("/proc/thread-self/ns/net")?.ino();
        u32::try_from(inode)
            .map(Self)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Returns the name of the control of leg number `leg`, if its rate is given.
    pub fn name(self, leg: u8) -> Name {
        self.with(GIVEN, leg)
    }

    /// Returns the names that the control of leg number `leg` may have, the first choice first. Those
    /// for rates that are found differ from the others, as a control whose rate is found is of no use to
    /// anybody else.
    pub fn names(self, leg: u8, of: Use) -> impl Iterator<Item = Name> {
        let separators = match of {
            Use::GivenRate => GIVEN..=GIVEN,
            Use::FoundRate => FOUND,
            Use::Resume => RESUME..=RESUME,
        };
        separators.map(move |separator| self.with(separator, leg))
    }

    fn with(self, separator: char, leg: u8) -> Name {
        Name(format!("{}{separator}{leg:x}", self.prefix()))
    }

    /// Lists the controls that are registered for daemons in this namespace, by any process.
    pub fn registered(self) -> Vec<Name> {
        // Without the file nothing is known of any, and the next call to the kernel says why.
        let available = fs::read_to_string(AVAILABLE).unwrap_or_default();
        self.among(&available)
    }

    fn among(self, available: &str) -> Vec<Name> {
        let prefix = self.prefix();
        let ours = |name: &&str| {
            let rest = name.strip_prefix(&prefix);
            let is_separator = |it: char| [GIVEN, RESUME].contains(&it) || FOUND.contains(&it);
            let leg = rest.and_then(|rest| rest.strip_prefix(is_separator));
            leg.is_some_and(|leg| u8::from_str_radix(leg, 16).is_ok())
        };
        let names = available.split_whitespace().filter(ours);
        names.map(|name| Name(name.to_owned())).collect()
    }

    fn prefix(self) -> String {
        format!("{PREFIX}{:x}", self.0)
    }
}

const PREFIX: &str = "pepd";

/// What is between the namespace and the leg: no hexadecimal digits. There are several for legs whose
/// rate is found: where an old one may not be removed, another is taken.
const GIVEN: char = '_';
const FOUND: RangeInclusive<char> = 'g'..='z';
const RESUME: char = '.';

/// What a control is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The rate of its sockets (`SO_MAX_PACING_RATE`).
    GivenRate,
    /// A rate that user space finds.
    FoundRate,
    /// Opening a window after an outage, to what the socket's rate (`SO_MAX_PACING_RATE`) brings in a round
    /// trip. A socket has it for a moment only.
    Resume,
}

/// The kernel's name for the control of a leg: `pepd`, the namespace, and the leg, as in
/// `pepdf0000000_1` or `pepdf0000000g1`. At most 15 characters (`TCP_CA_NAME_MAX`, include/net/tcp.h), and only
/// letters, digits, `_` and `.`, which is what the kernel takes from BPF.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(String);

impl Name {
    /// Returns the name as `TCP_CONGESTION` takes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_fits() {
        let name = NetworkNamespace::new(u32::MAX).name(u8::MAX);
        assert_eq!(name.as_str(), "pepdffffffff_ff");
        assert_eq!(name.as_str().len(), 15);
    }

    #[test]
    fn only_the_namespaces_own_are_found() {
        let namespace = NetworkNamespace::new(0xf0);
        let found = namespace.among(
            "reno cubic pepdf0_0 pepdf0_1f pepdf00_1 pepdf0_x pepdf0_100 pepdf0g0 pepdf0zff pepdf0fg \
             pepdf0.0",
        );
        let found: Vec<_> = found.iter().map(Name::as_str).collect();
        assert_eq!(
            found,
            ["pepdf0_0", "pepdf0_1f", "pepdf0g0", "pepdf0zff", "pepdf0.0"]
        );
    }

    #[test]
    fn a_rate_that_is_found_has_other_names() {
        let namespace = NetworkNamespace::new(0xf0);
        let given: Vec<_> = namespace.names(1, Use::GivenRate).collect();
        assert_eq!(given, [namespace.name(1)]);
        let found: Vec<_> = namespace.names(1, Use::FoundRate).collect();
        assert_eq!(found.len(), 20);
        assert!(!found.contains(&namespace.name(1)));
        let resume: Vec<_> = namespace.names(1, Use::Resume).collect();
        assert_eq!(
            resume.iter().map(Name::as_str).collect::<Vec<_>>(),
            ["pepdf0.1"]
        );
    }

    #[test]
    fn this_thread_is_in_a_namespace() {
        assert!(NetworkNamespace::current().is_ok());
    }
}
