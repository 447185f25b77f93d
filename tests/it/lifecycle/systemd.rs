//! The unit, whole, under a systemd of its own: its sandbox and its watchdog, what `systemctl` does, and
//! that a connection outlives deaths and upgrades there. Only in the guest, whose control groups nobody
//! else has.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, Process, World, install, require, run, wait_until};
use tempfile::TempDir;

use crate::harness::{LIMIT, PEPD};

/// What becomes the first process of a process namespace. `$1` has the program, its file and the units.
const INIT: &str = "
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /etc/pepd /run/systemd/system
mount -t tmpfs -o mode=755 tmpfs /etc/pepd
cp \"$1\"/* /etc/pepd
for place in /usr/local/sbin /run/systemd/system; do
    mount --bind /etc/pepd $place
done
# It is cleaned when systemd boots.
mount -t tmpfs tmpfs /tmp
export container=pepd
exec /lib/systemd/systemd --system --log-target=console --unit=only.target
";

const TARGET: &str = "
[Unit]
Requires=sysinit.target
After=sysinit.target
";

/// A systemd whose services run on the helper box.
struct Systemd {
    world: World,
    process: Process,
    first: Pid,
}

impl Systemd {
    fn boot() -> Result<Self> {
        let world = World::standard()?;
        let directory = TempDir::with_prefix("pepd-systemd-")?;
        let path = directory.path();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        install(PEPD.as_ref(), &path.join("pepd"))?;
        fs::write(path.join("pepd.toml"), World::config())?;
        fs::write(path.join("only.target"), TARGET)?;
        let unit = include_str!("../../../config/pepd.service");
        fs::write(path.join("pepd.service"), unit)?;
        let mut command = world.hb().command("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount"]);
        command.args(["sh", "-ec", INIT, "sh"]).arg(path);
        let process = Process::spawn(&mut command)?;
        wait_until(LIMIT, "there is a first process", || {
            child_of(process.pid()).is_ok()
        })?;
        let first = child_of(process.pid())?;
        let it = Self {
            world,
            process,
            first,
        };
        let booted = wait_until(LIMIT, "systemd has booted", || {
            let said = it.run("systemctl is-system-running || true");
            said.is_ok_and(|said| ["running", "degraded"].contains(&said.trim()))
        });
        booted.with_context(|| it.process.log())?;
        Ok(it)
    }

    /// Runs a shell's command beside systemd.
    fn run(&self, script: &str) -> Result<String> {
        let mut command = Command::new("nsenter");
        let first = self.first.to_string();
        command.args(["-t", &first, "-p", "-m", "-n", "sh", "-ec", script]);
        run(&mut command, LIMIT)?.success()
    }

    fn shows(&self, property: &str) -> Result<String> {
        let said = self.run(&format!("systemctl show -p {property} --value pepd"))?;
        Ok(said.trim().to_owned())
    }

    /// Returns the daemon's own process, as systemd's processes number them.
    fn daemon(&self) -> Result<String> {
        let main = self.shows("MainPID")?;
        let children = self.run(&format!("cat /proc/{main}/task/{main}/children"))?;
        let child = children.split_whitespace().next();
        child.map(str::to_owned).context("it has none")
    }

    /// Has the daemon's process die, and waits until another one relays.
    fn dies(&self, signal: &str, pair: &Pair) -> Result<()> {
        let before = self.daemon()?;
        self.run(&format!("kill -{signal} {before}"))?;
        wait_until(LIMIT, "there is another one", || {
            self.daemon().is_ok_and(|now| now != before)
        })?;
        pair.exchange(100_000)?;
        // What it says is heard by systemd, which would end both otherwise.
        wait_until(LIMIT, "it is up", || self.run("pepd status").is_ok())
    }

    fn upgrade(&self) -> Result<String> {
        self.run("cd /etc/pepd; cp pepd new; mv new pepd; pepd upgrade -c /etc/pepd/pepd.toml")
    }
}

fn child_of(parent: Pid) -> Result<Pid> {
    let listed = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    let first = listed.split_whitespace().next().context("no child")?;
    Ok(Pid::from_raw(first.parse()?))
}

#[test]
fn a_connection_outlives_what_happens_to_the_unit() -> Result<()> {
    require!(root, guest);
    let it = Systemd::boot()?;
    let started = it.run("systemctl start pepd");
    started.with_context(|| it.process.log())?;
    let (pair, split) = it.world.probe(Family::V4)?;
    ensure!(split, "not split");
    let main = it.shows("MainPID")?;
    for signal in ["KILL", "ABRT", "STOP"] {
        it.dies(signal, &pair).context(signal)?;
    }
    for _ in 0..2 {
        let said = it.upgrade()?;
        ensure!(said.contains("upgraded: 1 connections went on"), "{said}");
        pair.exchange(100_000)?;
    }
    // It hears what systemd says, as before.
    it.run("systemctl reload pepd")?;
    it.dies("KILL", &pair)?;
    assert_eq!(it.shows("MainPID")?, main);
    assert_eq!(it.shows("NRestarts")?, "0");
    drop(pair);
    it.run("systemctl stop pepd")?;
    assert_eq!(it.shows("Result")?, "success");
    assert!(!it.world.kernel_state()?.contains("pepd"), "it cleaned up");
    // Whoever kills the main process has it started anew.
    it.run("systemctl start pepd; systemctl kill -s KILL --kill-whom=main pepd")?;
    wait_until(LIMIT, "it is started again", || {
        it.shows("NRestarts").is_ok_and(|times| times == "1")
            && it.run("systemctl is-active pepd").is_ok()
    })?;
    ensure!(it.world.probe(Family::V4)?.1, "not split");
    it.run("systemctl stop pepd").map(drop)
}
