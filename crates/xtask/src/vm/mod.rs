//! `cargo xtask vm`: a command, or the tests, in a guest kernel.

mod results;
mod tests;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::num::NonZeroU8;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::unistd::geteuid;
use pepd_testbed::vm::{self, Clock, Ended, Guest, Kernel, KernelPackage, Mebibytes};

use crate::directories::{source_directory, target_directory};
use results::Results;

/// The status that timeout(1) gives when the time is up.
const TIMED_OUT: u8 = 124;
/// EX_SOFTWARE: the guest itself failed.
const DIED: u8 = 70;
/// EX_USAGE.
const WRONG_USAGE: u8 = 64;
/// The status that cargo gives when a test does not build or fails.
pub const TESTS_FAILED: u8 = 101;

/// What of the host's environment a command in the guest gets, beside `PEPD_*` and --env.
const PASSED_ON: [&str; 16] = [
    "CARGO_HOME",
    "CARGO_TARGET_DIR",
    "CARGO_TERM_COLOR",
    "CI",
    "HOME",
    "LANG",
    "LC_ALL",
    "NO_COLOR",
    "PATH",
    "RUSTFLAGS",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "TERM",
    "USER",
];

/// Run a command as root in a Debian kernel under QEMU, with this machine's files visible.
///
/// The guest sees `/` read-only with memory on top; only what is written to the folder that
/// PEPD_RESULTS names comes back. The command's output and status are passed on.
#[derive(clap::Args)]
pub struct Args {
    /// Run on a clock that counts instructions and skips idle time
    #[arg(long)]
    virtual_time: bool,

    /// Copy a file, a directory or a program with its libraries into the guest's memory first
    #[arg(long, value_name = "PATH")]
    copy: Vec<OsString>,

    /// Keep the results in this folder [default: a new one in target/vm, if there are any]
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,

    /// The guest's processors
    #[arg(long, default_value = "2", conflicts_with = "virtual_time")]
    cpus: NonZeroU8,

    /// The guest's memory, as 4G or 512M
    #[arg(long, default_value = "4G")]
    memory: Mebibytes,

    /// Stop the guest after this time of the host's
    #[arg(long, default_value = "1h", value_parser = humantime::parse_duration)]
    timeout: Duration,

    /// The Debian package with the kernel
    #[arg(long, value_name = "PACKAGE", default_value = "linux-image-amd64",
          value_parser = package)]
    kernel: KernelPackage,

    /// Set a variable for the command, or pass this machine's on
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = variable)]
    env: Vec<(String, OsString)>,

    /// Build the workspace's integration tests and run those whose `target::test` contains one
    /// of the FILTERs
    #[arg(long, value_name = "FILTER", num_args = 0.., default_missing_value = "")]
    tests: Option<Vec<String>>,

    /// Of these tests, leave out those whose `target::test` contains this; may be repeated
    #[arg(long, value_name = "FILTER", requires = "tests")]
    skip: Vec<String>,

    /// The command
    #[arg(
        last = true,
        value_name = "COMMAND",
        required_unless_present = "tests",
        conflicts_with = "tests"
    )]
    command: Vec<OsString>,
}

/// Runs `cargo xtask vm`, messages included. Ends with the command's status, or 69 or 77 if
/// this machine cannot run a guest, 70 if the guest died, 124 if it ran out of time.
pub fn run(args: &Args) -> ExitCode {
    let status = match &args.tests {
        Some(filters) => tests::run(args, filters),
        None => run_command(args, &args.command),
    };
    status.map_or_else(
        |error| {
            say(format_args!("{error:#}"));
            let unable = error.downcast_ref().map(vm::Error::exit_code);
            let failed = error.downcast_ref().map(|failure: &Failure| failure.status);
            ExitCode::from(unable.or(failed).unwrap_or(DIED))
        },
        ExitCode::from,
    )
}

/// An error that has an exit status of its own.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Failure {
    status: u8,
    message: String,
}

fn run_command(args: &Args, command: &[OsString]) -> Result<u8> {
    let mut guest = guest(args)?;
    if args.virtual_time {
        // Otherwise even the start of the command would read from the host.
        guest = guest.copy(OsStr::new("sh"));
        if let Some(program) = command.first() {
            guest = guest.copy(program);
        }
    }
    let kernel = prepare(&args.kernel)?;
    let results = Results::new(args.results.as_deref(), &target_directory()?)?;
    boot(&guest, &kernel, command, &results)
}

/// Boots and gives the status to end with.
fn boot(guest: &Guest, kernel: &Kernel, command: &[OsString], results: &Results) -> Result<u8> {
    let run = guest.run(
        kernel,
        command,
        results.path(),
        &mut io::stdout(),
        &mut io::stderr(),
    )?;
    if let Some(boot) = run.boot {
        say(format_args!(
            "the guest took {:.1} s to start",
            boot.as_secs_f64()
        ));
    }
    if let (true, Some(requests @ 1..)) = (guest.is_virtual(), run.host_requests) {
        say(format_args!(
            "the command waited for the host {requests} times, which virtual time counts as idle: \
             --copy what it reads"
        ));
    }
    Ok(match run.ended {
        Ended::Exited(status) => status,
        Ended::Died(console) => {
            say(format_args!("the guest ended before the command did"));
            show(&console);
            DIED
        }
        Ended::TimedOut(console) => {
            say(format_args!(
                "stopped the guest: its time is up (--timeout)"
            ));
            show(&console);
            TIMED_OUT
        }
    })
}

/// Returns the guest that `args` describe, with this machine's toolchain and build in sight.
fn guest(args: &Args) -> Result<Guest> {
    let clock = if args.virtual_time {
        Clock::Virtual
    } else {
        Clock::Host
    };
    let mut guest = Guest::new(&source_directory()?)
        .clock(clock)
        .processors(args.cpus)
        .memory(args.memory)
        .timeout(args.timeout)
        .visible(&target_directory()?)
        // There is no network to fetch anything from.
        .env("CARGO_NET_OFFLINE", "true");
    for name in ["CARGO_HOME", "RUSTUP_HOME", "HOME"] {
        if let Some(path) = env::var_os(name).filter(|path| Path::new(path).is_absolute()) {
            guest = guest.visible(Path::new(&path));
        }
    }
    for (name, value) in env::vars_os() {
        let ours = name.to_str().is_some_and(|name| {
            // A locale costs each program a dozen reads from the host.
            let unwanted = args.virtual_time && matches!(name, "LANG" | "LC_ALL");
            let wanted = PASSED_ON.contains(&name) || name.starts_with("PEPD_");
            wanted && !unwanted && is_variable(name)
        });
        if ours {
            guest = guest.env(name, value);
        }
    }
    for (name, value) in &args.env {
        guest = guest.env(name, value);
    }
    for path in &args.copy {
        guest = guest.copy(path);
    }
    Ok(guest)
}

/// Installs and fetches what a guest takes, if it is not there: tests boot guests, too.
pub fn provide() -> Result<()> {
    prepare(&KernelPackage::default()).map(drop)
}

/// Gets the kernel, and as root whatever it takes to get and run it.
fn prepare(package: &KernelPackage) -> Result<Kernel> {
    match vm::require_programs() {
        Err(vm::Error::Missing(missing))
            if geteuid().is_root() && !missing.packages().contains(&"apt") =>
        {
            install(missing.packages())?;
        }
        other => other?,
    }
    let mut report = |text: &str| say(format_args!("{text}"));
    match Kernel::prepare(package, &mut report) {
        // A fresh machine has no package index.
        Err(error) if geteuid().is_root() && lacks_package(&error) => {
            apt_get(&["update"])?;
            Ok(Kernel::prepare(package, &mut report)?)
        }
        other => Ok(other?),
    }
}

/// Returns true if a newer package index may help.
fn lacks_package(error: &vm::Error) -> bool {
    match error {
        vm::Error::UnknownPackage { .. } => true,
        vm::Error::Failed { program, .. } => program == "apt-get",
        _ => false,
    }
}

fn install(packages: &[&str]) -> Result<()> {
    let install = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    if apt_get(&install).is_err() {
        apt_get(&["update"])?;
        apt_get(&install)?;
    }
    // Says what is missing still.
    Ok(vm::require_programs()?)
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    say(format_args!("apt-get {}", arguments.join(" ")));
    let mut command = Command::new("apt-get");
    command
        .arg("--quiet=2")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive");
    // What it prints is about this machine, not the command's output.
    command.stdout(io::stderr());
    let status = command.status().context("cannot run apt-get")?;
    if status.success() {
        return Ok(());
    }
    Err(vm::Error::Failed {
        program: "apt-get".to_owned(),
        status,
        message: format!("see above; needed: apt-get {}", arguments.join(" ")),
    }
    .into())
}

fn package(name: &str) -> Result<KernelPackage, String> {
    KernelPackage::new(name).ok_or_else(|| "not a Debian package's name".to_owned())
}

fn variable(setting: &str) -> Result<(String, OsString), String> {
    let (name, value) = match setting.split_once('=') {
        Some((name, value)) => (name, OsString::from(value)),
        None => {
            let value = env::var_os(setting).ok_or("not set here; give it as NAME=VALUE");
            (setting, value?)
        }
    };
    if !is_variable(name) {
        return Err("the name may have letters, digits and underscores only".to_owned());
    }
    Ok((name.to_owned(), value))
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Prints the end of a guest's console.
fn show(console: &str) {
    for line in console.lines() {
        say(format_args!("console: {line}"));
    }
}

fn say(text: fmt::Arguments<'_>) {
    eprintln!("vm: {text}");
}
