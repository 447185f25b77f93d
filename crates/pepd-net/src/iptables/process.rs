//! Running the iptables programs.

use std::fs;
use std::io;

use crate::error::{Classify, Kind};
use crate::prefix::Family;
use crate::program::{LIMIT, Program, ProgramError};

/// An iptables program that failed.
#[derive(Debug, thiserror::Error)]
#[error("{command} failed; it said: {stderr}")]
pub struct IptablesError {
    /// The command.
    pub command: String,
    /// The text that it printed, or the reason why it printed none.
    pub stderr: String,
    /// Whether it did not end in time, and was killed.
    pub timed_out: bool,
    /// Whether there is no such program.
    pub missing: bool,
    /// Whether it was started, and nobody knows whether it has done its work.
    pub in_doubt: bool,
}

impl Classify for IptablesError {
    fn kind(&self) -> Kind {
        let denied = ["Permission denied", "Operation not permitted"];
        if self.timed_out {
            Kind::Temporary
        } else if denied.iter().any(|said| self.stderr.contains(said)) {
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
    let program = match family {
        Family::V4 => PROGRAMS4[1],
        Family::V6 => PROGRAMS6[1],
    };
    fs::exists(program).unwrap_or(false)
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
        timed_out: false,
        missing: false,
        in_doubt: false,
    };
    let program = Program {
        places: programs(call.family),
        args: call.args,
        input: String::new(),
    };
    let output = program.run().await.map_err(|error| match error {
        ProgramError::Start(error) => IptablesError {
            missing: error.kind() == io::ErrorKind::NotFound,
            // It may run, and only the pipes to it be missing.
            in_doubt: error.kind() != io::ErrorKind::NotFound,
            ..failed(error.to_string())
        },
        ProgramError::Io(error) => IptablesError {
            in_doubt: true,
            ..failed(error.to_string())
        },
        ProgramError::TimedOut => IptablesError {
            command: command.clone(),
            stderr: format!(
                "nothing within {} s, and was killed; does another program hold \
                 /run/xtables.lock?",
                LIMIT.as_secs()
            ),
            timed_out: true,
            missing: false,
            in_doubt: true,
        },
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(
        String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    ))
}

fn programs(family: Family) -> &'static [&'static str] {
    match family {
        Family::V4 => &PROGRAMS4,
        Family::V6 => &PROGRAMS6,
    }
}

/// Gives the name by which operators know the family's program.
pub(super) fn program_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}
