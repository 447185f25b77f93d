//! Running the iptables programs.

use std::fs;
use std::io;
use std::process::{Command, Output, Stdio};

use crate::error::{Classify, Kind};
use crate::prefix::Family;

/// An iptables program that failed.
#[derive(Debug, thiserror::Error)]
#[error("{command} failed; it said: {stderr}")]
pub struct IptablesError {
    /// The command.
    pub command: String,
    /// The text that it printed.
    pub stderr: String,
}

impl Classify for IptablesError {
    fn kind(&self) -> Kind {
        let denied = ["Permission denied", "Operation not permitted"];
        if denied.iter().any(|said| self.stderr.contains(said)) {
            Kind::NotPermitted
        } else {
            Kind::Internal
        }
    }
}

/// The places where the program is looked for, the one that speaks nf_tables first: the other needs
/// CAP_NET_RAW, and its tables stay in the kernel. A service's PATH may lack the administrator's
/// directories.
pub(crate) const PROGRAMS4: [&str; 4] = [
    "iptables-nft",
    "/usr/sbin/iptables-nft",
    "iptables",
    "/usr/sbin/iptables",
];
pub(crate) const PROGRAMS6: [&str; 4] = [
    "ip6tables-nft",
    "/usr/sbin/ip6tables-nft",
    "ip6tables",
    "/usr/sbin/ip6tables",
];

/// Asks the programs of both families whether they are there.
pub(crate) async fn probe() -> Result<(), IptablesError> {
    for family in Family::ALL {
        run(Call::new(family, vec!["--version".to_owned()])).await?;
    }
    Ok(())
}

/// Returns whether the program that speaks nf_tables is installed: it makes no table by listing it.
pub(super) fn may_speak_nf_tables(family: Family) -> bool {
    fs::exists(programs(family)[1]).unwrap_or(false)
}

/// A program to run.
#[derive(Debug)]
pub(super) struct Call {
    family: Family,
    args: Vec<String>,
}

impl Call {
    /// Makes a call of the family's program.
    pub(super) fn new(family: Family, args: Vec<String>) -> Self {
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

/// Runs a program for what it does.
pub(super) async fn run(call: Call) -> Result<(), IptablesError> {
    output(call).await.map(drop)
}

/// Runs a program for what it prints.
pub(super) async fn output(call: Call) -> Result<String, IptablesError> {
    let command = format!("{} {}", program_name(call.family), call.args.join(" "));
    let failed = |stderr: String| IptablesError {
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

/// Gives the name by which operators know the family's program.
pub(super) fn program_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}
