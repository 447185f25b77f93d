//! `cargo xtask test` installs what the tests need and runs them, then those again in the guest
//! kernel that depend on the kernel most, and those that judge times on the guest's virtual clock.
//! At the end it names what was skipped. With `--long` it runs more of each.

mod chosen;
mod rerun_failed;
mod test_output;

use std::env;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};

use pepd_testbed::{Requirement, missing};

use crate::directories::target_directory;
use crate::{packages, vm};
use chosen::{
    IN_GUEST, IN_GUEST_LONG, IN_VIRTUAL_TIME, IN_VIRTUAL_TIME_LONG, NOT_HERE, NOT_IN_GUEST,
    TESTBEDS_LONG,
};
use rerun_failed::rerun_failed;
use test_output::TestOutput;

/// Run every test, installing first what is missing (as root, on Debian).
#[derive(clap::Args)]
pub struct Args {
    /// Not in the guest kernel
    #[arg(long)]
    no_guest: bool,

    /// Those as well that take hours together: what differs least, and what emulates most
    #[arg(long)]
    long: bool,

    /// What follows is for `cargo test`
    #[arg(last = true, value_name = "ARGUMENT")]
    rest: Vec<String>,
}

/// The options of a guest with a virtual clock. Its path is short, since each directory that is
/// searched for a program costs a request to the host.
const VIRTUAL_TIME: &[&str] = &[
    "--virtual-time",
    "--env",
    "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
];

/// The programs that these tests run beside pepd.
const PROGRAMS: &[&str] = &["curl", "ip", "ip6tables-nft", "iptables-nft", "nft", "sh"];

/// Every crate but the model checker, whose library consists of files of the relay's. With it cargo
/// would choose other features of what they depend on, and build everything again.
const WORKSPACE: &[&str] = &["--workspace", "--exclude", "pepd-loom"];

/// The unit tests of every crate, the tests of the daemon and the fuzzer's.
const PEPDS: &[&str] = &["--lib", "--bins", "--test", "it", "--test", "fuzz"];

/// The model checker's.
const LOOM: &[&str] = &["--package", "pepd-loom", "--test", "loom"];

/// The tests of `pepd-lab`, which measure: no more at a time than there are processors.
const LABS: &[&str] = &["--test", "lab"];

/// The examples in the documentation.
const DOCUMENTATION: &[&str] = &["--doc"];

/// The tests of the testbed.
const TESTBEDS: &[&str] = &["--test", "testbed"];

/// The variable that names the daemon to `pepd-lab`, which otherwise builds one: with features of the
/// dependencies that only a build of that package alone has.
const LABS_DAEMON: &str = "PEPD_LAB_PEPD";

/// The variable that tells a test binary how many tests to run at a time.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// The exit statuses of `cargo xtask vm` on a machine that cannot run a guest.
const NO_GUEST: [i32; 2] = [69, 77];

/// Installs what the tests need and runs them, here and in the guest.
pub fn run(args: &Args) -> Result<()> {
    let needs = [packages::NETWORK, packages::TESTS, packages::BPF].concat();
    for provided in [packages::provide(&needs), vm::provide()] {
        if let Err(error) = provided {
            // The tests that need nothing of it still run; the others say that they were skipped.
            eprintln!("warning: {error:#}");
        }
    }
    let mut run = Run::default();
    if !args.rest.is_empty() {
        let rest: Vec<_> = args.rest.iter().map(String::as_str).collect();
        run.add(run_here(&[WORKSPACE, &rest].concat(), &[], &[])?);
        run.report();
        return Ok(());
    }
    let here = |which: &[&str], skip, variable: (&str, OsString)| {
        run_here(&[WORKSPACE, which].concat(), skip, &[variable])
    };
    let skip = |skip: &'static [&'static str]| if args.long { &[] } else { skip };
    let threads = || (TEST_THREADS, test_threads().to_string().into());
    run.add(here(PEPDS, skip(NOT_HERE), threads())?);
    run.add(run_here(LOOM, &[], &[])?);
    let daemon = target_directory()?.join("debug/pepd").into();
    run.add(here(LABS, &[], (LABS_DAEMON, daemon))?);
    run.add(here(DOCUMENTATION, &[], threads())?);
    run.add(run_beside_guests(args, skip(TESTBEDS_LONG))?);
    run.report();
    if !args.long {
        println!("Left to `cargo xtask test --long`:");
        for filter in [NOT_HERE, TESTBEDS_LONG].concat() {
            println!("  {filter}");
        }
        for filter in [IN_GUEST_LONG, IN_VIRTUAL_TIME_LONG].concat() {
            println!("  in a guest: {filter}");
        }
    }
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

/// Runs tests on this kernel; `which` is for `cargo test`, and what has one of `skip` in its name is
/// not run. The `variables` are set where they are not.
fn run_here(which: &[&str], skip: &[&str], variables: &[(&str, OsString)]) -> Result<Run> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let cargo_test = || {
        let mut command = Command::new(&cargo);
        command.args(["test", "--locked", "--no-fail-fast"]);
        let unset = |(name, _): &&(&str, OsString)| env::var_os(name).is_none();
        for (name, value) in variables.iter().filter(unset) {
            command.env(name, value);
        }
        // Of the same targets each time: for fewer, cargo would choose other features of what they
        // depend on, and build it again.
        command.args(which);
        if !which.contains(&"--") {
            command.arg("--");
        }
        command
    };
    let skip = skip.iter().flat_map(|filter| ["--skip", filter]);
    let (status, output) = TestOutput::of(cargo_test().args(skip))?;
    let mut run = Run {
        skipped: output.skipped,
        ..Run::default()
    };
    if !status.success() {
        let one = |name: &str| {
            let (status, output) = TestOutput::of(cargo_test().args(["--exact", name]))?;
            Ok(status.success() && output.passed.contains(name))
        };
        rerun_failed(&output.failed, one).with_context(|| format!("`cargo test`: {status}"))?;
        run.unsteady.extend(output.failed);
    }
    Ok(run)
}

/// Runs what waits for no event of this machine at the same time, in the guests, if there are to be
/// any, and here: the tests of the guest kernel, those of its virtual clock, which has one processor
/// and does not follow the machine's time, and the testbed's, which boot such guests of their own.
fn run_beside_guests(args: &Args, skip: &[&str]) -> Result<Run> {
    let there = |program: &&&'static str| missing(Requirement::Program(program)).is_none();
    let programs = PROGRAMS.iter().filter(there);
    let copies = programs.flat_map(|program| ["--copy", program]);
    let options: Vec<_> = VIRTUAL_TIME.iter().copied().chain(copies).collect();
    let not = NOT_IN_GUEST.iter().flat_map(|filter| ["--skip", filter]);
    let skipping: Vec<_> = not.collect();
    let more = |more: &'static [&'static str]| if args.long { more } else { &[] };
    let in_guest = [IN_GUEST, more(IN_GUEST_LONG)].concat();
    let in_virtual_time = [IN_VIRTUAL_TIME, more(IN_VIRTUAL_TIME_LONG)].concat();
    thread::scope(|scope| {
        let mut beside = Vec::new();
        if !args.no_guest {
            beside.push(scope.spawn(|| run_in_guest(&skipping, &in_guest)));
            beside.push(scope.spawn(|| run_in_guest(&options, &in_virtual_time)));
        }
        let mut run = run_here(&[WORKSPACE, TESTBEDS].concat(), skip, &[])?;
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

/// Three times as many tests at a time as there are processors: most of what they do is wait.
fn test_threads() -> usize {
    3 * thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

fn count(tests: usize) -> String {
    if tests == 1 {
        "1 test was".to_owned()
    } else {
        format!("{tests} tests were")
    }
}
