//! The demo's second part: what a helper box gains on a long and lossy path.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::{Nginx, Pepd};

use super::console::Console;
use super::interrupt::Interrupt;
use super::meter::Meter;
use super::path::{CONFIG, LongPath, PICTURE};
use super::transfer::{Download, Progress, Transfer};
use super::{Leg, checksum, noise, short, sockets};

/// What is downloaded: some 22 s at the path's rate.
const MEGABYTES: usize = 250;
const TOTAL: u64 = MEGABYTES as u64 * 1_000_000;
/// The time that the download without pepd is watched.
const PATIENCE: Duration = Duration::from_secs(15);
/// The time that the one with pepd may take: a busy machine is slow, a hung one is not waited for.
const LIMIT: Duration = Duration::from_secs(120);
/// The time at which the legs are looked at: both have found their rate.
const IN_FULL_FLOW: Duration = Duration::from_secs(8);

/// Shows it, with the program `pepd`.
pub fn show(console: &mut Console, pepd: &Path, interrupt: &Interrupt) -> Result<()> {
    console.step("A long and lossy path, emulated packet by packet on this machine:");
    let path = LongPath::build()?;
    console.picture(PICTURE);
    let nginx = Nginx::start(path.server())?;
    nginx.put_file("file", &noise(MEGABYTES * 1_000_000))?;
    let sum = checksum(&nginx.files().join("file"))?;
    let url = nginx.url([10, 2, 0, 2].into(), "file");
    let limit = LongPath::physical_limit();
    show_limit(console, limit);

    interrupt.check()?;
    let watched = PATIENCE.as_secs();
    console.step(&format!(
        "curl downloads {MEGABYTES} MB without pepd. The sender slows down at each loss,\n   \
         and takes many round trips of 420 ms to recover. {watched} s are enough to see it:"
    ));
    let without = download(&path, &url, PATIENCE, interrupt, |_| {})?.0;

    interrupt.check()?;
    console.step("The helper box's configuration, and the daemon. The hosts stay as they are:");
    console.quote(CONFIG);
    let mut daemon = Pepd::start(pepd, path.hb(), CONFIG)?;
    console.fact("hb", "pepd run -c pepd.toml: ready");

    console.step(
        "The same download with pepd. What the radio loses is sent again by the helper\n    \
         box, 20 ms away; the sender does not notice:",
    );
    let mut legs = Vec::new();
    let mut half = None;
    let (with, download) = download(&path, &url, LIMIT, interrupt, |progress| {
        if legs.is_empty() && progress.elapsed >= IN_FULL_FLOW {
            legs = sockets(path.hb()).unwrap_or_default();
        }
        if half.is_none() && progress.bytes >= TOTAL / 2 {
            half = Some(progress);
        }
    })?;
    let download = download.with_context(|| {
        format!(
            "not complete after {} s: the machine is too busy, or pepd has failed:\n{}",
            LIMIT.as_secs(),
            daemon.log()
        )
    })?;
    ensure!(daemon.runs(), "pepd has ended:\n{}", daemon.log());
    ensure!(
        checksum(&download.file())? == sum,
        "the file that curl has is not the one that nginx has"
    );
    show_success(console, legs, &sum);

    console.step("What it gained:");
    console.picture(&result(without, with, half.unwrap_or(with), limit));
    if path.fell_behind()? {
        console.fact(
            "note",
            "this machine was too busy to emulate the path in time: the real gain may differ",
        );
    }
    drop(daemon);
    Ok(())
}

/// Shows what TCP can get through the path at most, in bits per second.
fn show_limit(console: &mut Console, limit: f64) {
    console.fact(
        "limit",
        &format!(
            "TCP can get {:.1} Mbit/s through: 100, less 5 % lost, less the headers",
            limit / 1e6
        ),
    );
}

/// Shows the legs as they were in full flow, and that the file arrived whole.
fn show_success(console: &mut Console, mut legs: Vec<Leg>, sum: &str) {
    legs.sort_by_key(Leg::is_upstream);
    for leg in legs {
        console.fact("ss", &leg.to_string());
    }
    console.fact(
        "curl",
        &format!("all of it, with the same sha256 {}", short(sum)),
    );
}

/// Downloads for at most `limit`, with a meter, and begins the links' counts with it. With what
/// was measured comes the file, if it is complete.
fn download(
    path: &LongPath,
    url: &str,
    limit: Duration,
    interrupt: &Interrupt,
    mut observe: impl FnMut(Progress),
) -> Result<(Progress, Option<Download>)> {
    path.restart()?;
    let mut meter = Meter::new(TOTAL);
    let transfer = Transfer::start(path.client(), url)?;
    let outcome = transfer.watch(limit, interrupt, |progress| {
        meter.show(progress);
        observe(progress);
    });
    meter.end();
    outcome
}

/// Returns the table of the end. `half` is when half of the download with pepd had arrived.
fn result(without: Progress, with: Progress, half: Progress, limit: f64) -> String {
    let share = |rate: f64| 100.0 * rate / limit;
    let row = |name: &str, progress: Progress| {
        let mean = progress.mean();
        let all = Duration::try_from_secs_f64((TOTAL * 8) as f64 / mean).unwrap_or_default();
        format!(
            "{name:<12}  {:>6.2} Mbit/s  {:>5.1} % of the limit  {MEGABYTES} MB take {}",
            mean / 1e6,
            share(mean),
            humantime::format_duration(Duration::from_secs(all.as_secs())),
        )
    };
    let gain = with.mean() / without.mean();
    let settled = with.since(half);
    format!(
        "{}\n{}\n\n{gain:.0} times as fast. The second half of the download, with the sender's\n\
         slow start over, ran at {:.1} Mbit/s: {:.0} % of the limit.",
        row("without pepd", without),
        row("with pepd", with),
        settled / 1e6,
        share(settled),
    )
}
