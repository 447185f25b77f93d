//! `--tests` builds the integration tests here, where that is fast, and runs them in the guest.

use std::env;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::results::Results;
use super::{Args, Failure, TESTS_FAILED, WRONG_USAGE, boot, guest, prepare, say};
use crate::directories::{source_directory, target_directory};

/// The tests that change the kernel for everything that runs on it. Each has it for itself.
const OWN_KERNEL: &str = "tunnels::missing_modules::";

/// One line of cargo's `--message-format=json`, as far as it matters here.
#[derive(Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    executable: Option<PathBuf>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// A test binary with the tests chosen from it.
struct Binary {
    target: String,
    /// The package's directory, where cargo runs its tests.
    directory: PathBuf,
    executable: PathBuf,
    chosen: Vec<String>,
    /// Whether all of its tests are chosen, so that they need not be named.
    all: bool,
}

pub fn run(args: &Args, filters: &[String]) -> Result<u8> {
    let binaries = choose(build()?, filters, &args.skip)?;

    let mut guest = guest(args)?;
    if args.virtual_time {
        let pepd = target_directory()?.join("debug/pepd");
        let executables = binaries.iter().map(|binary| &binary.executable);
        for path in executables.chain(Some(&pepd).filter(|path| path.exists())) {
            guest = guest.copy(path.as_os_str());
        }
    }
    let kernel = prepare(&args.kernel)?;
    let results = Results::new(args.results.as_deref(), &target_directory()?)?;
    say(format_args!("running {}", counted(&binaries)));
    let command = [
        "/bin/sh".into(),
        "-c".into(),
        guest_script(&binaries).into(),
    ];
    boot(&guest, &kernel, &command, &results)
}

/// Builds all integration tests of the workspace.
fn build() -> Result<Vec<Binary>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        // Without the model checker, as in `cargo xtask test`, which need not build all again.
        .args(["test", "--workspace", "--exclude", "pepd-loom"])
        .args(["--tests", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(source_directory()?)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        let message = "the tests do not build".to_owned();
        return Err(Failure {
            status: TESTS_FAILED,
            message,
        }
        .into());
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let binaries = messages.lines().filter_map(|line| {
        let message: Message = serde_json::from_str(line).ok()?;
        let target = message.target?;
        // `lib` and `bin` are the unit tests, which need no other kernel.
        if target.kind != ["test"] {
            return None;
        }
        Some(Binary {
            target: target.name,
            directory: message.manifest_path?.parent()?.to_owned(),
            executable: message.executable?,
            chosen: Vec::new(),
            all: true,
        })
    });
    let mut binaries: Vec<_> = binaries.collect();
    // Cargo names them as they are built, in another order each time.
    binaries.sort_by(|a, b| a.target.cmp(&b.target));
    Ok(binaries)
}

/// Keeps the tests whose `target::name` contains one of `filters` and none of `skip`, and the binaries
/// with any. What has spaces is several parts, all of which must be contained. A filter that no test
/// has is an error: its test may have another name by now.
fn choose(binaries: Vec<Binary>, filters: &[String], skip: &[String]) -> Result<Vec<Binary>> {
    let has = |name: &str, filter: &String| filter.split(' ').all(|part| name.contains(part));
    let mut names = Vec::new();
    let mut chosen = Vec::new();
    for mut binary in binaries {
        let tests = list(&binary)?;
        let count = tests.len();
        for test in tests {
            let name = format!("{}::{test}", binary.target);
            let has_one_of = |filters: &[String]| filters.iter().any(|filter| has(&name, filter));
            if has_one_of(filters) && !has_one_of(skip) {
                binary.chosen.push(test);
            }
            names.push(name);
        }
        binary.all = binary.chosen.len() == count;
        if !binary.chosen.is_empty() {
            chosen.push(binary);
        }
    }
    let is_unused = |filter: &&String| !names.iter().any(|name| has(name, filter));
    let unused = filters.iter().chain(skip).find(is_unused);
    let message = match unused {
        Some(filter) => format!("no integration test has `{filter}` in its `target::test`"),
        None if chosen.is_empty() => "every test is left out".to_owned(),
        None => return Ok(chosen),
    };
    Err(Failure {
        status: WRONG_USAGE,
        message,
    }
    .into())
}

/// Lists the tests of a binary.
fn list(binary: &Binary) -> Result<Vec<String>> {
    let output = Command::new(&binary.executable)
        .args(["--list", "--format", "terse"])
        .current_dir(&binary.directory)
        .output()
        .with_context(|| format!("cannot run {}", binary.executable.display()))?;
    let list = String::from_utf8_lossy(&output.stdout);
    let tests = list.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(tests.map(str::to_owned).collect())
}

/// Writes the script that runs one binary after the other, whatever the ones before did, and says
/// how it went.
fn guest_script(binaries: &[Binary]) -> String {
    let mut script = String::from("failed=\n");
    for binary in binaries {
        let target = &binary.target;
        let directory = quoted(&binary.directory.to_string_lossy());
        // Writing to a String does not fail.
        let _ = writeln!(script, "echo 'vm: {target}' >&2");
        for command in commands(binary) {
            let _ = writeln!(
                script,
                "(cd {directory} && {command}) || failed=\"$failed {target}\""
            );
        }
    }
    let count = counted(binaries);
    let _ = writeln!(
        script,
        "if [ -n \"$failed\" ]; then\n\
             echo \"vm: {count}, failed:$failed\" >&2\n\
             exit {TESTS_FAILED}\n\
         fi\n\
         echo 'vm: {count}, all passed' >&2"
    );
    script
}

/// Lists the command lines that run what was chosen from a binary: everything at once, and after
/// that, one by one, what needs the kernel for itself.
fn commands(binary: &Binary) -> Vec<String> {
    let executable = quoted(&binary.executable.to_string_lossy());
    let exactly = |tests: &[&String]| {
        let names = tests.iter().map(|test| quoted(test));
        format!(
            "{executable} --exact {}",
            names.collect::<Vec<_>>().join(" ")
        )
    };
    let (alone, together): (Vec<_>, Vec<_>) = binary
        .chosen
        .iter()
        .partition(|test| test.starts_with(OWN_KERNEL));
    let mut commands = Vec::new();
    if binary.all {
        commands.push(format!("{executable} --skip {OWN_KERNEL}"));
    } else if !together.is_empty() {
        commands.push(exactly(&together));
    }
    let by_itself = |test| format!("PEPD_OWN_KERNEL=1 {}", exactly(&[test]));
    commands.extend(alone.into_iter().map(by_itself));
    commands
}

/// Counts tests and binaries, as `7 tests in 2 binaries`.
fn counted(binaries: &[Binary]) -> String {
    let plural = |count, one, many| format!("{count} {}", if count == 1 { one } else { many });
    let tests: usize = binaries.iter().map(|binary| binary.chosen.len()).sum();
    let tests = plural(tests, "test", "tests");
    format!(
        "{tests} in {}",
        plural(binaries.len(), "binary", "binaries")
    )
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
