//! The base chains of others, as nft lists them, and what each may mean for split connections.

use serde_json::Value;

use super::judge::{Packet, Rules};
use crate::iptables::IptablesTable;
use crate::nft::forward::OFFERED;
use crate::nft::names::TABLE;
use crate::prefix::Family;
use crate::request::Mark;

/// The part that a base chain may play in split connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It translates the source addresses of what leaves.
    SourceNat,
    /// It may drop what comes to this host.
    Input,
    /// It may drop what this host sends.
    Output,
    /// It looks at what is forwarded after pepd has.
    LateForward,
    /// A chain that does not matter here.
    Other,
}

impl Role {
    fn of(kind: &str, hook: &str, priority: i64) -> Role {
        match (kind, hook) {
            (_, "forward") if priority > i64::from(OFFERED) => Role::LateForward,
            ("nat", "postrouting") => Role::SourceNat,
            (_, "input") => Role::Input,
            (_, "output") => Role::Output,
            _ => Role::Other,
        }
    }

    pub(super) fn filters(self) -> bool {
        matches!(self, Role::Input | Role::Output)
    }
}

/// A chain that a hook calls.
pub(super) struct BaseChain<'a> {
    pub(super) family: &'a str,
    pub(super) table: &'a str,
    pub(super) name: &'a str,
    pub(super) role: Role,
    /// Whether it drops by default.
    pub(super) drops: bool,
}

impl<'a> BaseChain<'a> {
    pub(super) fn all(objects: &'a [Value]) -> Vec<Self> {
        objects.iter().filter_map(Self::read).collect()
    }

    fn read(object: &'a Value) -> Option<Self> {
        let chain = object.get("chain")?;
        let field = |name: &str| chain.get(name).and_then(Value::as_str);
        let priority = chain.get("prio").and_then(Value::as_i64);
        let base = Self {
            family: field("family")?,
            table: field("table")?,
            name: field("name")?,
            role: Role::of(field("type")?, field("hook")?, priority.unwrap_or_default()),
            drops: field("policy") == Some("drop"),
        };
        // iptables has one at that place, which filters nothing.
        (base.table != TABLE && base.table != IptablesTable::Security.name()).then_some(base)
    }

    pub(super) fn title(&self) -> String {
        format!("{} {} {}", self.family, self.table, self.name)
    }

    /// Gives the rules of its table.
    pub(super) fn rules<'r>(&self, objects: &'r [Value]) -> Rules<'r> {
        let rules = objects.iter().filter_map(|object| object.get("rule"));
        Rules::of(rules.filter(|rule| {
            let field = |name: &str| rule.get(name).and_then(Value::as_str);
            field("family") == Some(self.family) && field("table") == Some(self.table)
        }))
    }

    /// Gives the packets of split connections that pass it.
    pub(super) fn packets(&self, mark: Mark, families: &[Family]) -> Vec<Packet> {
        let families = families.iter().filter(|family| match self.family {
            "ip" => **family == Family::V4,
            "ip6" => **family == Family::V6,
            other => other == "inet",
        });
        // Without marks of the sockets' nothing is kept from connection tracking.
        let (of_client, untracked) = match mark.sockets() {
            Some(_) => (mark.sockets(), Some("untracked")),
            None => (None, None),
        };
        let with = |value| Mark { value, ..mark };
        families
            .flat_map(|&family| match (self.role, of_client) {
                (Role::Input, _) => vec![(family, mark, untracked)],
                (Role::Output, Some(marks)) => vec![
                    (family, with(marks.client), untracked),
                    (family, with(marks.upstream), Some("new")),
                ],
                _ => Vec::new(),
            })
            .map(|(family, mark, state)| Packet {
                family,
                mark,
                state,
            })
            .collect()
    }
}
