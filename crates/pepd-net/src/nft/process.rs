//! The `nft` program: one batch of commands on its standard input, one listing from its output.

use serde_json::Value;

use super::elements;
use super::error::NftError;
use super::listing::{FAMILIES, Listing};
use super::names::{DynamicSet, TABLE};
use crate::program::{LIMIT, Output, Program, ProgramError};

/// The places where `nft` is looked for: a service's PATH may lack the administrator's directories.
pub(crate) const PROGRAMS: [&str; 3] = ["nft", "/usr/sbin/nft", "/sbin/nft"];

/// Expressions whose kernel module may be missing, by what the ruleset says.
const FEATURES: [(&str, &str, &str); 9] = [
    ("::1", "dup statement for ip6", "nft_dup_ipv6"),
    ("dup", "dup statement for ip", "nft_dup_ipv4"),
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

/// Deletes pepd's tables; gives the families of those that were there.
pub(crate) async fn delete() -> Result<Vec<&'static str>, NftError> {
    let Some(listing) = objects().await?.ours else {
        return Ok(Vec::new());
    };
    let families: Vec<&str> = FAMILIES
        .into_iter()
        .filter(|family| listing.has_table(family))
        .collect();
    let batch = families
        .iter()
        .map(|family| format!("delete table {family} {TABLE}\n"));
    apply(batch.collect()).await?;
    Ok(families)
}

/// Reads pepd's tables as one listing, but not the elements of dynamic sets; none if there is no
/// such table.
pub(crate) async fn list() -> Result<Option<Listing>, NftError> {
    look().await.map(|looked| looked.ours)
}

/// What is in the kernel.
#[derive(Debug)]
pub(crate) struct Looked {
    /// Pepd's tables, if there are any.
    pub(crate) ours: Option<Listing>,
    /// Whether any chain in this namespace translates addresses.
    pub(crate) has_nat_chain: bool,
}

/// As [`list`], and whether any chain translates addresses: by one program where that can be.
pub(crate) async fn look() -> Result<Looked, NftError> {
    let Looked {
        ours,
        has_nat_chain,
    } = objects().await?;
    Ok(Looked {
        ours: ours.map(with_elements).transpose()?,
        has_nat_chain,
    })
}

fn with_elements(listing: Listing) -> Result<Listing, NftError> {
    let fixed: Vec<String> = listing
        .sets()
        .filter(|set| DynamicSet::named(set.name).is_none())
        .map(|set| set.name.to_owned())
        .collect();
    match elements::read(fixed) {
        Ok(elements) => Ok(listing.with_elements(elements)),
        // Somebody has just deleted it.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(listing),
        Err(source) => Err(NftError::Elements { source }),
    }
}

/// Reads pepd's tables without any elements.
async fn objects() -> Result<Looked, NftError> {
    if let Ok(all) = Listing::parse(&run(LIST, String::new()).await?) {
        return Ok(Looked {
            has_nat_chain: all.has_nat_chain(),
            ours: all.of_tables(),
        });
    }
    // nft 1.0.6 breaks off at a table with flags, such as firewalld's.
    let (inet, v4, v6, nat) = tokio::join!(
        list_table(&["-j", "-t", "list", "table", "inet", TABLE]),
        list_table(&["-j", "-t", "list", "table", "ip", TABLE]),
        list_table(&["-j", "-t", "list", "table", "ip6", TABLE]),
        has_nat_chain(),
    );
    let all = [inet?, v4?, v6?].into_iter().flatten();
    Ok(Looked {
        ours: all.reduce(Listing::and).and_then(Listing::of_tables),
        has_nat_chain: nat?,
    })
}

/// Lists all tables without the elements of sets with a name. Asked for one table, nft reads the elements of all
/// its sets, whether it shows them or not.
const LIST: &[&str] = &["-j", "-t", "list", "ruleset"];

/// Lists a table.
async fn list_table(args: &'static [&'static str]) -> Result<Option<Listing>, NftError> {
    match run(args, String::new()).await {
        Ok(json) => Listing::parse(&json).map(Some),
        Err(NftError::Failed { stderr }) if stderr.contains("No such file or directory") => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Lists everything in this namespace but the elements of sets with a name, as nft's JSON objects.
pub(crate) async fn ruleset() -> Result<Vec<Value>, NftError> {
    let json = run(LIST, String::new()).await?;
    Ok(Listing::parse(&json)?.objects)
}

/// Returns whether any chain in this namespace translates addresses.
pub(crate) async fn has_nat_chain() -> Result<bool, NftError> {
    // Not as JSON, which nft 1.0.6 breaks off at a table with flags, such as firewalld's.
    let listing = run(LIST_TEXT, String::new()).await?;
    let mut lines = listing.lines();
    Ok(lines.any(|line| line.trim_start().starts_with("type nat hook ")))
}

/// Lists the rules of one chain, as nft prints them: beside JSON, which does not tell what the rules
/// of iptables match. Asked for the chain alone, nft reads the elements of all its table's sets.
pub(crate) async fn chain(family: &str, table: &str, name: &str) -> Result<String, NftError> {
    let text = run(LIST_TEXT, String::new()).await?;
    let chain = block(&text, &format!("table {family} {table}"), 0)
        .and_then(|table| block(table, &format!("chain {name}"), 1));
    Ok(chain.unwrap_or_default().to_owned())
}

/// Lists everything in this namespace but the elements of sets with a name.
pub(super) const LIST_TEXT: &[&str] = &["-t", "list", "ruleset"];

/// Returns what stands in the braces after `title` in a listing, where that is indented by so many
/// tabs.
pub(super) fn block<'a>(text: &'a str, title: &str, depth: usize) -> Option<&'a str> {
    let indent = "\t".repeat(depth);
    let title = format!("{indent}{title} {{");
    let mut lines = text.split_inclusive('\n');
    let mut start = 0;
    for line in lines.by_ref() {
        start += line.len();
        if line.trim_end() == title {
            break;
        }
    }
    let end = lines.scan(start, |at, line| {
        let begin = *at;
        *at += line.len();
        Some((begin, line))
    });
    let last = format!("{indent}}}");
    let (end, _) = end.into_iter().find(|(_, line)| line.trim_end() == last)?;
    text.get(start..end)
}

pub(super) async fn run(args: &'static [&'static str], input: String) -> Result<String, NftError> {
    let is_ours = input.contains("tproxy");
    let program = Program {
        places: &PROGRAMS,
        args: args.iter().map(|&word| word.to_owned()).collect(),
        input,
    };
    let output = program.run().await.map_err(|error| match error {
        ProgramError::Start(source) => NftError::Missing { source },
        ProgramError::Io(source) => NftError::Io { source },
        ProgramError::TimedOut => NftError::TimedOut {
            command: format!("nft {}", args.join(" ")),
            seconds: LIMIT.as_secs(),
        },
    })?;
    if !output.status.success() {
        return Err(classify(is_ours, &output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Says what nft's complaint means.
///
/// `is_ours`: it was given pepd's ruleset, and not a question.
fn classify(is_ours: bool, output: &Output) -> NftError {
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
    match missing_feature(is_ours, &stderr).filter(|_| missing) {
        Some((feature, module)) => NftError::NoFeature {
            feature,
            module,
            stderr,
        },
        None => NftError::Failed { stderr },
    }
}

/// Names the expression that the kernel refused: nft repeats the line it could not process.
fn missing_feature(is_ours: bool, stderr: &str) -> Option<(&'static str, &'static str)> {
    if stderr.contains("Unable to initialize Netlink socket") {
        return Some(("support", "nf_tables"));
    }
    if !is_ours {
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

    fn failed(stderr: &str) -> NftError {
        let output = Output {
            status: ExitStatus::from_raw(256),
            stdout: Vec::new(),
            stderr: stderr.as_bytes().to_vec(),
        };
        classify(true, &output)
    }

    #[test]
    fn a_missing_expression_is_named_with_its_module() {
        let stderr = "/dev/stdin:50:1-5: Error: Could not process rule: No such file or directory\n\
                      \t\tmeta nfproto ipv4 meta l4proto tcp tproxy ip to 127.73.0.1:7300 accept\n\
                      \t\t^^^^^^^\n";
        let error = failed(stderr);
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
    fn each_familys_copying_is_a_module_of_its_own() {
        for (to, expected) in [("127.0.0.1", "nft_dup_ipv4"), ("::1", "nft_dup_ipv6")] {
            let stderr = format!(
                "/dev/stdin:50:1-5: Error: Could not process rule: No such file or directory\n\
                 \t\tmeta mark & 0x70000000 == 0x10000000 dup to {to} device \"lo\" drop\n"
            );
            let error = failed(&stderr);
            assert!(
                matches!(&error, NftError::NoFeature { module, .. } if *module == expected),
                "{error}"
            );
        }
    }

    #[test]
    fn a_missing_privilege_is_named() {
        let error =
            failed("Error: Could not process rule: Operation not permitted\nadd table inet pepd\n");
        assert_eq!(error.exit_code(), 77);
        assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    }

    #[test]
    fn a_block_ends_where_its_indentation_does() {
        let text = "table ip raw {\n\tcomment \"x\"\n\tchain a {\n\t\tone\n\t}\n\n\tchain ab {\n\
                    \t\ttwo\n\t}\n}\ntable ip6 raw {\n\tchain ab {\n\t\tthree\n\t}\n}\n";
        let chain = |table, name| block(block(text, table, 0)?, name, 1);
        assert_eq!(chain("table ip raw", "chain ab"), Some("\t\ttwo\n"));
        assert_eq!(chain("table ip6 raw", "chain ab"), Some("\t\tthree\n"));
        assert_eq!(chain("table ip6 raw", "chain a"), None);
        assert_eq!(chain("table inet raw", "chain a"), None);
    }

    #[test]
    fn other_failures_are_internal_and_keep_what_nft_said() {
        let error = failed("Error: syntax error, unexpected newline\n");
        assert_eq!(error.exit_code(), 70);
        assert!(error.to_string().contains("unexpected newline"), "{error}");
    }
}
