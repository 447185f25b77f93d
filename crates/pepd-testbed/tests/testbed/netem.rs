//! The emulated link against the kernel's `netem`, and virtual time against a busy machine.
//!
//! Each test boots a guest with a clock of its own and runs another test of this binary in it,
//! one of those in [`guest`], which nothing else runs. That takes a minute or two each; the
//! whole comparison is the example `against_netem`.

#[path = "../../examples/against_netem/compare/mod.rs"]
mod compare;

use std::env;
use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use compare::path::Emulator;
use compare::table::{Case, losses};
use pepd_testbed::link::Seed;
use pepd_testbed::vm::{Clock, Ended, Error, Guest, Kernel, KernelPackage, Mebibytes};
use pepd_testbed::{Process, Requirement, missing, report_skip};
use tempfile::TempDir;

/// What a guest says before its figure, in bits per second.
const FIGURE: &str = "goodput: ";
/// What the guests run.
const PROGRAMS: [&str; 4] = ["ethtool", "ip", "sh", "tc"];
/// No guest here takes this long, unless something is wrong.
const LIMIT: Duration = Duration::from_secs(3600);

#[test]
fn the_link_carries_what_netem_carries() {
    let Some(kernel) = kernel() else { return };
    println!("{}", in_guest(&kernel, "netem::guest::flows_agree"));
}

#[test]
fn the_link_loses_as_it_should() {
    let Some(kernel) = kernel() else { return };
    println!("{}", in_guest(&kernel, "netem::guest::losses_agree"));
}

#[test]
fn a_busy_machine_changes_no_figure_in_virtual_time() {
    let Some(kernel) = kernel() else { return };
    let idle = figure(&in_guest(&kernel, "netem::guest::one_flow"));
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let load: Vec<_> = (0..processors).map(|_| busy_loop()).collect();
    let busy = figure(&in_guest(&kernel, "netem::guest::one_flow"));
    drop(load);
    println!("{idle} bit/s; beside busy loops {busy} bit/s");
    assert!((busy / idle - 1.0).abs() <= 0.03, "{idle} and {busy} bit/s");
}

/// What runs in the guests.
mod guest {
    use super::*;

    #[test]
    #[ignore = "run in a guest, by the_link_carries_what_netem_carries"]
    fn flows_agree() {
        // Where chance has little to say, so that a minute is enough.
        for case in [
            Case::new(10, 20, 0.0, "cubic"),
            Case::new(10, 20, 0.02, "bbr"),
        ] {
            let row = case.brief().compare().unwrap();
            println!("{row}");
            assert!(row.passes(), "{row}");
        }
    }

    #[test]
    #[ignore = "run in a guest, by the_link_loses_as_it_should"]
    fn losses_agree() {
        for line in losses(&[("link", Emulator::Link(Seed(1)))]).unwrap() {
            println!("{line}");
            assert!(line.passes(), "{line}");
        }
    }

    #[test]
    #[ignore = "run in a guest, by a_busy_machine_changes_no_figure_in_virtual_time"]
    fn one_flow() {
        let case = Case::new(10, 200, 0.0, "cubic");
        let figures = case.brief().measure(Emulator::Link(Seed(1))).unwrap();
        assert!(!figures.late, "the link fell behind");
        println!("{FIGURE}{}", figures.goodput);
    }
}

/// Returns the kernel, or `None` where no guest can run.
fn kernel() -> Option<Kernel> {
    if env::var_os("PEPD_GUEST").is_some() {
        println!("not run: this is a guest already");
        return None;
    }
    for program in PROGRAMS {
        if let Some(why) = missing(Requirement::Program(program)) {
            report_skip("netem", &why);
            return None;
        }
    }
    match Kernel::prepare(&KernelPackage::default(), &mut |text| println!("{text}")) {
        Ok(kernel) => Some(kernel),
        Err(error @ (Error::Missing(_) | Error::Architecture(_))) => {
            report_skip("guest kernel", &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs one test of this binary in a guest, and returns what it printed.
fn in_guest(kernel: &Kernel, test: &str) -> String {
    // One at a time: three guests would take three processors for minutes.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let itself = env::current_exe().unwrap();
    let mut guest = Guest::new(Path::new(env!("CARGO_MANIFEST_DIR")))
        .clock(Clock::Virtual)
        .memory(Mebibytes::new(2048).unwrap())
        .timeout(LIMIT)
        .visible(itself.parent().unwrap());
    guest = guest.copy(itself.as_os_str());
    for program in PROGRAMS {
        guest = guest.copy(OsStr::new(program));
    }
    let flags = ["--ignored", "--exact", "--nocapture"].map(Into::into);
    let command = [&[itself.into(), test.into()], flags.as_slice()].concat();
    let results = TempDir::new().unwrap();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let run = guest
        .run(kernel, &command, results.path(), &mut stdout, &mut stderr)
        .unwrap();
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    let stderr = String::from_utf8_lossy(&stderr);
    assert_eq!(run.ended, Ended::Exited(0), "{stdout}{stderr}");
    assert!(stdout.contains("1 passed"), "no such test: {stdout}");
    stdout
}

fn figure(output: &str) -> f64 {
    let line = output.lines().find_map(|line| line.split_once(FIGURE));
    line.unwrap().1.trim().parse().unwrap()
}

/// Returns a processor's worth of load, until it is dropped.
fn busy_loop() -> Process {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "while :; do :; done"])
        .stderr(Stdio::null());
    Process::spawn(&mut shell).unwrap()
}
