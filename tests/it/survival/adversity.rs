//! The daemon's process dies while something else is wrong with the host: connections go on all the same,
//! and new ones are split again once that is over.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, Pepd, Stage, Via, World, install, require, run, wait_until};
use tempfile::TempDir;

use super::{UP, await_line};
use crate::harness::{LIMIT, PEPD};

/// Gives the daemon file systems of its own, which a test may change.
const OWN_MOUNTS: [&str; 4] = ["unshare", "--mount", "--propagation", "private"];

/// Connections that have more descriptors than [`FEW`].
const PAIRS: usize = 60;

/// A limit of open files as a shell has it, and what it may be raised to.
const FEW: &str = "--nofile=100:4096";

fn start(wrapper: &[&str], config: &str) -> Result<Stage> {
    let mut stage = Stage::in_world(World::standard()?, Via::Routing, PEPD, "")?;
    let pepd = Pepd::builder(PEPD).wrapper(wrapper);
    stage.pepd = Some(pepd.start(stage.world.hb(), config)?);
    Ok(stage)
}

/// Does something to the daemon's own file systems.
fn in_its_mounts(stage: &mut Stage, script: &str) -> Result<()> {
    let keeper = stage.pepd()?.process().pid().to_string();
    let mut command = Command::new("nsenter");
    command.args(["-t", &keeper, "--mount", "sh", "-ec", script]);
    run(&mut command, LIMIT)?.success().map(drop)
}

/// Has another program stand where nft is.
fn nft() -> Result<PathBuf> {
    let places = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft"].map(PathBuf::from);
    let nft = places.into_iter().find(|place| place.is_file());
    nft.context("nft is nowhere")
}

/// The keeper has the daemon's table of descriptors, and a limit of its own.
#[test]
fn there_are_more_descriptors_than_the_limit_was_at_the_start() -> Result<()> {
    require!(root, program("prlimit"));
    let mut stage = start(&["prlimit", FEW], &World::config())?;
    let pairs = (0..PAIRS).map(|_| stage.world.pair(Family::V4));
    let pairs = pairs.collect::<Result<Vec<_>>>()?;
    ensure!(stage.pepd()?.descriptors()? > 100, "too few");
    for _ in 0..2 {
        stage.pepd()?.dies(Signal::SIGKILL)?;
        for pair in &pairs {
            pair.exchange(1000)?;
        }
    }
    stage.finish()
}

/// Neither the signals that have names, nor what the C library has of them, are all that there are.
#[test]
fn it_dies_of_a_real_time_signal() -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let pair = stage.world.pair(Family::V4)?;
    let daemon = stage.pepd()?.daemon()?;
    stage.world.hb().sh(&format!("kill -35 {daemon}"))?;
    stage.pepd()?.says("READY=1")?;
    pair.exchange(10_000)?;
    await_line(&stage, "it was ended by signal 35")?;
    stage.finish()
}

/// Who hangs while he drains is followed by one that drains.
#[test]
fn it_hangs_while_it_drains() -> Result<()> {
    require!(root);
    let config = World::config().replace("drain = \"5s\"", "drain = \"10min\"");
    let mut stage = Stage::with_config(PEPD, &config)?;
    let pair = stage.world.pair(Family::V4)?;
    let mut pepd = stage.pepd.take().unwrap();
    pepd.signal(Signal::SIGTERM)?;
    pepd.says("STOPPING=1")?;
    kill(pepd.daemon()?, Signal::SIGSTOP)?;
    pepd.says("STOPPING=1")?;
    pair.exchange(10_000)?;
    drop(pair);
    let (status, log) = pepd.wait()?;
    ensure!(status.code() == Some(0), "{status}: {log}");
    Ok(())
}

/// Who hangs before he is up is replaced as well: here since the first program that it starts stops it.
#[test]
fn the_next_one_hangs_before_it_is_up() -> Result<()> {
    require!(root, program("nft"));
    let directory = TempDir::with_prefix("pepd-nft-")?;
    // The daemon is another user.
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
    let (script, stop) = (
        directory.path().join("script"),
        directory.path().join("stop"),
    );
    let words = format!(
        "#!/bin/sh\n[ ! -e {} ] || kill -STOP $PPID\nexec {} \"$@\"\n",
        stop.display(),
        nft()?.display()
    );
    fs::write(&script, words)?;
    install(&script, &directory.path().join("nft"))?;
    let path = format!(
        "PATH={}:{}",
        directory.path().display(),
        std::env::var("PATH")?
    );
    let mut stage = start(&["env", &path], &World::config())?;
    let pair = stage.world.pair(Family::V4)?;

    fs::write(&stop, "")?;
    let before = stage.pepd()?.daemon()?;
    kill(before, Signal::SIGKILL)?;
    let next = next_after(stage.pepd()?, before)?;
    wait_until(LIMIT, "it has stopped", || has_stopped(next))?;
    fs::remove_file(&stop)?;
    stage.pepd()?.says("READY=1")?;
    ensure!(stage.pepd()?.daemon()? != next, "it was not replaced");
    let times_up = |stage: &mut Stage| stage.pepd().map(|it| it.log().matches(UP).count());
    wait_until(LIMIT, "the log says that it is up", || {
        times_up(&mut stage).is_ok_and(|times| times >= 2)
    })?;
    ensure!(times_up(&mut stage)? == 2, "it was up");
    pair.exchange(10_000)?;
    stage.finish()
}

fn next_after(pepd: &Pepd, before: Pid) -> Result<Pid> {
    let keeper = pepd.process().pid();
    let mut next = None;
    wait_until(LIMIT, "there is another one", || {
        let daemon = pepd.daemon().ok();
        next = daemon.filter(|daemon| ![before, keeper].contains(daemon));
        next.is_some()
    })?;
    next.context("none")
}

fn has_stopped(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| stat.contains(") T "))
}

/// The daemon that follows cannot install what new connections take: those that are there do not need it.
#[test]
fn nft_fails_for_a_while() -> Result<()> {
    require!(root, program("nft"), program("unshare"), program("nsenter"));
    let mut stage = start(&OWN_MOUNTS, &World::config())?;
    let pair = stage.world.pair(Family::V4)?;
    let nft = nft()?;
    let nft = nft.display();
    in_its_mounts(&mut stage, &format!("mount --bind /bin/false {nft}"))?;
    kill(stage.pepd()?.daemon()?, Signal::SIGKILL)?;
    await_line(&stage, "and it is tried again")?;
    pair.exchange(100_000)?;
    // It goes on for as long as that takes, and outlives its own death then.
    kill(stage.pepd()?.daemon()?, Signal::SIGKILL)?;
    wait_until(LIMIT, "another one has tried", || {
        let log = stage.pepd.as_ref().map(Pepd::log).unwrap_or_default();
        log.matches("and it is tried again").count() == 2
    })?;
    pair.exchange(100_000)?;
    in_its_mounts(&mut stage, &format!("umount {nft}"))?;
    stage.pepd()?.says("READY=1")?;
    pair.exchange(100_000)?;
    ensure!(stage.world.probe(Family::V4)?.1, "not split");
    stage.finish()
}

/// The same, when the daemon is asked to end: connections have their time, and no more.
#[test]
fn nft_fails_and_it_is_to_end() -> Result<()> {
    require!(root, program("nft"), program("unshare"), program("nsenter"));
    let config = World::config().replace("drain = \"5s\"", "drain = \"10min\"");
    let mut stage = start(&OWN_MOUNTS, &config)?;
    let pair = stage.world.pair(Family::V4)?;
    let nft = nft()?;
    let nft = nft.display();
    in_its_mounts(&mut stage, &format!("mount --bind /bin/false {nft}"))?;
    kill(stage.pepd()?.daemon()?, Signal::SIGKILL)?;
    await_line(&stage, "and it is tried again")?;
    let pepd = stage.pepd.take().unwrap();
    pepd.signal(Signal::SIGTERM)?;
    pair.exchange(100_000)?;
    drop(pair);
    let (status, log) = pepd.wait()?;
    ensure!(status.code() == Some(70), "{status}: {log}");
    ensure!(log.contains("nft failed"), "{log}");
    Ok(())
}

/// The admin socket's place is taken: who follows does without.
#[test]
fn the_admin_socket_cannot_be_made() -> Result<()> {
    require!(root);
    let directory = TempDir::with_prefix("pepd-socket-")?;
    let socket = directory.path().join("admin.sock");
    let admin = format!("[admin]\nsocket = \"{}\"\n", socket.display());
    let mut stage = Stage::with_config(PEPD, &(World::config() + &admin))?;
    let pair = stage.world.pair(Family::V4)?;
    fs::remove_file(&socket)?;
    fs::write(&socket, "")?;
    stage.pepd()?.dies(Signal::SIGKILL)?;
    pair.exchange(10_000)?;
    await_line(&stage, "is no socket; remove it")?;
    ensure!(stage.world.probe(Family::V4)?.1, "not split");
    // Who follows then has it again.
    fs::remove_file(&socket)?;
    stage.pepd()?.dies(Signal::SIGKILL)?;
    pair.exchange(10_000)?;
    wait_until(LIMIT, "it answers", || {
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
    })?;
    stage.finish()
}

/// No process can be made for a while: here since /proc, which is looked at first, is not there.
#[test]
fn there_is_no_process_to_be_had_for_a_while() -> Result<()> {
    require!(root, program("unshare"), program("nsenter"));
    let mut stage = start(&OWN_MOUNTS, &World::config())?;
    let pair: Pair = stage.world.pair(Family::V4)?;
    let keeper = stage.pepd()?.process().pid();
    in_its_mounts(&mut stage, "mount -t tmpfs none /proc")?;
    kill(stage.pepd()?.daemon()?, Signal::SIGKILL)?;
    wait_until(LIMIT, "it is gone", || {
        children(keeper).is_ok_and(|it| it == 0)
    })?;
    // Each time it waits.
    let before = waits(keeper)?;
    wait_until(LIMIT, "some attempts", || {
        waits(keeper).is_ok_and(|now| now > before + 3)
    })?;
    in_its_mounts(&mut stage, "umount /proc")?;
    stage.pepd()?.says("READY=1")?;
    pair.exchange(10_000)?;
    stage.finish()
}

fn children(process: Pid) -> Result<usize> {
    let listed = fs::read_to_string(format!("/proc/{process}/task/{process}/children"))?;
    Ok(listed.split_whitespace().count())
}

/// Returns how often a process has waited for something (proc_pid_status(5)).
fn waits(process: Pid) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(count.context("no such line")?.trim().parse()?)
}
