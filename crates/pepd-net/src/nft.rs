//! The `nft` program: one script on its standard input, one listing from its output.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::error::Error;
use crate::iptables;
use crate::prefix::Family;
use crate::request::Holder;
use crate::script::{Carried, DYNAMIC_SETS, GATES, GUARD, STRANGERS, Script, TABLE};

/// Where `nft` is looked for: a service's PATH may lack the administrator's directories.
const PROGRAMS: [&str; 3] = ["nft", "/usr/sbin/nft", "/sbin/nft"];

/// Expressions whose kernel module may be missing, by what the script says.
const FEATURES: [(&str, &str, &str); 7] = [
    ("notrack", "notrack statement", "nft_ct"),
    ("tproxy", "tproxy expression", "nft_tproxy"),
    ("socket", "socket expression", "nft_socket"),
    ("fib", "fib expression for inet", "nft_fib_inet"),
    ("reject", "reject expression for inet", "nft_reject_inet"),
    ("hook", "filter chain for inet", "nf_tables"),
    ("table", "inet table", "nf_tables"),
];

/// Sends a script. The kernel takes all of it or none.
pub(crate) async fn apply(script: String) -> Result<(), Error> {
    run(&["-f", "-"], script).await.map(|_| ())
}

/// Has the kernel look at a script without taking it.
pub(crate) async fn check(script: String) -> Result<(), Error> {
    run(&["-c", "-f", "-"], script).await.map(|_| ())
}

/// Deletes pepd's table. False if there was none.
pub(crate) async fn delete() -> Result<bool, Error> {
    if list().await?.is_none() {
        return Ok(false);
    }
    apply(format!("delete table inet {TABLE}\n")).await?;
    Ok(true)
}

/// Reads pepd's table; none if there is no such table.
pub(crate) async fn list() -> Result<Option<Listing>, Error> {
    match run(&["-j", "list", "table", "inet", TABLE], String::new()).await {
        Ok(json) => Listing::parse(&json).map(Some),
        Err(Error::Nft { stderr }) if stderr.contains("No such file or directory") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Finds out what can hold a SYN on this kernel: nft's `queue` where it is there, else
/// iptables' NFQUEUE.
///
/// nft is asked by a table that is made and deleted in one transaction, and so never there.
///
/// # Errors
///
/// [`Error::NoHolder`] if there is neither, [`Error::NftNotPermitted`] without CAP_NET_ADMIN.
pub async fn find_holder() -> Result<Holder, Error> {
    const PROBE: &str = "add table inet pepd_probe\n\
        add chain inet pepd_probe c { type filter hook prerouting priority raw; }\n\
        add rule inet pepd_probe c meta mark 0 meta mark 1 queue num 0 bypass\n\
        delete table inet pepd_probe\n";
    match apply(PROBE.to_owned()).await {
        Ok(()) => Ok(Holder::Nft),
        Err(Error::Nft { stderr }) => iptables::probe(stderr).await.map(|()| Holder::Iptables),
        Err(error) => Err(error),
    }
}

/// What the guard of one tunnel has dropped since it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// The peer's name; none for IP-in-IP packets to this box from no peer's address.
    pub peer: Option<String>,
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Reads what the guards of the tunnels have dropped. Empty if there is no tunnel, or no table.
///
/// # Errors
///
/// See [`Error`].
pub async fn guards() -> Result<Vec<Guard>, Error> {
    let Some(listing) = list_counters().await? else {
        return Ok(Vec::new());
    };
    let guards = listing.carried().counters.into_iter();
    Ok(guards
        .filter_map(|(name, (packets, bytes))| {
            let peer = match name.strip_prefix(GUARD) {
                Some(peer) => Some(peer.to_owned()),
                None if name == STRANGERS => None,
                None => return None,
            };
            Some(Guard {
                peer,
                packets,
                bytes,
            })
        })
        .collect())
}

async fn list_counters() -> Result<Option<Listing>, Error> {
    const ARGS: &[&str] = &["-j", "list", "counters", "table", "inet", TABLE];
    match run(ARGS, String::new()).await {
        Ok(json) => Listing::parse(&json).map(Some),
        Err(Error::Nft { stderr }) if stderr.contains("No such file or directory") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes iptables-nft's `raw` table of a family where it holds nothing: no rule, no chain of
/// the operator's and no policy. It came into being with pepd's rule, and iptables has no
/// command that deletes it.
pub(crate) async fn delete_empty_raw(family: Family) -> Result<(), Error> {
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

/// The heads of all chains on this host, as nft's JSON objects.
pub(crate) async fn chains() -> Result<Vec<Value>, Error> {
    let json = run(&["-j", "list", "chains"], String::new()).await?;
    Ok(Listing::parse(&json)?.objects)
}

/// Everything in this namespace, as nft's JSON objects.
pub(crate) async fn ruleset() -> Result<Vec<Value>, Error> {
    let json = run(&["-j", "list", "ruleset"], String::new()).await?;
    Ok(Listing::parse(&json)?.objects)
}

/// The rules of one chain, as nft prints them.
pub(crate) async fn chain(family: &str, table: &str, name: &str) -> Result<String, Error> {
    run(
        &["-f", "-"],
        format!("list chain {family} {table} {name}\n"),
    )
    .await
}

/// What nft says is in the table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Listing {
    objects: Vec<Value>,
}

impl Listing {
    fn parse(json: &str) -> Result<Listing, Error> {
        let mut value: Value = serde_json::from_str(json).map_err(|error| Error::NftListing {
            reason: error.to_string(),
        })?;
        match value.get_mut("nftables").map(Value::take) {
            Some(Value::Array(objects)) => Ok(Listing { objects }),
            _ => Err(Error::NftListing {
                reason: "there is no array `nftables`".to_owned(),
            }),
        }
    }

    /// The table without what changes by itself: handles, counts and dynamic elements.
    /// Two equal fingerprints mean that nobody changed the table in between.
    pub(crate) fn fingerprint(&self) -> Listing {
        let mut objects = self.objects.clone();
        objects.retain(|object| object.get("metainfo").is_none());
        for object in &mut objects {
            let dynamic = object
                .get("set")
                .and_then(|set| set.get("name"))
                .and_then(Value::as_str)
                .is_some_and(is_dynamic);
            if dynamic && let Some(set) = object.get_mut("set").and_then(Value::as_object_mut) {
                set.remove("elem");
            }
            strip(object);
        }
        Listing { objects }
    }

    /// What the next table takes over from this one.
    pub(crate) fn carried(&self) -> Carried {
        let mut carried = Carried::default();
        for object in &self.objects {
            if let Some(counter) = object.get("counter")
                && let (Some(name), Some(packets), Some(bytes)) = (
                    counter.get("name").and_then(Value::as_str),
                    counter.get("packets").and_then(Value::as_u64),
                    counter.get("bytes").and_then(Value::as_u64),
                )
            {
                carried.counters.insert(name.to_owned(), (packets, bytes));
            }
            if let Some(set) = object.get("set")
                && let Some(name) = set.get("name").and_then(Value::as_str)
                && is_dynamic(name)
                && let Some(elements) = set.get("elem").and_then(Value::as_array)
            {
                let elements = elements.iter().filter_map(|e| carried_element(name, e));
                carried.elements.insert(name.to_owned(), elements.collect());
            }
        }
        carried
    }

    /// Compares the numbers of rules and elements with what `script` makes.
    pub(crate) fn check(&self, script: &Script) -> Result<(), Error> {
        let chains = self.names("chain");
        let mut rules: BTreeMap<&str, usize> =
            chains.iter().map(|chain| (chain.as_str(), 0)).collect();
        for rule in self.objects.iter().filter_map(|object| object.get("rule")) {
            if let Some(chain) = rule.get("chain").and_then(Value::as_str) {
                *rules.entry(chain).or_default() += 1;
            }
        }
        for (chain, &expected) in &script.chains {
            let found = rules.get(chain.as_str()).copied();
            differs("chain", chain, "rules", expected, found)?;
        }
        for (set, &expected) in &script.sets {
            differs("set", set, "elements", expected, self.elements(set))?;
        }
        for set in &script.dynamic {
            if self.elements(set).is_none() {
                differs("set", set, "elements", 0, None)?;
            }
        }
        Ok(())
    }

    fn names(&self, kind: &str) -> Vec<String> {
        self.objects
            .iter()
            .filter_map(|object| object.get(kind)?.get("name")?.as_str())
            .map(str::to_owned)
            .collect()
    }

    /// The number of elements of a set or map; none if there is no such set.
    fn elements(&self, name: &str) -> Option<usize> {
        self.objects
            .iter()
            .filter_map(|object| object.get("set").or_else(|| object.get("map")))
            .find(|set| set.get("name").and_then(Value::as_str) == Some(name))
            .map(|set| {
                set.get("elem")
                    .and_then(Value::as_array)
                    .map_or(0, Vec::len)
            })
    }
}

fn differs(
    kind: &str,
    name: &str,
    what: &str,
    expected: usize,
    found: Option<usize>,
) -> Result<(), Error> {
    if found == Some(expected) {
        return Ok(());
    }
    let found = found.map_or_else(
        || "it is not there".to_owned(),
        |found| format!("it has {found}"),
    );
    Err(Error::Drift {
        what: format!(
            "nft {kind} {name} of table inet {TABLE} should have {expected} {what}; {found}"
        ),
    })
}

fn is_dynamic(set: &str) -> bool {
    DYNAMIC_SETS.iter().any(|(name, _)| *name == set)
}

/// An element with the time it has left, in nft syntax.
///
/// nft's JSON has whole seconds only. The gate therefore starts its time again (the daemon
/// is alive: it is the one that reloads), and a source stays out for at least a second.
fn carried_element(set: &str, element: &Value) -> Option<String> {
    let element = element.get("elem")?;
    let value = match element.get("val")? {
        Value::String(value) => value.clone(),
        pair => {
            let parts = pair.get("concat")?.as_array()?.iter();
            let parts: Option<Vec<&str>> = parts.map(Value::as_str).collect();
            parts?.join(" . ")
        }
    };
    let time = if GATES.contains(&set) {
        "timeout"
    } else {
        "expires"
    };
    let seconds = element.get(time)?.as_u64()?.max(1);
    Some(format!("{value} timeout {seconds}s"))
}

/// Removes handles and counts, at any depth.
fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for key in ["handle", "packets", "bytes"] {
                map.remove(key);
            }
            map.values_mut().for_each(strip);
        }
        Value::Array(array) => array.iter_mut().for_each(strip),
        _ => {}
    }
}

async fn run(args: &'static [&'static str], input: String) -> Result<String, Error> {
    let joined = tokio::task::spawn_blocking(move || run_blocking(args, &input)).await;
    joined.map_err(|error| Error::NftIo {
        source: io::Error::new(io::ErrorKind::Interrupted, error),
    })?
}

fn run_blocking(args: &[&str], input: &str) -> Result<String, Error> {
    let mut child = start(args)?;
    let written = match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(input.as_bytes()),
        None => Ok(()),
    };
    let output = child
        .wait_with_output()
        .map_err(|source| Error::NftIo { source })?;
    if !output.status.success() {
        return Err(classify(input, &output));
    }
    // Only now: nft that fails early stops reading, and its own words say more.
    written.map_err(|source| Error::NftIo { source })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn start(args: &[&str]) -> Result<Child, Error> {
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
    result.map_err(|source| Error::NftMissing { source })
}

/// What nft's complaint means.
fn classify(script: &str, output: &Output) -> Error {
    let mut stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if stderr.is_empty() {
        stderr = format!("nothing ({})", output.status);
    }
    if stderr.contains("Operation not permitted") || stderr.contains("Permission denied") {
        return Error::NftNotPermitted { stderr };
    }
    let missing = stderr.contains("No such file or directory")
        || stderr.contains("not supported")
        || stderr.contains("Protocol not");
    match missing_feature(script, &stderr).filter(|_| missing) {
        Some((feature, module)) => Error::NftFeature {
            feature,
            module,
            stderr,
        },
        None => Error::Nft { stderr },
    }
}

/// Which expression the kernel refused: nft repeats the line it could not process.
fn missing_feature(script: &str, stderr: &str) -> Option<(&'static str, &'static str)> {
    if stderr.contains("Unable to initialize Netlink socket") {
        return Some(("support", "nf_tables"));
    }
    if !script.contains("tproxy") {
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
    use crate::error::Kind;

    fn failed(script: &str, stderr: &str) -> Error {
        let output = Output {
            status: ExitStatus::from_raw(256),
            stdout: Vec::new(),
            stderr: stderr.as_bytes().to_vec(),
        };
        classify(script, &output)
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
                Error::NftFeature {
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

    #[test]
    fn a_listing_that_is_no_listing_is_an_error() {
        for json in ["", "{}", "[]", "{\"nftables\": 1}", "nft"] {
            assert!(Listing::parse(json).is_err(), "{json}");
        }
    }

    #[test]
    fn the_fingerprint_ignores_what_changes_by_itself() {
        let listing = |handle: u32, packets: u32, gate: &str, element: &str| {
            Listing::parse(&format!(
                r#"{{"nftables": [{{"metainfo": {{"version": "1"}}}},
                {{"counter": {{"name": "captured", "handle": {handle}, "packets": {packets}, "bytes": 1}}}},
                {{"set": {{"name": "gate", "handle": {handle} {gate}}}}},
                {{"set": {{"name": "all4", "elem": ["{element}"]}}}}]}}"#
            ))
            .unwrap()
        };
        let open = r#", "elem": [{"elem": {"val": "tcp", "timeout": 2, "expires": 0}}]"#;
        let before = listing(1, 2, "", "10.0.0.1");
        let after = listing(3, 4, open, "10.0.0.1");
        assert_eq!(before.fingerprint(), after.fingerprint());
        let changed = listing(1, 2, "", "10.0.0.2");
        assert_ne!(before.fingerprint(), changed.fingerprint());

        let carried = after.carried();
        assert_eq!(carried.counters["captured"], (4, 1));
        assert_eq!(carried.elements["gate"], ["tcp timeout 2s"]);

        let detour = Listing::parse(
            r#"{"nftables": [{"set": {"name": "detour4", "elem": [{"elem":
            {"val": {"concat": ["10.1.0.2", "10.2.0.2"]}, "timeout": 9, "expires": 7}}]}}]}"#,
        );
        let carried = detour.unwrap().carried();
        assert_eq!(
            carried.elements["detour4"],
            ["10.1.0.2 . 10.2.0.2 timeout 7s"]
        );
    }
}
