//! `cargo xtask fuzz`: libFuzzer, guided by coverage, over what pepd reads from outside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::directories::{source_directory, target_directory};
use crate::packages::{self, Need};

/// Fuzz everything that pepd reads from outside: packets, netlink, nft's listings, the
/// configuration, requests to the API.
///
/// What is found is an input in target/fuzz/found/. Once it is mended, the input is kept in
/// crates/pepd-fuzz/corpus/, and the tests run it. Inputs that reach something new are in
/// target/fuzz/inputs/, for the next time.
#[derive(clap::Args)]
pub struct Args {
    /// For how long altogether
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = humantime::parse_duration)]
    time: Duration,
    /// Only this one of the folders in crates/pepd-fuzz/corpus/; may be repeated
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// What libFuzzer draws by
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u32,
}

/// libFuzzer is C++.
const COMPILER: &[Need] = &[Need::new("c++", "g++")];

/// Coverage as libFuzzer wants it, which the compiler has without being a nightly one: a counter for
/// each edge, and the operands of comparisons. One unit for each crate, since the linker would join
/// the tables of several in the wrong order.
const COVERAGE: &str = "-Cpasses=sancov-module -Ccodegen-units=1 \
     -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Inputs are no longer than this: more time for more of them.
const LONGEST: &str = "-max_len=65536";

/// An input that takes so many seconds is a defect, too: what reads it waits for nothing.
const SLOWEST: &str = "-timeout=10";

/// Builds the fuzzer, and runs it over each target in turn.
///
/// # Errors
/// When it cannot be built, or has found something.
pub fn run(args: &Args) -> Result<()> {
    packages::provide(COMPILER)?;
    let corpus = source_directory()?.join("crates/pepd-fuzz/corpus");
    let targets = targets(&corpus, &args.target)?;
    let folder = target_directory()?.join("fuzz");
    let program = build(&folder)?;
    let targets_there = u32::try_from(targets.len()).unwrap_or(u32::MAX);
    let each = (args.time / targets_there).as_secs().max(1);
    let mut found = Vec::new();
    for target in &targets {
        println!("{target}: {each} s");
        let inputs = folder.join("inputs").join(target);
        let artifacts = folder.join("found").join(target);
        fs::create_dir_all(&inputs)?;
        fs::create_dir_all(&artifacts)?;
        let mut fuzzer = Command::new(&program);
        fuzzer
            .env("PEPD_FUZZ_TARGET", target)
            .arg(format!("-max_total_time={each}"))
            .arg(format!("-seed={}", args.seed))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .args([LONGEST, SLOWEST, "-print_final_stats=1", "-verbosity=1"])
            .args([&inputs, &corpus.join(target)]);
        if target == "config" {
            fuzzer.arg(source_directory()?.join("config"));
        }
        let status = fuzzer
            .status()
            .with_context(|| format!("cannot run {}", program.display()))?;
        if !status.success() {
            found.push(artifacts.display().to_string());
        }
    }
    ensure!(found.is_empty(), "found, see: {}", found.join(", "));
    println!("Nothing was found.");
    Ok(())
}

/// Returns the targets that are asked for, or all.
fn targets(corpus: &Path, wanted: &[String]) -> Result<Vec<String>> {
    let mut targets = Vec::new();
    for entry in fs::read_dir(corpus)? {
        targets.push(entry?.file_name().to_string_lossy().into_owned());
    }
    targets.sort();
    if let Some(unknown) = wanted.iter().find(|name| !targets.contains(name)) {
        anyhow::bail!(
            "no target is named {unknown}; there are {}",
            targets.join(", ")
        );
    }
    targets.retain(|target| wanted.is_empty() || wanted.contains(target));
    Ok(targets)
}

/// Builds it apart from everything else, because all crates are compiled with coverage.
fn build(folder: &Path) -> Result<PathBuf> {
    let host = host()?;
    let status = Command::new("cargo")
        .args(["build", "--package", "pepd-fuzz", "--features", "libfuzzer"])
        .args(["--profile", "fuzz", "--locked", "--target", &host])
        .arg("--target-dir")
        .arg(folder)
        .env("RUSTFLAGS", COVERAGE)
        .current_dir(source_directory()?)
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "cargo build: {status}");
    Ok(folder.join(host).join("fuzz/pepd-fuzz"))
}

/// Returns what the compiler compiles for. Named to cargo, it spares build scripts and macros the
/// coverage, which nothing would collect.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output();
    let output = output.context("cannot run rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc names no host")?.to_owned())
}
