//! The `iptables` programs, where nft cannot hold a packet: which rules there are to be (`rules`),
//! and the programs themselves (`process`). And which tables the older one has (`tables`).

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

impl fmt::Display for IptablesTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
