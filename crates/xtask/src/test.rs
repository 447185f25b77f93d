//! `cargo xtask test`: all tests, with everything they need installed, and what was skipped;
//! then those again that meet the kernel most, in the guest kernel, and those that judge times
//! on its virtual clock.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use pepd_testbed::{Requirement, missing};

use crate::packages;

/// Run every test, installing first what is missing (as root, on Debian).
#[derive(clap::Args)]
pub struct Args {
    /// Not in the guest kernel
    #[arg(long)]
    no_guest: bool,

    /// What follows is for `cargo test`
    #[arg(last = true, value_name = "ARGUMENT")]
    rest: Vec<String>,
}

/// What runs in the guest kernel: what its nft, TPROXY, `queue` and TCP might do otherwise, and
/// what needs tunnels, which other kernels may lack.
/// (`cargo xtask vm --tests` runs everything there, which takes long.)
const IN_GUEST: &[&str] = &[
    "transparency::",
    "endings::",
    "resets::",
    "dscp::",
    "shortage::",
    "hold::",
    "gate::",
    "handshake::",
    "chain",
    "fleet::",
    "nat::",
    "asymmetric::",
    "fixed_rate::with::a_",
    "fixed_rate::with::killed",
];

/// What judges times: it runs on the guest's virtual clock only, where a busy machine changes
/// nothing.
const IN_VIRTUAL_TIME: &[&str] = &["phases::", "interactive::", "handshake_times::"];

/// A path with nothing to look through before the programs are found: each look asks the host.
const VIRTUAL_TIME: &[&str] = &[
    "--virtual-time",
    "--env",
    "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
];

/// The programs that these tests run, and pepd.
const PROGRAMS: &[&str] = &["curl", "ip", "ip6tables-nft", "iptables-nft", "nft", "sh"];

/// The statuses of `cargo xtask vm` on a machine that cannot run a guest.
const NO_GUEST: [i32; 2] = [69, 77];

/// What a skipped test begins its line with (`pepd_testbed::report_skip`).
const SKIPPED: &str = "SKIPPED ";

/// Runs them.
pub fn run(args: &Args) -> Result<()> {
    let needs = [packages::NETWORK, packages::TESTS, packages::FIXED_RATE].concat();
    if let Err(error) = packages::provide(&needs) {
        // The tests that need nothing of it still run; the others say that they were skipped.
        eprintln!("warning: {error:#}");
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut tests = Command::new(cargo)
        .args(["test", "--workspace", "--locked", "--no-fail-fast"])
        .args(packages::features())
        .args(&args.rest)
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;
    let stderr = tests.stderr.take().context("cargo has no standard error")?;
    let mut skipped = pass_on(BufReader::new(stderr), std::io::stderr())?;
    let status = tests.wait()?;
    ensure!(status.success(), "`cargo test`: {status}");
    if packages::features().is_empty() {
        ensure!(
            env::var_os("CI").is_none_or(|ci| ci != "true"),
            "with CI=true pepd must be tested with the feature fixed-rate"
        );
        skipped.push("the feature fixed-rate: clang, libelf-dev or zlib1g-dev is missing".into());
    }
    if !args.no_guest && args.rest.is_empty() {
        skipped.extend(run_in_guest(&[], IN_GUEST)?);
        let there = |program: &&&'static str| missing(Requirement::Program(program)).is_none();
        let programs = PROGRAMS.iter().filter(there);
        let copies = programs.flat_map(|program| ["--copy", program]);
        let options: Vec<_> = VIRTUAL_TIME.iter().copied().chain(copies).collect();
        skipped.extend(run_in_guest(&options, IN_VIRTUAL_TIME)?);
    }
    if skipped.is_empty() {
        println!("No test was skipped.");
    } else {
        println!("{} skipped:", count(skipped.len()));
        for line in &skipped {
            println!("  {line}");
        }
    }
    Ok(())
}

/// Runs the tests that `filters` name in the guest kernel; gives why not, where this machine
/// cannot run a guest.
fn run_in_guest(options: &[&str], filters: &[&str]) -> Result<Option<String>> {
    let options_and_filters = [options, &["--tests"], filters].concat();
    println!("In the guest kernel: {}", options_and_filters.join(" "));
    let xtask = env::current_exe().context("where is this program?")?;
    let status = Command::new(xtask)
        .arg("vm")
        .args(options_and_filters)
        .status()
        .context("cannot run `cargo xtask vm`")?;
    if status.code().is_some_and(|code| NO_GUEST.contains(&code)) {
        ensure!(
            env::var_os("CI").is_none_or(|ci| ci != "true"),
            "with CI=true the tests in the guest kernel must not be skipped"
        );
        let filters = filters.join(" ");
        return Ok(Some(format!("in the guest kernel, see above: {filters}")));
    }
    ensure!(status.success(), "`cargo xtask vm --tests`: {status}");
    Ok(None)
}

/// Passes lines on, and returns those about skipped tests.
fn pass_on(lines: impl BufRead, mut to: impl Write) -> Result<Vec<String>> {
    let mut skipped = Vec::new();
    for line in lines.split(b'\n') {
        let mut line = line?;
        line.push(b'\n');
        to.write_all(&line)?;
        let line = String::from_utf8_lossy(&line);
        // A test's line may begin where another's output has not ended.
        if let Some(at) = line.find(SKIPPED) {
            skipped.push(line[at + SKIPPED.len()..].trim_end().to_owned());
        }
    }
    Ok(skipped)
}

fn count(tests: usize) -> String {
    if tests == 1 {
        "1 test was".to_owned()
    } else {
        format!("{tests} tests were")
    }
}

#[cfg(test)]
mod tests {
    use super::pass_on;

    #[test]
    fn skips_are_found_among_other_lines() {
        let lines = b"warning: x\nSKIPPED a::b (f.rs:1): not root\ntest ... SKIPPED c: why\n";
        let mut passed_on = Vec::new();
        let skipped = pass_on(lines.as_slice(), &mut passed_on).unwrap();
        assert_eq!(passed_on, lines);
        assert_eq!(skipped, ["a::b (f.rs:1): not root", "c: why"]);
    }
}
