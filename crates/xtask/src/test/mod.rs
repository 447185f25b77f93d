//! `cargo xtask test` installs what the tests need and runs them all, then those again in the guest
//! kernel that depend on the kernel most, and those that judge times on the guest's virtual clock.
//! At the end it names what was skipped.

mod rerun_failed;
mod test_output;

use std::env;
use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};

use pepd_testbed::{Requirement, missing};

use crate::directories::target_directory;
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

/// The tests that run in the guest kernel, too: of each thing that its nft, TPROXY, `queue` and TCP
/// might do differently one, and those that need tunnels, which other kernels may lack. Each filter
/// is part of a `target::test`, or several parts. An emulated machine takes some ten seconds for a
/// test: `cargo xtask vm --tests` runs everything there, which takes hours.
const IN_GUEST: &[&str] = &[
    "capture::asymmetric::answers",
    "capture::firewall::a_client_port",
    "capture::firewall::the_rules_in_forward",
    "capture::firewall::what_is_dropped case_2",
    "capture::nat::what_is",
    "capture::transparency::a_client_port",
    "capture::transparency::nginx",
    "capture::transparency::the_listener",
    "handshake::connections::a_port",
    "handshake::connections::data fast_open_1_true",
    "handshake::connections::nobody many_at_once",
    "handshake::connections::the_servers_syn",
    "handshake::errors::a_client",
    "handshake::errors::a_reset_right",
    "handshake::gate::a_destination Killed",
    "handshake::gate::what_repeats Closed__Full",
    "handshake::held::a_held_syn Event__Kill",
    "handshake::held::a_held_syn Event__Reload:",
    "handshake::routed::what_repeats_a_routed",
    "kernel::gate::it_opens",
    "kernel::hold::it_is_installed",
    "kernel::hold::the_plan",
    "kernel::hold::where_nft",
    "lifecycle::systemd::",
    "limits::shortage::",
    "relay::fixed_rate::with::a_transfer false",
    "relay::fixed_rate::with::killed true",
    "relay::late:: Via__Pepd Family__V4 By__Server",
    "survival::deaths::whatever killed",
    "survival::deaths::memory",
    "survival::deaths::without_its_keeper",
    "survival::half_way:: Family__V4",
    "survival::upgrade::connections",
    "tunnels::",
];

/// What of these tests is left to everybody's own kernel: how it routes without pepd, and of two
/// address families, or two ways to shake hands, the one whose rules are the other's. Of a tunnel's
/// two families those stay that differ from each other.
const NOT_IN_GUEST: &[&str] = &[
    "Via__Routing",
    "capture::asymmetric:: Family__V6",
    "capture::firewall:: Family__V6",
    "capture::firewall:: Via__Early",
    "capture::nat:: Family__V4",
    "capture::nat:: Via__Early",
    "capture::transparency:: Family__V6",
    "handshake:: Family__V6",
    "limits:: Family__V6",
    "tunnels:: outer_1_Family__V4::inner_1_Family__V4",
    "tunnels:: outer_2_Family__V6::inner_2_Family__V6",
    "tunnels::chain::a_killed_daemon Family__V6",
    "tunnels::chain::curl_both_ways ipv4_over_ipv4",
    "tunnels::chain::curl_both_ways ipv6_over_ipv6",
    "tunnels::fleet::a_peer_falls",
    "tunnels::guard::a_forged_peer Family__V6",
    "tunnels::mss::a_tunnel inner_1_Family__V4",
    "tunnels::mss::an_mss inner_2_Family__V6",
    "tunnels::path::a_narrow_hop_behind inner_2_Family__V6",
    "tunnels::path::what_may Family__V6",
    "tunnels::routing:: ipv4",
];

/// The tests that judge times: they run on the guest's virtual clock only, where a busy machine
/// changes nothing.
const IN_VIRTUAL_TIME: &[&str] = &[
    "handshake::times::a_client Family__V6",
    "handshake::times::curl_fails_over how_1_0 first_1_Family__V4::second_2_Family__V6",
    "handshake::times::many Family__V4",
    "handshake::times::the_first_byte Family__V6",
    "relay::advised::more_is_carried case_1",
    "relay::find_rate::it_finds case_2",
    "relay::find_rate::little case_1",
    "relay::find_rate::what_was_found",
    "relay::interactive:: Family__V6",
    "relay::phases::each_legs",
    "relay::phases::the_slow_leg Flow__Download",
    "relay::phases::the_slow_leg Flow__Upload Slow__Incoming",
    "weather::held_acks:: Family__V6 seconds_2_10",
    "weather::outage_lengths:: Gone__Both seconds_3_1800",
    "weather::outage_times::a_link case_2",
    "weather::outage_times::a_link case_3",
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

/// The unit tests of every crate, the tests of the daemon and the fuzzer's. The model checker's
/// library consists of files of the relay's, whose unit tests are run there.
const PEPDS: &[&str] = &[
    "--lib",
    "--bins",
    "--test",
    "it",
    "--test",
    "fuzz",
    "--exclude",
    "pepd-loom",
];

/// The model checker's.
const LOOM: &[&str] = &["--test", "loom"];

/// The tests of `pepd-lab`, which measure: no more at a time than there are processors.
const LABS: &[&str] = &["--test", "lab"];

/// The examples in the documentation.
const DOCUMENTATION: &[&str] = &["--doc"];

/// The test of the testbed that keeps every processor busy, which would make what runs beside it take
/// three times as long.
const BUSY: &[&str] = &["--test", "testbed", "--", "netem::a_busy_machine"];

/// The other tests of the testbed.
const TESTBEDS: &[&str] = &["--test", "testbed", "--", "--skip", "netem::a_busy_machine"];

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
    if args.rest.is_empty() {
        let threads = test_threads().to_string().into();
        run.add(run_here(PEPDS, &[(TEST_THREADS, threads)])?);
        run.add(run_here(LOOM, &[])?);
        let daemon = target_directory()?.join("debug/pepd").into();
        run.add(run_here(LABS, &[(LABS_DAEMON, daemon)])?);
        run.add(run_here(DOCUMENTATION, &[])?);
        run.add(run_here(BUSY, &[])?);
    } else {
        run.add(run_here(&args.rest, &[])?);
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

/// Runs tests of the workspace on this kernel; `which` is for `cargo test`. The `variables` are set
/// where they are not.
fn run_here<S: AsRef<OsStr>>(which: &[S], variables: &[(&str, OsString)]) -> Result<Run> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let cargo_test = || {
        let mut command = Command::new(&cargo);
        command.args(["test", "--workspace", "--locked", "--no-fail-fast"]);
        let unset = |(name, _): &&(&str, OsString)| env::var_os(name).is_none();
        for (name, value) in variables.iter().filter(unset) {
            command.env(name, value);
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
            let mut command = cargo_test();
            // Of the same targets: for fewer, cargo would choose other features of what they depend
            // on, and build it again.
            command.args(which);
            if which.iter().all(|word| word.as_ref() != "--") {
                command.arg("--");
            }
            let (status, output) = TestOutput::of(command.args(["--exact", name]))?;
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
        let mut run = run_here(TESTBEDS, &[])?;
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
