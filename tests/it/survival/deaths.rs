//! What the daemon's process dies of, how often it may, and what it leaves.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pepd_testbed::traffic::{End, Pattern, receive};
use pepd_testbed::{Family, Pepd, Stage, Via, World, require, run, wait_until};
use rstest::rstest;
use tempfile::TempDir;

use super::{UP, await_line};
use crate::harness::{LIMIT, PEPD};

/// The deaths of which nothing is to be left.
const DEATHS: usize = 10;

/// The bytes that a process may still take.
const MEMORY: u64 = 512 * 1024;

/// The connections for which that is not enough.
const MOST_PAIRS: usize = 1000;

/// The most that the keeper may have in memory of its own, in KiB.
const KEEPERS_KIB: u64 = 4096;

#[rstest]
#[case::of_a_wrong_address(Signal::SIGSEGV)]
#[case::of_a_wrong_instruction(Signal::SIGILL)]
#[case::by_its_own_hand(Signal::SIGABRT)]
#[case::killed(Signal::SIGKILL)]
// The keeper kills it once it has shown no sign of life for ten seconds.
#[case::it_hangs(Signal::SIGSTOP)]
fn whatever_it_dies_of_connections_go_on(#[case] signal: Signal) -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let pairs = [Family::V4, Family::V6].map(|family| stage.world.pair(family));
    for pair in &pairs {
        let pair = pair.as_ref().unwrap();
        pair.exchange(100_000)?;
    }
    let before = stage.pepd()?.daemon()?;
    if signal == Signal::SIGSEGV {
        // Rust's own handler takes the first, sees that nothing has overflown, and is gone.
        kill(before, signal)?;
        wait_until(LIMIT, "the handler is gone", || {
            caught(before).is_ok_and(|caught| caught >> (signal as u32 - 1) & 1 == 0)
        })?;
    }
    stage.pepd()?.dies(signal)?;
    ensure!(stage.pepd()?.daemon()? != before, "the same process");
    for pair in pairs {
        pair?.exchange(100_000)?;
    }
    for family in Family::BOTH {
        ensure!(stage.world.probe(family)?.1, "{family} is not split");
    }
    await_line(&stage, "this one goes on connections=2")?;
    stage.finish()
}

/// Gives the signals that a process has handlers for, a bit each (`SigCgt` of proc_pid_status(5)).
fn caught(process: Pid) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    Ok(u64::from_str_radix(line.unwrap_or_default().trim(), 16)?)
}

/// The kernel kills it because its control group has no memory left.
#[test]
fn memory_runs_out_and_connections_go_on() -> Result<()> {
    require!(root, guest);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let pair = stage.world.pair(Family::V4)?;
    pair.exchange(100_000)?;
    let before = stage.pepd()?.daemon()?;
    let group = MemoryGroup::new(before)?;
    let mut more = Vec::new();
    while group.kills()? == 0 {
        ensure!(
            more.len() < MOST_PAIRS,
            "{} more took no memory",
            more.len()
        );
        more.push(stage.world.pair(Family::V4)?);
    }
    stage.pepd()?.says("READY=1")?;
    ensure!(stage.pepd()?.daemon()? != before, "the same process");
    for pair in more.iter().chain([&pair]) {
        pair.exchange(100_000)?;
    }
    ensure!(stage.world.probe(Family::V4)?.1, "not split");
    stage.finish()
}

/// A control group (cgroup v2) with little memory beyond what its only process had before.
struct MemoryGroup {
    hierarchy: TempDir,
}

impl MemoryGroup {
    fn new(process: Pid) -> Result<Self> {
        let hierarchy = TempDir::with_prefix("pepd-cgroup-")?;
        let path = hierarchy.path();
        mount(
            Some("none"),
            path,
            Some("cgroup2"),
            MsFlags::empty(),
            None::<&str>,
        )?;
        let group = Self { hierarchy };
        fs::write(group.file("cgroup.subtree_control"), "+memory")?;
        fs::create_dir(group.file("little"))?;
        fs::write(group.file("little/memory.max"), MEMORY.to_string())?;
        fs::write(group.file("little/cgroup.procs"), process.to_string())?;
        Ok(group)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.hierarchy.path().join(name)
    }

    /// Returns how many processes the kernel has killed in it.
    fn kills(&self) -> Result<u64> {
        let events = fs::read_to_string(self.file("little/memory.events"))?;
        let kills = events
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill "));
        Ok(kills.unwrap_or_default().trim().parse()?)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Nobody is in it any more.
        let _ = fs::remove_dir(self.file("little"));
        let _ = umount(self.hierarchy.path());
    }
}

#[test]
fn five_crashes_in_a_minute_are_the_end_and_new_connections_are_routed() -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let pair = stage.world.pair(Family::V4)?;
    for _ in 0..4 {
        stage.pepd()?.dies(Signal::SIGILL)?;
        pair.exchange(10_000)?;
    }
    kill(stage.pepd()?.daemon()?, Signal::SIGILL)?;
    let (status, log) = stage.pepd.take().unwrap().wait()?;
    ensure!(status.code() == Some(70), "{status}: {log}");
    ensure!(log.contains("has died again and again"), "{log}");
    let (_, end) = receive(&pair.client, &Pattern::new(0), 0)?;
    ensure!(end == End::RESET, "{end:?}");
    let (routed, split) = stage.world.probe(Family::V4)?;
    ensure!(!split, "split by nobody");
    routed.exchange(10_000)?;
    Ok(())
}

/// Neither descriptors, nor processes, nor state in the kernel; and the keeper stays as small as it is.
#[test]
fn nothing_is_left_of_those_that_have_died() -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let pair = stage.world.pair(Family::V4)?;
    pair.exchange(100_000)?;
    stage.pepd()?.dies(Signal::SIGKILL)?;
    pair.exchange(100_000)?;
    let before = (stage.pepd()?.descriptors()?, stage.world.steady_state()?);
    for _ in 0..DEATHS {
        stage.pepd()?.dies(Signal::SIGKILL)?;
        pair.exchange(100_000)?;
    }
    let Stage { world, pepd, .. } = &stage;
    let pepd = pepd.as_ref().unwrap();
    // One or two pipes stay in the pool, as the exchange has needed them.
    wait_until(LIMIT, "fewer descriptors more than deaths", || {
        pepd.descriptors().is_ok_and(|now| now < before.0 + DEATHS)
    })?;
    assert_eq!(world.steady_state()?, before.1);
    let keeper = pepd.process().pid();
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"))?;
    assert_eq!(children.split_whitespace().count(), 1, "{children}");
    let status = fs::read_to_string(format!("/proc/{keeper}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    assert_eq!(field("Threads:"), Some(1));
    let own = field("RssAnon:").unwrap();
    ensure!(own <= KEEPERS_KIB, "{own} KiB");
    stage.finish()
}

/// Who dies while it drains is followed by one that drains.
#[test]
fn a_drain_goes_on() -> Result<()> {
    require!(root);
    let config = World::config().replace("drain = \"5s\"", "drain = \"10min\"");
    let mut stage = Stage::with_config(PEPD, &config)?;
    let pair = stage.world.pair(Family::V4)?;
    pair.exchange(10_000)?;
    let mut pepd = stage.pepd.take().unwrap();
    pepd.signal(Signal::SIGTERM)?;
    pepd.says("STOPPING=1")?;
    pair.exchange(10_000)?;
    wait_until(LIMIT, "the time that is left in the log", || {
        pepd.log().contains("left=")
    })?;
    kill(pepd.daemon()?, Signal::SIGKILL)?;
    pepd.says("STOPPING=1")?;
    pair.exchange(10_000)?;
    let (routed, split) = stage.world.probe(Family::V4)?;
    ensure!(!split, "it drains");
    routed.exchange(10_000)?;
    drop(pair);
    let (status, log) = pepd.wait()?;
    ensure!(status.code() == Some(0), "{status}: {log}");
    // The gate was not opened again, and the time did not begin anew.
    ensure!(log.matches(UP).count() == 1, "{log}");
    let left: Vec<f64> = log.split("left=").skip(1).filter_map(seconds).collect();
    ensure!(left.len() == 2 && left[1] < left[0], "{left:?}: {log}");
    Ok(())
}

/// Reads the time that a text begins with.
fn seconds(text: &str) -> Option<f64> {
    text.split_once('s')?.0.parse().ok()
}

/// Who is asked to end before he is up drains, and is not taken to have been asked twice.
#[test]
fn whoever_is_not_up_yet_drains_too() -> Result<()> {
    require!(root);
    let config = World::config().replace("drain = \"5s\"", "drain = \"10min\"");
    let mut stage = Stage::with_config(PEPD, &config)?;
    let pair = stage.world.pair(Family::V4)?;
    pair.exchange(10_000)?;
    let mut pepd = stage.pepd.take().unwrap();
    kill(pepd.daemon()?, Signal::SIGKILL)?;
    pepd.signal(Signal::SIGTERM)?;
    pepd.says("STOPPING=1")?;
    pair.exchange(10_000)?;
    drop(pair);
    let (status, log) = pepd.wait()?;
    ensure!(status.code() == Some(0), "{status}: {log}");
    Ok(())
}

/// A reload that is asked for while another one begins does not end that.
#[test]
fn a_reload_waits_until_it_is_up() -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let pair = stage.world.pair(Family::V4)?;
    for _ in 0..6 {
        kill(stage.pepd()?.daemon()?, Signal::SIGKILL)?;
        // The keeper takes the next one at once, at whatever instruction that is.
        for _ in 0..50 {
            stage.pepd()?.signal(Signal::SIGHUP)?;
            thread::park_timeout(Duration::from_millis(1));
        }
        stage.pepd()?.says("READY=1")?;
        pair.exchange(10_000)?;
    }
    let log = stage.pepd()?.log();
    ensure!(!log.contains("SIGHUP"), "{log}");
    stage.finish()
}

/// Who asks meanwhile is answered by the next one.
#[test]
fn whoever_asks_meanwhile_is_answered() -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let pair = stage.world.pair(Family::V4)?;
    for _ in 0..20 {
        kill(stage.pepd()?.daemon()?, Signal::SIGKILL)?;
        let mut status = Command::new(PEPD);
        status.args(["status", "--socket"]);
        let said = run(status.arg(stage.world.admin_socket()), LIMIT)?.success()?;
        ensure!(said.contains("killed"), "{said}");
        stage.pepd()?.says("READY=1")?;
    }
    pair.exchange(10_000)?;
    stage.finish()
}

/// The configuration in force stays in force, whatever has become of the file.
#[test]
fn the_file_may_be_wrong_or_gone_meanwhile() -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let pair = stage.world.pair(Family::V4)?;
    let early = World::early_config();
    stage.pepd()?.reload(&early)?;
    fs::write(stage.pepd()?.config_file(), "no configuration")?;
    stage.pepd()?.dies(Signal::SIGKILL)?;
    pair.exchange(10_000)?;
    fs::remove_file(stage.pepd()?.config_file())?;
    stage.pepd()?.dies(Signal::SIGKILL)?;
    pair.exchange(10_000)?;
    ensure!(stage.world.probe(Family::V4)?.1, "not split");
    stage.finish()
}

/// Who keeps the keeper from living ends the daemon, too.
#[test]
fn without_its_keeper_it_ends() -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let pair = stage.world.pair(Family::V4)?;
    let pepd: Pepd = stage.pepd.take().unwrap();
    // It waits for the end of both.
    pepd.kill()?;
    let (_, end) = receive(&pair.client, &Pattern::new(0), 0)?;
    ensure!(end == End::RESET, "{end:?}");
    Ok(())
}
