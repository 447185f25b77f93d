//! The `nft` program: one batch of commands on its standard input, one listing from its output.

use std::io::{self, Write as _};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use super::error::NftError;
use super::listing::Listing;
use super::names::TABLE;
use crate::prefix::Family;

/// The places where `nft` is looked for: a service's PATH may lack the administrator's directories.
pub(crate) const PROGRAMS: [&str; 3] = ["nft", "/usr/sbin/nft", "/sbin/nft"];

/// Expressions whose kernel module may be missing, by what the ruleset says.
const FEATURES: [(&str, &str, &str); 7] = [
    ("notrack", "notrack statement", "nft_ct"),
    ("tproxy", "tproxy expression", "nft_tproxy"),
    ("socket", "socket expression", "nft_socket"),
    ("fib", "fib expression for inet", "nft_fib_inet"),
    ("reject", "reject expression for inet", "nft_reject_inet"),
    ("hook", "filter chain for inet", "nf_tables"),
    ("table", "inet table", "nf_tables"),
];

/// Sends a batch. The kernel takes all of it or none.
pub(crate) async fn apply(batch: String) -> Result<(), NftError> {
    run(&["-f", "-"], batch).await.map(|_| ())
}

/// Has the kernel check a batch without taking it.
pub(crate) async fn check(batch: String) -> Result<(), NftError> {
    run(&["-c", "-f", "-"], batch).await.map(|_| ())
}

/// Deletes pepd's table. False if there was none.
pub(crate) async fn delete() -> Result<bool, NftError> {
    if list().await?.is_none() {
        return Ok(false);
    }
    apply(format!("delete table inet {TABLE}\n")).await?;
    Ok(true)
}

/// Reads pepd's table; none if there is no such table.
pub(crate) async fn list() -> Result<Option<Listing>, NftError> {
    match run(&["-j", "list", "table", "inet", TABLE], String::new()).await {
        Ok(json) => Listing::parse(&json).map(Some),
        Err(NftError::Failed { stderr }) if stderr.contains("No such file or directory") => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Deletes iptables-nft's `raw` table of a family where it holds nothing: no rule, no chain of the
/// operator's and no policy. It was created with pepd's rule, and iptables has no command that
/// deletes it.
pub(crate) async fn delete_empty_raw(family: Family) -> Result<(), NftError> {
    let (list, delete) = match family {
        Family::V4 => (LIST_RAW4, "delete table ip raw\n"),
        Family::V6 => (LIST_RAW6, "delete table ip6 raw\n"),
    };
    let listing = match run(list, String::new()).await {
        Ok(json) => Listing::parse(&json)?,
        // There is none.
        Err(_) => return Ok(()),
    };
    let holds_nothing = listing.objects.iter().all(|object| {
        object.get("metainfo").is_some()
            || object.get("table").is_some()
            || object.get("chain").is_some_and(|chain| {
                chain.get("hook").is_some()
                    && chain.get("policy").and_then(Value::as_str) == Some("accept")
            })
    });
    if holds_nothing {
        apply(delete.to_owned()).await?;
    }
    Ok(())
}

const LIST_RAW4: &[&str] = &["-j", "list", "table", "ip", "raw"];
const LIST_RAW6: &[&str] = &["-j", "list", "table", "ip6", "raw"];

/// Lists the heads of all chains on this host, as nft's JSON objects.
pub(crate) async fn chains() -> Result<Vec<Value>, NftError> {
    let json = run(&["-j", "list", "chains"], String::new()).await?;
    Ok(Listing::parse(&json)?.objects)
}

/// Lists everything in this namespace, as nft's JSON objects.
pub(crate) async fn ruleset() -> Result<Vec<Value>, NftError> {
    let json = run(&["-j", "list", "ruleset"], String::new()).await?;
    Ok(Listing::parse(&json)?.objects)
}

/// Lists the rules of one chain, as nft prints them.
pub(crate) async fn chain(family: &str, table: &str, name: &str) -> Result<String, NftError> {
    run(
        &["-f", "-"],
        format!("list chain {family} {table} {name}\n"),
    )
    .await
}

async fn run(args: &'static [&'static str], input: String) -> Result<String, NftError> {
    let joined = tokio::task::spawn_blocking(move || run_blocking(args, &input)).await;
    joined.map_err(|error| NftError::Io {
        source: io::Error::new(io::ErrorKind::Interrupted, error),
    })?
}

fn run_blocking(args: &[&str], input: &str) -> Result<String, NftError> {
    let mut child = start(args)?;
    let written = match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(input.as_bytes()),
        None => Ok(()),
    };
    let output = child
        .wait_with_output()
        .map_err(|source| NftError::Io { source })?;
    if !output.status.success() {
        return Err(classify(input, &output));
    }
    // Only now: an nft that fails early stops reading, and its own words say more.
    written.map_err(|source| NftError::Io { source })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn start(args: &[&str]) -> Result<Child, NftError> {
    let mut result = Err(io::Error::from(io::ErrorKind::NotFound));
    for program in PROGRAMS {
        result = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        match &result {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => break,
        }
    }
    result.map_err(|source| NftError::Missing { source })
}

/// Says what nft's complaint means.
fn classify(batch: &str, output: &Output) -> NftError {
    let mut stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if stderr.is_empty() {
        stderr = format!("nothing ({})", output.status);
    }
    if stderr.contains("Operation not permitted") || stderr.contains("Permission denied") {
        return NftError::NotPermitted { stderr };
    }
    let missing = stderr.contains("No such file or directory")
        || stderr.contains("not supported")
        || stderr.contains("Protocol not");
    match missing_feature(batch, &stderr).filter(|_| missing) {
        Some((feature, module)) => NftError::NoFeature {
            feature,
            module,
            stderr,
        },
        None => NftError::Failed { stderr },
    }
}

/// Names the expression that the kernel refused: nft repeats the line it could not process.
fn missing_feature(batch: &str, stderr: &str) -> Option<(&'static str, &'static str)> {
    if stderr.contains("Unable to initialize Netlink socket") {
        return Some(("support", "nf_tables"));
    }
    if !batch.contains("tproxy") {
        return None;
    }
    FEATURES
        .iter()
        .find(|(word, _, _)| {
            stderr
                .lines()
                .skip(1)
                .any(|line| line.split_whitespace().any(|w| w == *word))
        })
        .map(|&(_, feature, module)| (feature, module))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;
    use crate::error::{Classify as _, Kind};

    fn failed(ruleset: &str, stderr: &str) -> NftError {
        let output = Output {
            status: ExitStatus::from_raw(256),
            stdout: Vec::new(),
            stderr: stderr.as_bytes().to_vec(),
        };
        classify(ruleset, &output)
    }

    #[test]
    fn a_missing_expression_is_named_with_its_module() {
        let stderr = "/dev/stdin:50:1-5: Error: Could not process rule: No such file or directory\n\
                      \t\tmeta nfproto ipv4 meta l4proto tcp tproxy ip to 127.73.0.1:7300 accept\n\
                      \t\t^^^^^^^\n";
        let error = failed("tproxy socket", stderr);
        assert!(
            matches!(
                &error,
                NftError::NoFeature {
                    module: "nft_tproxy",
                    ..
                }
            ),
            "{error}"
        );
        assert_eq!(error.kind(), Kind::Unavailable);
        assert_eq!(error.exit_code(), 69);
    }

    #[test]
    fn a_missing_privilege_is_named() {
        let error = failed(
            "tproxy",
            "Error: Could not process rule: Operation not permitted\nadd table inet pepd\n",
        );
        assert_eq!(error.exit_code(), 77);
        assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    }

    #[test]
    fn other_failures_are_internal_and_keep_what_nft_said() {
        let error = failed("tproxy", "Error: syntax error, unexpected newline\n");
        assert_eq!(error.exit_code(), 70);
        assert!(error.to_string().contains("unexpected newline"), "{error}");
    }
}
