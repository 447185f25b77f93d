//! The `iptables` programs, where nft cannot hold a packet: which rules there are to be (`rules`),
//! and the programs themselves (`process`). And which tables the older one has (`tables`).

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod process;
pub(crate) mod rules;
pub(crate) mod tables;

use std::fmt;

/// A table in which pepd may have a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IptablesTable {
    /// Before everything else: what repeats a held SYN, and what this host sends.
    Raw,
    /// After the operator's filters: first SYNs.
    Security,
}

impl IptablesTable {
    /// Both.
    pub(crate) const ALL: [IptablesTable; 2] = [IptablesTable::Raw, IptablesTable::Security];

    /// Returns the name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            IptablesTable::Raw => "raw",
            IptablesTable::Security => "security",
        }
    }
}

/// A chain in which pepd may have a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IptablesChain {
    /// Its name.
    pub(crate) name: &'static str,
    /// The hook that calls it.
    pub(crate) hook: &'static str,
    /// Its place among those of that hook, where iptables speaks nf_tables (xtables_ipv4,
    /// iptables/nft.c).
    pub(crate) priority: i32,
}

impl IptablesChain {
    /// What repeats a held SYN.
    pub(crate) const PREROUTING: Self = Self {
        name: "PREROUTING",
        hook: "prerouting",
        priority: -300,
    };
    /// What this host sends.
    pub(crate) const OUTPUT: Self = Self {
        name: "OUTPUT",
        hook: "output",
        priority: -300,
    };
    /// First SYNs.
    pub(crate) const FORWARD: Self = Self {
        name: "FORWARD",
        hook: "forward",
        priority: 150,
    };
}

impl fmt::Display for IptablesTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
