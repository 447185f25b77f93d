//! What the operator's own firewall means for split connections. Reads; changes nothing.
//!
//! The first SYN of a connection is looked at in `forward`, after the operator's filters. All that
//! follows is delivered to this host: it passes the `input` hook, whatever its destination, and
//! what goes to the other side comes from a socket of this host and carries the client's own
//! address.

use std::fs;

use serde_json::Value;

use super::warning::Warning;
use crate::iptables::IptablesTable;
use crate::nft::forward::OFFERED;
use crate::nft::names::TABLE;
use crate::nft::process as nft;
use crate::request::Mark;

/// The meaning of the operator's own firewall for split connections.
#[derive(Debug, Default)]
pub struct Firewall {
    /// Chains of `input` that drop captured packets: split connections hang.
    pub drops: Vec<Warning>,
    /// Chains that translate addresses, which do not apply to split connections because the mark
    /// is too narrow.
    pub translates: Vec<Warning>,
    /// Chains of `forward` that come after pepd's, too late to keep a connection from its server.
    pub late: Vec<Warning>,
    /// Chains of other transparent proxies.
    pub proxies: Vec<String>,
}

/// Surveys every base chain of the operator's. What cannot be read gives no warning.
pub(crate) async fn survey(mark: Mark) -> Firewall {
    let mut found = Firewall::default();
    let Ok(chains) = nft::chains().await else {
        return found;
    };
    for chain in chains.iter().filter_map(BaseChain::read) {
        match chain.role {
            Role::SourceNat if mark.sockets().is_none() => {
                found.translates.push(nat(&chain, mark));
            }
            Role::DropsInput if !lets_in(&chain, mark).await => {
                found.drops.push(input(&chain, mark));
            }
            Role::LateForward => found.late.push(late(&chain)),
            Role::SourceNat | Role::DropsInput | Role::Other => {}
        }
    }
    found
}

impl Firewall {
    pub(crate) fn warnings(self) -> impl Iterator<Item = Warning> {
        self.drops
            .into_iter()
            .chain(self.translates)
            .chain(self.late)
    }
}

/// Returns whether this host translates addresses, by nft or iptables: packets may then have another
/// destination in `forward` than they came with.
pub(crate) async fn translates_addresses() -> bool {
    let by_nft = nft::chains().await.is_ok_and(|chains| {
        let kind = |object: &Value| Some(object.get("chain")?.get("type")?.as_str()? == "nat");
        chains.iter().any(|object| kind(object) == Some(true))
    });
    by_nft
        || OLDER_TABLES.iter().any(|path| {
            fs::read_to_string(path).is_ok_and(|names| names.lines().any(|name| name == "nat"))
        })
}

/// The tables of the older iptables, which nft does not list.
const OLDER_TABLES: [&str; 2] = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"];

/// Lists the chains, other than pepd's, that hand packets to a transparent proxy, by nft or
/// iptables.
pub(crate) async fn proxies() -> Vec<String> {
    let objects = nft::ruleset().await.unwrap_or_default();
    let mut found = Vec::new();
    for rule in objects.iter().filter_map(|object| object.get("rule")) {
        let field = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or_default();
        let statements = rule.get("expr").and_then(Value::as_array);
        let hands_over = statements.into_iter().flatten().any(|statement| {
            let xt = statement.get("xt").and_then(|xt| xt.get("name"));
            statement.get("tproxy").is_some() || xt.and_then(Value::as_str) == Some("TPROXY")
        });
        let title = format!("{} {} {}", field("family"), field("table"), field("chain"));
        if hands_over && field("table") != TABLE && !found.contains(&title) {
            found.push(title);
        }
    }
    found
}

/// Returns whether some rule of a chain names pepd's bits of the mark.
async fn lets_in(chain: &BaseChain<'_>, mark: Mark) -> bool {
    nft::chain(chain.family, chain.table, chain.name)
        .await
        .is_ok_and(|rules| rules.contains(&format!("{:#010x}", mark.mask)))
}

/// The part that a base chain may play in split connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It translates the source addresses of what leaves.
    SourceNat,
    /// It drops what comes to this host, unless a rule lets it in.
    DropsInput,
    /// It looks at what is forwarded after pepd has.
    LateForward,
    /// A rule that does not matter here.
    Other,
}

impl Role {
    fn of(kind: &str, hook: &str, policy: Option<&str>, priority: i64) -> Role {
        match (kind, hook, policy) {
            (_, "forward", _) if priority > i64::from(OFFERED) => Role::LateForward,
            ("nat", "postrouting", _) => Role::SourceNat,
            (_, "input", Some("drop")) => Role::DropsInput,
            _ => Role::Other,
        }
    }
}

/// A chain that a hook calls.
struct BaseChain<'a> {
    family: &'a str,
    table: &'a str,
    name: &'a str,
    role: Role,
}

impl<'a> BaseChain<'a> {
    fn read(object: &'a Value) -> Option<Self> {
        let chain = object.get("chain")?;
        let field = |name: &str| chain.get(name).and_then(Value::as_str);
        let base = Self {
            family: field("family")?,
            table: field("table")?,
            name: field("name")?,
            role: Role::of(
                field("type")?,
                field("hook")?,
                field("policy"),
                chain
                    .get("prio")
                    .and_then(Value::as_i64)
                    .unwrap_or_default(),
            ),
        };
        // iptables has one at that place, which filters nothing.
        (base.table != TABLE && base.table != IptablesTable::Security.name()).then_some(base)
    }

    fn title(&self) -> String {
        format!("{} {} {}", self.family, self.table, self.name)
    }
}

/// Warns of address translation that does not apply.
///
/// Without marks that tell the legs apart, connection tracking takes the two, which have the same
/// addresses and ports, for one connection. The client leg ends on this host and so is not
/// rewritten, and then neither is the upstream leg.
fn nat(chain: &BaseChain<'_>, mark: Mark) -> Warning {
    Warning {
        text: format!(
            "this host has address translation (chain {}), which does not apply to split \
             connections, because the mark {mark} has one bit only: they leave with the client's \
             own address",
            chain.title()
        ),
        cure: "give [capture] mark at least two bits, as in 0x70000000/0x70000000".to_owned(),
    }
}

fn late(chain: &BaseChain<'_>) -> Warning {
    Warning {
        text: format!(
            "chain {} of `forward` comes after pepd's (priority {OFFERED}): what it drops of new \
             connections has been asked of the server already, or is split",
            chain.title()
        ),
        cure: format!("give it a priority of {OFFERED} or less, such as `filter`"),
    }
}

fn input(chain: &BaseChain<'_>, mark: Mark) -> Warning {
    let Mark { value, mask } = mark;
    Warning {
        text: format!(
            "the firewall drops what comes to this host (chain {}), and captured packets do: \
             split connections hang unless it lets them in",
            chain.title()
        ),
        cure: format!(
            "nft insert rule {} meta mark and {mask:#010x} == {value:#010x} accept",
            chain.title()
        ),
    }
}
