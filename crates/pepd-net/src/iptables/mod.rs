//! The `iptables` programs, where nft cannot hold a packet: rules in `raw` that pass marked
//! SYNs and this host's ICMP errors through the queues.
//!
//! Ours are told from the operator's by a comment. They are written as `iptables -S` prints
//! them, so that what is found can be compared with what is wanted.

use std::fmt;
use std::fs;
use std::io;
use std::process::{Command, Output, Stdio};

use crate::error::Error;
use crate::nft::process as nft;
use crate::prefix::Family;
use crate::request::{Mark, Queues};

/// A rule in `raw`: the family, and what follows `-A`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    family: Family,
    rule: String,
}

/// What ends every match of ours.
const COMMENT: &str = "-m comment --comment pepd";

/// The program that speaks nf_tables first: the other needs CAP_NET_RAW, and its tables stay in
/// the kernel. A service's PATH may lack the administrator's directories.
const PROGRAMS4: [&str; 4] = [
    "iptables-nft",
    "/usr/sbin/iptables-nft",
    "iptables",
    "/usr/sbin/iptables",
];
const PROGRAMS6: [&str; 4] = [
    "ip6tables-nft",
    "/usr/sbin/ip6tables-nft",
    "ip6tables",
    "/usr/sbin/ip6tables",
];

/// The rules for these families.
pub(crate) fn lines(families: &[Family], mark: Mark, queues: Queues) -> Vec<Line> {
    let queue = match queues.count {
        0 | 1 => format!("--queue-num {}", queues.first),
        count => format!(
            "--queue-balance {}:{}",
            queues.first,
            queues.first.last_of(count)
        ),
    };
    let end = format!("{COMMENT} -j NFQUEUE {queue} --queue-bypass");
    families
        .iter()
        .flat_map(|&family| {
            let icmp = match family {
                Family::V4 => "-p icmp -m icmp --icmp-type 3",
                Family::V6 => "-p ipv6-icmp -m icmp6 --icmpv6-type 1",
            };
            [
                format!("PREROUTING -p tcp -m mark --mark {mark} {end}"),
                format!("OUTPUT {icmp} {end}"),
            ]
            .map(|rule| Line { family, rule })
        })
        .collect()
}

/// Adds the rules that are not there; gives those that it added. On failure it adds none.
pub(crate) async fn make(lines: &[Line]) -> Result<Vec<Line>, Error> {
    let mut made = Vec::new();
    for line in lines {
        let result = match run(line.command("-C")).await {
            Ok(()) => continue,
            // iptables has one exit code for "no such rule" and for most failures: adding
            // tells them apart.
            Err(_) => run(line.command("-A")).await,
        };
        if let Err(error) = result {
            undo(&made).await;
            return Err(explain(error));
        }
        made.push(line.clone());
    }
    Ok(made)
}

/// Takes back what [`make`] added.
pub(crate) async fn undo(lines: &[Line]) {
    for line in lines.iter().rev() {
        if let Err(error) = delete(line).await {
            tracing::error!(%error, "`pepd down` tries again");
        }
    }
}

/// Removes every rule of ours but `wanted`; gives those that were there.
pub(crate) async fn remove(wanted: &[Line]) -> Result<Vec<Line>, Error> {
    let mut removed = Vec::new();
    for family in Family::ALL {
        for line in own(family).await {
            if !wanted.contains(&line) {
                delete(&line).await?;
                removed.push(line);
            }
        }
    }
    Ok(removed)
}

/// Checks that the rules are there.
pub(crate) async fn verify(lines: &[Line]) -> Result<(), Error> {
    for line in lines {
        run(line.command("-C")).await.map_err(|_| Error::Drift {
            what: format!("this is not there: `{line}`"),
        })?;
    }
    Ok(())
}

/// Whether there are iptables programs; `nft_said` goes into the error.
pub(crate) async fn probe(nft_said: String) -> Result<(), Error> {
    for family in Family::ALL {
        if let Err(error) = run(Call::new(family, vec!["--version".to_owned()])).await {
            return Err(Error::NoHolder {
                iptables: format!("iptables cannot be used ({error}; package iptables)"),
                stderr: nft_said,
            });
        }
    }
    Ok(())
}

/// A rule that cannot be added for want of a target or match is a host that cannot hold SYNs.
fn explain(error: Error) -> Error {
    match error {
        Error::Iptables { command, stderr } if !not_permitted(&stderr) => Error::NoHolder {
            iptables: format!("`{command}` fails ({stderr}; module xt_NFQUEUE)"),
            stderr: "no `queue`".to_owned(),
        },
        other => other,
    }
}

/// Whether an iptables program complains of a missing privilege.
pub(crate) fn not_permitted(stderr: &str) -> bool {
    stderr.contains("Permission denied") || stderr.contains("Operation not permitted")
}

async fn delete(line: &Line) -> Result<(), Error> {
    run(line.command("-D")).await?;
    nft::delete_empty_raw(line.family).await
}

/// The rules of ours in the kernel. Without iptables, or where it cannot look, there are none.
async fn own(family: Family) -> Vec<Line> {
    if !may_have_rules(family) {
        return Vec::new();
    }
    let list = ["-w", "-t", "raw", "-S"].map(str::to_owned).to_vec();
    let listing = output(Call::new(family, list)).await.unwrap_or_default();
    listing
        .lines()
        .filter(|line| line.contains(COMMENT))
        .filter_map(|line| line.strip_prefix("-A "))
        .map(|rule| Line {
            family,
            rule: rule.to_owned(),
        })
        .collect()
}

/// The older iptables makes a table by looking at it: it is asked only where it has one.
fn may_have_rules(family: Family) -> bool {
    let names = match family {
        Family::V4 => "/proc/net/ip_tables_names",
        Family::V6 => "/proc/net/ip6_tables_names",
    };
    let nft = programs(family)[1];
    fs::exists(nft).unwrap_or(false)
        || fs::read_to_string(names).is_ok_and(|names| names.lines().any(|name| name == "raw"))
}

impl Line {
    fn command(&self, operation: &str) -> Call {
        let mut args = ["-w", "-t", "raw", operation].map(str::to_owned).to_vec();
        args.extend(self.rule.split_whitespace().map(str::to_owned));
        Call::new(self.family, args)
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -t raw -A {}", name(self.family), self.rule)
    }
}

/// A program to run.
#[derive(Debug)]
struct Call {
    family: Family,
    args: Vec<String>,
}

impl Call {
    fn new(family: Family, args: Vec<String>) -> Self {
        Self { family, args }
    }

    fn start(&self) -> io::Result<Output> {
        let mut result = Err(io::Error::from(io::ErrorKind::NotFound));
        for program in programs(self.family) {
            result = Command::new(program)
                .args(&self.args)
                .stdin(Stdio::null())
                .output();
            match &result {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => break,
            }
        }
        result
    }
}

async fn run(call: Call) -> Result<(), Error> {
    output(call).await.map(drop)
}

async fn output(call: Call) -> Result<String, Error> {
    let command = format!("{} {}", name(call.family), call.args.join(" "));
    let failed = |stderr: String| Error::Iptables {
        command: command.clone(),
        stderr,
    };
    let output = tokio::task::spawn_blocking(move || call.start())
        .await
        .map_err(|error| failed(error.to_string()))?
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(
        String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    ))
}

fn programs(family: Family) -> [&'static str; 4] {
    match family {
        Family::V4 => PROGRAMS4,
        Family::V6 => PROGRAMS6,
    }
}

fn name(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}
