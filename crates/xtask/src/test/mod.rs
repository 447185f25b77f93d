//! `cargo xtask test` installs what the tests need and runs them all, then those again in the guest
//! kernel that depend on the kernel most, and those that judge times on the guest's virtual clock.
//! At the end it names what was skipped.

mod rerun_failed;
mod test_output;

use std::env;
use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};

use pepd_testbed::{Requirement, missing};

use crate::{packages, vm};
use rerun_failed::rerun_failed;
use test_output::TestOutput;

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

/// The tests that run in the guest kernel, too: those of what its nft, TPROXY, `queue` and TCP
/// might do differently, and those that need tunnels, which other kernels may lack. Each is part of
/// a `target::test`. (`cargo xtask vm --tests` runs everything there, which takes hours.)
const IN_GUEST: &[&str] = &[
    "capture::",
    "handshake::connections::",
    "handshake::errors::",
    "handshake::gate::",
    "handshake::held::",
    "handshake::routed::",
    "relay::fixed_rate::with::a_",
    "relay::fixed_rate::with::killed",
    "limits::shortage::",
    "tunnels::",
    // Other subjects, too, have tests of a chain of boxes.
    "chain",
    "kernel::hold::",
    "kernel::gate::",
];

/// What of these tests has nothing to ask of another kernel: how it routes without pepd, and, for
/// one address family, what is the same for both.
const NOT_IN_GUEST: &[&str] = &[
    "Via__Routing",
    "capture::firewall::a_syn_whose_time_is_over",
    "capture::firewall::what_is_sent_elsewhere",
    "capture::nat::a_reset_is_a_reset",
    "capture::nat::a_client_port_is_used_again::via_1_Via__Pepd::family_1_Family__V4",
    "capture::nat::a_client_port_is_used_again::via_2_Via__Early::family_2_Family__V6",
];

/// The tests that judge times: they run on the guest's virtual clock only, where a busy machine
/// changes nothing.
const IN_VIRTUAL_TIME: &[&str] = &[
    "handshake::times::",
    "relay::interactive::",
    "relay::phases::",
];

/// The options of a guest with a virtual clock. Its path is short, since each directory that is
/// searched for a program costs a request to the host.
const VIRTUAL_TIME: &[&str] = &[
    "--virtual-time",
    "--env",
    "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
];

/// The programs that these tests run beside pepd.
const PROGRAMS: &[&str] = &["curl", "ip", "ip6tables-nft", "iptables-nft", "nft", "sh"];

/// The unit tests of every crate, and the tests of the daemon.
const PEPDS: &[&str] = &["--lib", "--bins", "--test", "it"];

/// The tests of `pepd-lab`, which measure: no more at a time than there are processors.
const LABS: &[&str] = &["--test", "lab"];

/// The examples in the documentation.
const DOCUMENTATION: &[&str] = &["--doc"];

/// The tests of the testbed.
const TESTBEDS: &[&str] = &["--test", "testbed"];

/// The variable that tells a test binary how many tests to run at a time.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// The exit statuses of `cargo xtask vm` on a machine that cannot run a guest.
const NO_GUEST: [i32; 2] = [69, 77];

/// Installs what the tests need and runs them, here and in the guest.
pub fn run(args: &Args) -> Result<()> {
    let needs = [packages::NETWORK, packages::TESTS, packages::FIXED_RATE].concat();
    for provided in [packages::provide(&needs), vm::provide()] {
        if let Err(error) = provided {
            // The tests that need nothing of it still run; the others say that they were skipped.
            eprintln!("warning: {error:#}");
        }
    }
    let mut run = Run::default();
    if args.rest.is_empty() {
        run.add(run_here(PEPDS, Some(test_threads()))?);
        run.add(run_here(LABS, None)?);
        run.add(run_here(DOCUMENTATION, None)?);
    } else {
        run.add(run_here(&args.rest, None)?);
    }
    if packages::features().is_empty() {
        ensure!(
            env::var_os("CI").is_none_or(|ci| ci != "true"),
            "with CI=true pepd must be tested with the feature fixed-rate"
        );
        let why =
            "the feature fixed-rate: clang, make, pkgconf, libelf-dev or zlib1g-dev is missing";
        run.skipped.push(why.into());
    }
    if args.rest.is_empty() {
        run.add(run_beside_guests(!args.no_guest)?);
    }
    run.report();
    Ok(())
}

/// What is to be output at the end of runs that did not fail.
#[derive(Default)]
struct Run {
    /// The tests that were skipped, each with its reason.
    skipped: Vec<String>,
    /// The tests that failed once and then passed each time by themselves.
    unsteady: Vec<String>,
}

impl Run {
    fn add(&mut self, other: Self) {
        self.skipped.extend(other.skipped);
        self.unsteady.extend(other.unsteady);
    }

    fn report(&self) {
        if self.skipped.is_empty() {
            println!("No test was skipped.");
        } else {
            println!("{} skipped:", count(self.skipped.len()));
        }
        for line in &self.skipped {
            println!("  {line}");
        }
        if !self.unsteady.is_empty() {
            println!(
                "{} UNSTEADY: failed once, passed by itself each time. That is a defect of the \
                 test or of pepd; its first output is above:",
                count(self.unsteady.len())
            );
        }
        for line in &self.unsteady {
            println!("  {line}");
        }
    }
}

/// Runs tests of the workspace on this kernel, `threads` at a time, or as many as the machine has
/// processors; `which` is for `cargo test`.
fn run_here<S: AsRef<OsStr>>(which: &[S], threads: Option<usize>) -> Result<Run> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let cargo_test = || {
        let mut command = Command::new(&cargo);
        command
            .args(["test", "--workspace", "--locked", "--no-fail-fast"])
            .args(packages::features());
        if let (Some(threads), None) = (threads, env::var_os(TEST_THREADS)) {
            command.env(TEST_THREADS, threads.to_string());
        }
        command
    };
    let (status, output) = TestOutput::of(cargo_test().args(which))?;
    let mut run = Run {
        skipped: output.skipped,
        ..Run::default()
    };
    if !status.success() {
        let one = |name: &str| {
            let mut ran = false;
            for target in &output.targets {
                let exactly = ["--", "--exact", name];
                let (status, output) = TestOutput::of(cargo_test().args(target).args(exactly))?;
                if !status.success() {
                    return Ok(false);
                }
                ran |= output.passed.contains(name);
            }
            Ok(ran)
        };
        rerun_failed(&output.failed, one).with_context(|| format!("`cargo test`: {status}"))?;
        run.unsteady.extend(output.failed);
    }
    Ok(run)
}

/// Runs what waits for no event of this machine at the same time, in the guests, if there are to be
/// any, and here: the tests of the guest kernel, those of its virtual clock, which has one processor
/// and does not follow the machine's time, and the testbed's, which boot such guests of their own.
fn run_beside_guests(guests: bool) -> Result<Run> {
    let there = |program: &&&'static str| missing(Requirement::Program(program)).is_none();
    let programs = PROGRAMS.iter().filter(there);
    let copies = programs.flat_map(|program| ["--copy", program]);
    let options: Vec<_> = VIRTUAL_TIME.iter().copied().chain(copies).collect();
    let skip = NOT_IN_GUEST.iter().flat_map(|filter| ["--skip", filter]);
    let skipping: Vec<_> = skip.collect();
    thread::scope(|scope| {
        let mut beside = Vec::new();
        if guests {
            beside.push(scope.spawn(|| run_in_guest(&skipping, IN_GUEST)));
            beside.push(scope.spawn(|| run_in_guest(&options, IN_VIRTUAL_TIME)));
        }
        let mut run = run_here(TESTBEDS, None)?;
        for other in beside {
            let other = other.join();
            run.add(other.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(run)
    })
}

/// Runs the tests that `filters` name in the guest kernel; says so where this machine cannot run
/// a guest.
fn run_in_guest(options: &[&str], filters: &[&str]) -> Result<Run> {
    let xtask = env::current_exe().context("where is this program?")?;
    let vm = |filters: &[&str]| {
        let mut command = Command::new(&xtask);
        command.arg("vm").args(options).arg("--tests").args(filters);
        command
    };
    println!("In the guest kernel: {}", filters.join(" "));
    let mut run = Run::default();
    let (status, output) = TestOutput::of(&mut vm(filters))?;
    if status.code().is_some_and(|code| NO_GUEST.contains(&code)) {
        ensure!(
            env::var_os("CI").is_none_or(|ci| ci != "true"),
            "with CI=true the tests in the guest kernel must not be skipped"
        );
        let filters = filters.join(" ");
        run.skipped
            .push(format!("in the guest kernel, see above: {filters}"));
    } else if !status.success() {
        let what = || format!("`cargo xtask vm --tests`: {status}");
        ensure!(status.code() == Some(vm::TESTS_FAILED.into()), what());
        let one = |name: &str| {
            let (status, output) = TestOutput::of(&mut vm(&[&format!("::{name}")]))?;
            Ok(status.success() && output.passed.contains(name))
        };
        rerun_failed(&output.failed, one).with_context(what)?;
        let there = |name| format!("in the guest kernel: {name}");
        run.unsteady.extend(output.failed.into_iter().map(there));
    }
    Ok(run)
}

/// Twice as many tests at a time as there are processors: most of what they do is wait.
fn test_threads() -> usize {
    2 * thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

fn count(tests: usize) -> String {
    if tests == 1 {
        "1 test was".to_owned()
    } else {
        format!("{tests} tests were")
    }
}
