//! `[node] state`: what was learned of the legs' paths is known again after a restart.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use pepd_testbed::link::{Rate, Shape};
use pepd_testbed::{Family, Pepd, World, ask, require, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{LIMIT, PEPD};
use crate::streams::while_busy;

/// The configuration with this file, and this as the leg to the servers.
fn config(world: &World, state: &Path, wan: &str) -> String {
    let config = World::config().replace("congestion = \"cubic\"\n", wan);
    let state = format!("[node]\nstate = \"{}\"\n", state.display());
    format!("{}{}", config.replace("[node]\n", &state), world.admin())
}

fn status(world: &World) -> Result<Value> {
    Ok(serde_json::from_str(&ask(
        &world.admin_socket(),
        "GET /v1/status",
    )?)?)
}

/// What is chosen for the leg to the servers.
fn chosen(world: &World) -> Result<Value> {
    let chosen = status(world)?["chosen"].take();
    let all = chosen.as_array().context("nothing is chosen")?;
    all.iter()
        .find(|it| it["leg"] == "wan")
        .cloned()
        .context("not for wan")
}

/// What is in the file of the leg to the servers, in the newer of its two texts.
fn kept(state: &Path) -> Result<Value> {
    let bytes = fs::read(state)?;
    let texts = bytes.split(|byte| *byte == 0);
    let texts = texts.filter_map(|text| serde_json::from_slice::<Value>(text).ok());
    let newest = texts.max_by_key(|text| text["number"].as_u64());
    Ok(newest.context("no text")?["legs"]["wan"].take())
}

#[test]
fn what_was_chosen_is_chosen_again() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let directory = TempDir::new()?;
    let state = directory.path().join("state");
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let text = json!({
        "number": 7, "end": 7,
        "legs": {
            "wan": { "congestion": "bbr", "learned": now },
            "gone": { "congestion": "reno", "rate": -1, "learned": now },
        },
    });
    fs::write(&state, text.to_string())?;
    let mut daemon = Pepd::start(
        PEPD,
        world.hb(),
        &config(&world, &state, "congestion = \"auto\"\n"),
    )?;
    let first = chosen(&world)?;
    ensure!(
        first["congestion"] == "bbr" && first["reason"] == "known",
        "{first}"
    );
    let pair = world.pair(Family::V4)?;
    let table = world.hb().sh(&format!(
        "ss -tinOH state established dst {}",
        pair.server.local_addr()?
    ))?;
    ensure!(table.contains(" bbr "), "{table}");
    pair.exchange(100_000)?;
    // Also by the process that goes on.
    daemon.dies(Signal::SIGKILL)?;
    pair.exchange(100_000)?;
    let again = chosen(&world)?;
    ensure!(
        again["congestion"] == "bbr" && again["reason"] == "known",
        "{again}"
    );
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    ensure!(kept(&state)?["congestion"] == "bbr", "{:?}", kept(&state));
    Ok(())
}

/// What a link was found to carry is kept, by a daemon that may open no file any more.
#[test]
fn what_was_found_is_kept() -> Result<()> {
    require!(root, program("nft"));
    let far = Shape::new(Duration::from_millis(20), Rate::mbit(20));
    let near = Shape::new(Duration::from_millis(1), Rate::mbit(100));
    let world = World::emulated(near, far)?;
    let directory = TempDir::new()?;
    let state = directory.path().join("state");
    let config = config(&world, &state, "congestion = \"find-rate\"\n");
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    while_busy(&[world.pair(Family::V4)?], || {
        wait_until(LIMIT, "it is kept", || {
            kept(&state).is_ok_and(|wan| wan["rate"].is_f64())
        })
    })?;
    let (ended, log) = daemon.stop()?;
    ensure!(ended.success() && !log.contains("[node] state"), "{log}");
    let wan = kept(&state)?;
    let [rate, rtt] = ["rate", "rtt"].map(|key| wan[key].as_f64().unwrap_or_default());
    // How well it is found is another test's; here, that it is this.
    ensure!(rate > 1e6 && rtt > 0.03, "{wan}");
    // Nobody but the owner may read or write it.
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&state)?.permissions());
    ensure!(mode & 0o777 == 0o600, "{mode:o}");
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    world.pair(Family::V4)?.exchange(100_000)?;
    let (ended, log) = daemon.stop()?;
    ensure!(ended.success(), "{log}");
    Ok(())
}

/// A file that cannot be had, or is none, is a warning; a reload does not open another one.
#[test]
fn without_its_file_it_goes_on() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let directory = TempDir::new()?;
    let make = "mkfifo fifo && ln -s /dev/full full && echo nonsense > text";
    let made = std::process::Command::new("sh")
        .args(["-c", make])
        .current_dir(directory.path())
        .status()?;
    ensure!(made.success());
    for (name, is_refused) in [
        ("none/state", true),
        ("fifo", true),
        ("full", true),
        ("", true),
        ("text", false),
    ] {
        let state = directory.path().join(name);
        let state = if name.is_empty() {
            Path::new("/proc")
        } else {
            &state
        };
        let config = |state: &Path| config(&world, state, "congestion = \"auto\"\n");
        let mut daemon = Pepd::start(PEPD, world.hb(), &config(state))?;
        world.pair(Family::V4)?.exchange(10_000)?;
        ensure!(chosen(&world)?["reason"] == "new");
        daemon.reload(&config(&directory.path().join("other")))?;
        wait_until(LIMIT, "it is said", || {
            daemon
                .log()
                .contains("[node] state takes effect at the next start")
        })?;
        let (ended, log) = daemon.stop()?;
        ensure!(ended.success(), "{log}");
        ensure!(
            log.contains("is forgotten at the end") == is_refused,
            "{name}: {log}"
        );
        ensure!(!directory.path().join("other").exists());
    }
    Ok(())
}
