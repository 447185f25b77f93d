//! The rules in `raw` and `security` that pass marked SYNs, this host's ICMP errors, and what its
//! upstream legs without a client acknowledge, through the queues.
//!
//! A comment distinguishes ours from the operator's. They are written as `iptables -S` prints them,
//! so that what is found can be compared with what is wanted.

use std::fmt;

use super::process::{Call, IptablesError, may_speak_nf_tables, output, program_name, run};
use super::tables::has_table;
use super::{IptablesChain, IptablesTable};
use crate::error::{Classify as _, Drift, Kind};
use crate::nft::iptables_tables as tables;
use crate::plan::Plan;
use crate::prefix::Family;
use crate::queue_backend::QueueBackendError;
use crate::request::QueueBackend;

/// A rule: the family, the table, and what follows `-A`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueRule {
    family: Family,
    table: IptablesTable,
    rule: String,
}

/// Matches what is neither a SYN nor a RST.
const NO_SYN: &str = "-m tcp --tcp-flags SYN,RST NONE";

/// The comment that ends every match of ours.
const COMMENT: &str = "-m comment --comment pepd";

/// Gives the rules by which a plan's queues are filled; none where nft fills them, or nothing is
/// held.
pub(crate) fn rules(plan: &Plan) -> Vec<QueueRule> {
    if !plan.captures {
        return Vec::new();
    }
    let mut rules = syn_rules(plan);
    rules.extend(ack_rules(plan));
    rules.extend(coming_rules(plan));
    rules
}

/// Gives those for what belongs to connections that come from other boxes. What nobody reads is dropped.
fn coming_rules(plan: &Plan) -> impl Iterator<Item = QueueRule> {
    let rule = plan
        .hold_coming
        .zip(plan.coming_mark())
        .map(|(held, mark)| {
            let queue = held.queue;
            format!(
                "PREROUTING -p tcp -m mark --mark {mark} -m tcp --tcp-flags SYN NONE {COMMENT} -j NFQUEUE \
             --queue-num {queue}"
            )
        });
    of_each_family(plan, IptablesTable::Raw, rule)
}

/// Gives those for what is held while a link is away.
fn ack_rules(plan: &Plan) -> impl Iterator<Item = QueueRule> {
    let rule = plan.hold_acks.zip(plan.away_mark()).map(|(held, mark)| {
        let queue = held.queue;
        format!(
            "FORWARD -p tcp -m mark --mark {mark} {NO_SYN} {COMMENT} -j NFQUEUE --queue-num \
             {queue} --queue-bypass"
        )
    });
    of_each_family(plan, IptablesTable::Security, rule)
}

fn of_each_family(
    plan: &Plan,
    table: IptablesTable,
    rule: Option<String>,
) -> impl Iterator<Item = QueueRule> {
    rule.into_iter().flat_map(move |rule| {
        plan.families.iter().map(move |&family| QueueRule {
            family,
            table,
            rule: rule.clone(),
        })
    })
}

/// Gives those of an end-to-end handshake.
fn syn_rules(plan: &Plan) -> Vec<QueueRule> {
    let mark = plan.mark;
    let Some(queues) = plan.queues_of(QueueBackend::Iptables) else {
        return Vec::new();
    };
    let queue = match queues.count {
        0 | 1 => format!("--queue-num {}", queues.first),
        count => format!(
            "--queue-balance {}:{}",
            queues.first,
            queues.first.last_of(count)
        ),
    };
    let end = format!("{COMMENT} -j NFQUEUE {queue} --queue-bypass");
    plan.families
        .iter()
        .flat_map(|&family| {
            let icmp = match family {
                Family::V4 => "-p icmp -m icmp --icmp-type 3/1",
                Family::V6 => "-p ipv6-icmp -m icmp6 --icmpv6-type 1/3",
            };
            let tcp = format!("-p tcp -m mark --mark {mark} {end}");
            let unclaimed = plan.unclaimed_mark().map(|mark| {
                let rule = format!("OUTPUT -p tcp -m mark --mark {mark} {NO_SYN} {end}");
                (IptablesTable::Raw, rule)
            });
            [
                (IptablesTable::Raw, format!("PREROUTING {tcp}")),
                (IptablesTable::Raw, format!("OUTPUT {icmp} {end}")),
                (IptablesTable::Security, format!("FORWARD {tcp}")),
            ]
            .into_iter()
            .chain(unclaimed)
            .map(move |(table, rule)| QueueRule {
                family,
                table,
                rule,
            })
        })
        .collect()
}

/// Adds the rules that are not there; gives those that it added. On failure it adds none.
pub(crate) async fn make(rules: &[QueueRule]) -> Result<Vec<QueueRule>, QueueBackendError> {
    let mut made = Vec::new();
    make_places(rules).await?;
    for rule in missing(rules).await.map_err(refused)? {
        let added = run(rule.command("-A")).await;
        let is_there = match &added {
            Ok(()) => true,
            Err(error) => error.in_doubt && run(rule.command("-C")).await.is_ok(),
        };
        if is_there {
            made.push(rule.clone());
        }
        if let Err(error) = added {
            undo(&made).await;
            return Err(refused(error));
        }
    }
    Ok(made)
}

/// Makes the chains and tables that rules are to be in, where there are none.
async fn make_places(rules: &[QueueRule]) -> Result<(), QueueBackendError> {
    let nf_tables = rules.iter().filter(|rule| may_speak_nf_tables(rule.family));
    let places: Vec<tables::Place> = nf_tables.filter_map(QueueRule::place).collect();
    if !places.is_empty() {
        tables::make(&places).await?;
    }
    Ok(())
}

/// Takes back what [`make`] added.
pub(crate) async fn undo(rules: &[QueueRule]) {
    for rule in rules.iter().rev() {
        if let Err(error) = run(rule.command("-D")).await {
            tracing::error!(%error, "`pepd down` tries again");
        }
    }
    if let Err(error) = tables::delete_empty(places()).await {
        tracing::error!(%error, "`pepd down` tries again");
    }
}

/// Removes every rule of ours but `wanted`; gives those that were there. Goes on after a failure and
/// reports the first.
pub(crate) async fn remove(wanted: &[QueueRule]) -> Result<Vec<QueueRule>, QueueBackendError> {
    let mut removed = Vec::new();
    let mut failure: Option<QueueBackendError> = None;
    for (family, table) in places() {
        let rules = match own(family, table).await {
            Ok(rules) => rules,
            Err(error) => {
                failure.get_or_insert(error.into());
                continue;
            }
        };
        for rule in rules.into_iter().filter(|rule| !wanted.contains(rule)) {
            match run(rule.command("-D")).await {
                Ok(()) => removed.push(rule),
                Err(error) => _ = failure.get_or_insert(error.into()),
            }
        }
    }
    // With the last rule its table goes, also where a daemon has died between the two.
    if (wanted.is_empty() || !removed.is_empty())
        && let Err(error) = tables::delete_empty(places()).await
    {
        failure.get_or_insert(error.into());
    }
    failure.map_or(Ok(removed), Err)
}

/// Looks whether the rules are there; gives the first difference.
pub(crate) async fn verify(rules: &[QueueRule]) -> Result<Option<Drift>, IptablesError> {
    let missing = missing(rules).await?;
    let drift = |rule| Drift::new(format!("this is not there: `{rule}`"));
    Ok(missing.first().map(drift))
}

/// Gives those of the rules that are not there.
async fn missing(rules: &[QueueRule]) -> Result<Vec<&QueueRule>, IptablesError> {
    let mut missing = Vec::new();
    for (family, table) in places() {
        let here = rules
            .iter()
            .filter(|rule| (rule.family, rule.table) == (family, table));
        let mut here = here.peekable();
        if here.peek().is_some() {
            let there = own(family, table).await?;
            missing.extend(here.filter(|rule| !there.contains(rule)));
        }
    }
    Ok(missing)
}

/// Says what it means that a rule cannot be added: if a target or match is missing, that this host
/// cannot hold SYNs.
fn refused(error: IptablesError) -> QueueBackendError {
    if error.in_doubt || error.kind() == Kind::NotPermitted {
        return error.into();
    }
    let IptablesError {
        command, stderr, ..
    } = error;
    QueueBackendError::None {
        iptables: format!("`{command}` fails ({stderr}; modules xt_NFQUEUE, iptable_security)"),
        stderr: "no `queue`".to_owned(),
    }
}

/// Lists where there may be rules of ours.
fn places() -> impl Iterator<Item = (Family, IptablesTable)> {
    let tables = |family| IptablesTable::ALL.map(|table| (family, table));
    Family::ALL.into_iter().flat_map(tables)
}

/// Lists the rules of ours in the kernel. Without iptables there are none. Where it is there and
/// cannot list them, there may be some.
async fn own(family: Family, table: IptablesTable) -> Result<Vec<QueueRule>, IptablesError> {
    if !may_have_rules(family, table) {
        return Ok(Vec::new());
    }
    let list = ["-w", "-t", table.name(), "-S"].map(str::to_owned).to_vec();
    let listing = match output(Call::new(family, list)).await {
        Ok(listing) => listing,
        Err(error) if error.missing => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    Ok(listed(&listing, family, table))
}

/// Finds the rules of ours in what `iptables -S` prints.
pub(super) fn listed(listing: &str, family: Family, table: IptablesTable) -> Vec<QueueRule> {
    let rules = listing.lines().filter(|line| is_ours(line));
    rules
        .filter_map(|line| line.strip_prefix("-A "))
        .map(|rule| QueueRule {
            family,
            table,
            rule: rule.to_owned(),
        })
        .collect()
}

/// Returns whether a rule is ours: our comment stands right before the target, as a word of its own.
/// An operator's comment may begin with the same word, or quote ours.
fn is_ours(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ours: Vec<&str> = COMMENT.split(' ').chain(["-j", "NFQUEUE"]).collect();
    !line.contains('"') && words.windows(ours.len()).any(|words| words == ours)
}

/// Returns whether there may be rules of ours. The older iptables makes a table by listing it: it
/// is asked only where it has one.
fn may_have_rules(family: Family, table: IptablesTable) -> bool {
    may_speak_nf_tables(family) || has_table(family, table.name(), false)
}

impl QueueRule {
    fn place(&self) -> Option<tables::Place> {
        let chains = [
            IptablesChain::PREROUTING,
            IptablesChain::OUTPUT,
            IptablesChain::FORWARD,
        ];
        let name = self.rule.split_whitespace().next()?;
        let chain = chains.into_iter().find(|chain| chain.name == name)?;
        Some((self.family, self.table, chain))
    }

    fn command(&self, operation: &str) -> Call {
        let mut args = ["-w", "-t", self.table.name(), operation]
            .map(str::to_owned)
            .to_vec();
        args.extend(self.rule.split_whitespace().map(str::to_owned));
        Call::new(self.family, args)
    }
}

impl fmt::Display for QueueRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            family,
            table,
            rule,
        } = self;
        write!(f, "{} -t {table} -A {rule}", program_name(*family))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operators_comment_is_not_taken_for_ours() {
        let ours = "PREROUTING -p tcp -m mark --mark 0x7/0x7 -m comment --comment pepd -j NFQUEUE \
                    --queue-num 7300 --queue-bypass";
        let listing = format!(
            "-P PREROUTING ACCEPT\n\
             -A {ours}\n\
             -A PREROUTING -s 10.9.0.0/16 -m comment --comment pepd-exempt -j ACCEPT\n\
             -A PREROUTING -p tcp -m comment --comment pepd-too -j NFQUEUE --queue-num 1\n\
             -A PREROUTING -p tcp -m comment --comment pepd -j CT --notrack\n\
             -A OUTPUT -m comment --comment \"as -m comment --comment pepd -j NFQUEUE\" -j ACCEPT\n"
        );
        let found = listed(&listing, Family::V4, IptablesTable::Raw);
        let expected = QueueRule {
            family: Family::V4,
            table: IptablesTable::Raw,
            rule: ours.to_owned(),
        };
        assert_eq!(found, [expected]);
    }
}
