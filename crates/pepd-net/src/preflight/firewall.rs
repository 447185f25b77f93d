//! What the operator's own firewall means for split connections. Reads; changes nothing.
//!
//! The first SYN of a connection is looked at in `forward`, after the operator's filters. All that
//! follows is delivered to this host: it passes the `input` hook, whatever its destination, and
//! what goes to the other side comes from a socket of this host and carries the client's own
//! address.

use serde_json::Value;

use super::base_chain::{BaseChain, Role};
use super::judge::{By, Judgement, judge};
use super::warning::Warning;
use crate::iptables::tables::has_table;
use crate::nft::error::NftError;
use crate::nft::forward::OFFERED;
use crate::nft::names::TABLE;
use crate::nft::process as nft;
use crate::plan::Plan;
use crate::prefix::Family;
use crate::request::Mark;
use crate::watch::finding::{Cause, Finding};

/// The meaning of the operator's own firewall for split connections.
#[derive(Debug, Default)]
pub struct Firewall {
    /// Chains of `output` that drop what pepd's sockets send: split connections hang.
    pub keeps_back: Vec<Warning>,
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
    let Ok(objects) = nft::ruleset().await else {
        return found;
    };
    let chains = BaseChain::all(&objects);
    let nat = chains.iter().filter(|chain| chain.role == Role::SourceNat);
    if mark.sockets().is_none() {
        found
            .translates
            .extend(nat.map(|chain| nat_warning(chain, mark)));
    }
    for way in in_the_way(&objects, &chains, mark, &Family::ALL).await {
        // A rule that drops some packets is no matter for a start.
        if way.certain || way.by == By::Policy {
            match way.chain.role {
                Role::Output => found.keeps_back.push(way.warning(mark)),
                Role::Input | Role::SourceNat | Role::LateForward | Role::Other => {
                    found.drops.push(way.warning(mark))
                }
            }
        }
    }
    found.drops.dedup();
    found.keeps_back.dedup();
    let late_chains = chains
        .iter()
        .filter(|chain| chain.role == Role::LateForward);
    found.late.extend(late_chains.map(late));
    found.proxies = proxies(&objects);
    found
}

/// Finds the chains that drop what split connections need, for sure or perhaps.
///
/// # Errors
///
/// If nft cannot list them.
pub(crate) async fn examine(plan: &Plan) -> Result<Vec<Finding>, NftError> {
    let objects = nft::ruleset().await?;
    let chains = BaseChain::all(&objects);
    let found = in_the_way(&objects, &chains, plan.mark, &plan.families).await;
    let mut findings: Vec<Finding> = found.iter().map(|way| way.finding(plan.mark)).collect();
    findings.dedup();
    Ok(findings)
}

/// A chain in the way of split connections.
struct InTheWay<'a> {
    chain: &'a BaseChain<'a>,
    by: By,
    /// Whether it drops them all, or perhaps.
    certain: bool,
}

async fn in_the_way<'a>(
    objects: &[Value],
    chains: &'a [BaseChain<'a>],
    mark: Mark,
    families: &[Family],
) -> Vec<InTheWay<'a>> {
    let mut found = Vec::new();
    for chain in chains.iter().filter(|chain| chain.role.filters()) {
        let rules = chain.rules(objects);
        for packet in chain.packets(mark, families) {
            match judge(&rules, chain.name, chain.drops, packet) {
                Judgement::Passes => {}
                Judgement::Drops(by) => found.push(InTheWay {
                    chain,
                    by,
                    certain: true,
                }),
                Judgement::MayDrop(_) if lets_in(chain, mark).await => {}
                Judgement::MayDrop(by) => found.push(InTheWay {
                    chain,
                    by,
                    certain: false,
                }),
            }
        }
    }
    found
}

impl InTheWay<'_> {
    fn finding(&self, mark: Mark) -> Finding {
        let Warning { text, cure } = self.warning(mark);
        Finding {
            cause: match self.chain.role {
                Role::Output => Cause::Output,
                Role::Input | Role::SourceNat | Role::LateForward | Role::Other => Cause::Input,
            },
            certain: self.certain,
            text,
            cure,
        }
    }

    fn warning(&self, mark: Mark) -> Warning {
        let Mark { value, mask } = mark;
        let title = self.chain.title();
        let place = match &self.by {
            By::Policy => format!("chain {title}, policy drop"),
            By::Rule(chain, handle) if chain == self.chain.name => {
                format!("chain {title}, rule with handle {handle}")
            }
            By::Rule(chain, handle) => {
                format!("chain {title}, rule with handle {handle} of {chain}")
            }
        };
        // The policy comes after rules that let some in, or the rule depends on the packet.
        let (drops, hang) = match self.certain {
            true => ("drops", "split connections hang"),
            false => ("may drop", "split connections that it drops hang"),
        };
        match self.chain.role {
            Role::Output => Warning {
                text: format!(
                    "the firewall {drops} what this host sends ({place}), and pepd's sockets send \
                     what split connections carry: {hang} unless it lets that out"
                ),
                cure: format!(
                    "nft insert rule {title} meta mark and {mask:#010x} != 0x00000000 accept"
                ),
            },
            Role::Input | Role::SourceNat | Role::LateForward | Role::Other => Warning {
                text: format!(
                    "the firewall {drops} what comes to this host ({place}), and captured packets \
                     do: {hang} unless it lets them in"
                ),
                cure: format!(
                    "nft insert rule {title} meta mark and {mask:#010x} == {value:#010x} accept"
                ),
            },
        }
    }
}

impl Firewall {
    pub(crate) fn warnings(self) -> impl Iterator<Item = Warning> {
        let hang = self.drops.into_iter().chain(self.keeps_back);
        hang.chain(self.translates).chain(self.late)
    }
}

/// Returns whether this host translates addresses, by nft or iptables: packets may then have another
/// destination in `forward` than they came with. So it is assumed where it cannot be known of the
/// older iptables.
///
/// # Errors
///
/// If nft cannot list them.
pub(crate) async fn translates_addresses() -> Result<bool, NftError> {
    nft::has_nat_chain().await.map(translates)
}

/// The same where it is known whether a chain of nft's does.
pub(crate) fn translates(has_nat_chain: bool) -> bool {
    let mut families = Family::ALL.into_iter();
    has_nat_chain || families.any(|family| has_table(family, "nat", true))
}

/// Lists the chains, other than pepd's, that hand packets to a transparent proxy, by nft or
/// iptables.
fn proxies(objects: &[Value]) -> Vec<String> {
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

/// Warns of address translation that does not apply.
///
/// Without marks that tell the legs apart, connection tracking takes the two, which have the same
/// addresses and ports, for one connection. The client leg ends on this host and so is not
/// rewritten, and then neither is the upstream leg.
fn nat_warning(chain: &BaseChain<'_>, mark: Mark) -> Warning {
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

#[cfg(test)]
mod tests {
    use pepd_packet::{MarkMask, MarkValue};

    use super::*;
    use crate::preflight::judge::{Packet, Rules};

    const MARK: Mark = Mark {
        value: MarkValue(0x7000_0000),
        mask: MarkMask(0x7000_0000),
    };

    /// Judges a chain `c` of `input` with these rules, as nft lists their expressions.
    fn judged(drops: bool, rules: &[&str]) -> Judgement {
        let rules: Vec<Value> = (1..)
            .zip(rules)
            .map(|(handle, rule)| {
                let elsewhere = rule
                    .split_once(": ")
                    .filter(|(chain, _)| !chain.contains('{'));
                let (chain, rule) = elsewhere.unwrap_or(("c", rule));
                let text =
                    format!(r#"{{"chain": "{chain}", "handle": {handle}, "expr": [{rule}]}}"#);
                serde_json::from_str(&text).unwrap()
            })
            .collect();
        let packet = Packet {
            family: Family::V4,
            mark: MARK,
            state: Some("untracked"),
        };
        judge(&Rules::of(&rules), "c", drops, packet)
    }

    const ACCEPT: &str = r#"{"accept": null}"#;
    const DROP: &str = r#"{"counter": {"packets": 1, "bytes": 1}}, {"drop": null}"#;
    const ESTABLISHED: &str = r#"{"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}}, {"accept": null}"#;
    const UNTRACKED: &str = r#"{"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "untracked"]}}, {"accept": null}"#;
    const LO: &str = r#"{"match": {"op": "==", "left": {"meta": {"key": "iif"}}, "right": "lo"}}, {"accept": null}"#;
    const LAN: &str = r#"{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "lan"}}, {"accept": null}"#;
    const UDP: &str = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": 53}}, {"accept": null}"#;
    const MARKED: &str = r#"{"match": {"op": "==", "left": {"&": [{"meta": {"key": "mark"}}, 1879048192]}, "right": 1879048192}}, {"accept": null}"#;
    const SSH: &str = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}}, {"accept": null}"#;
    const SMTP_OUT: &str = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 25}}, {"drop": null}"#;
    const BY_STATE: &str = r#"{"vmap": {"key": {"ct": {"key": "state"}}, "data": {"set": [["invalid", {"drop": null}], ["untracked", {"jump": {"target": "sub"}}]]}}}"#;

    #[test]
    fn chains_are_judged_by_what_every_captured_packet_meets() {
        let rule = |handle| By::Rule("c".to_owned(), handle);
        for (drops, rules, expected) in [
            (false, vec![], Judgement::Passes),
            (true, vec![], Judgement::Drops(By::Policy)),
            (
                true,
                vec![ESTABLISHED, LO, UDP],
                Judgement::Drops(By::Policy),
            ),
            (true, vec![ESTABLISHED, MARKED], Judgement::Passes),
            (true, vec![UNTRACKED], Judgement::Passes),
            (true, vec![LAN], Judgement::MayDrop(By::Policy)),
            (true, vec![SSH], Judgement::MayDrop(By::Policy)),
            (false, vec![SMTP_OUT], Judgement::MayDrop(rule(1))),
            (false, vec![ESTABLISHED, DROP], Judgement::Drops(rule(2))),
            (false, vec![MARKED, DROP], Judgement::Passes),
            (true, vec![SMTP_OUT], Judgement::Drops(By::Policy)),
            (
                false,
                vec![r#"{"limit": {"rate": 5}}, {"accept": null}"#, DROP],
                Judgement::MayDrop(rule(2)),
            ),
            (
                false,
                vec![r#"{"xt": {"type": "match", "name": "set"}}, {"drop": null}"#],
                Judgement::MayDrop(rule(1)),
            ),
            (
                false,
                vec![r#"{"reject": {"type": "tcp reset"}}"#, ACCEPT],
                Judgement::Drops(rule(1)),
            ),
        ] {
            assert_eq!(judged(drops, &rules), expected, "{drops} {rules:?}");
        }
    }

    #[test]
    fn jumps_are_followed() {
        let sub = format!("sub: {DROP}");
        let by = By::Rule("sub".to_owned(), 2);
        assert_eq!(judged(false, &[BY_STATE, &sub]), Judgement::Drops(by));
        let sub = r#"sub: {"return": null}"#;
        let jump = r#"{"jump": {"target": "sub"}}"#;
        assert_eq!(judged(true, &[jump, sub, MARKED]), Judgement::Passes);
        let goto = r#"{"goto": {"target": "sub"}}"#;
        let drops = Judgement::Drops(By::Policy);
        assert_eq!(judged(true, &[goto, sub, MARKED]), drops);
        let endless = r#"{"jump": {"target": "c"}}"#;
        assert_eq!(judged(true, &[endless]), Judgement::MayDrop(By::Policy));
    }
}
