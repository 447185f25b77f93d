//! Another program takes over, and no connection is lost; or it cannot, and the old one goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::Signal;
use pepd_testbed::{Family, Finished, Pepd, Stage, World, install, require, run, wait_until};
use tempfile::TempDir;

use super::await_line;
use crate::harness::{LIMIT, PEPD};

/// A daemon whose program is a file of its own.
struct Installed {
    stage: Stage,
    directory: TempDir,
}

impl Installed {
    fn start() -> Result<Self> {
        Self::start_with(&World::config())
    }

    fn start_with(config: &str) -> Result<Self> {
        let directory = TempDir::with_prefix("pepd-upgrade-")?;
        let world = World::standard()?;
        let mut it = Self {
            stage: Stage::in_world(world, pepd_testbed::Via::Routing, PEPD, "")?,
            directory,
        };
        it.put(Path::new(PEPD))?;
        let config = config.to_owned() + &it.stage.world.admin();
        let pepd = Pepd::start(it.program(), it.stage.world.hb(), &config)?;
        it.stage.pepd = Some(pepd);
        Ok(it)
    }

    fn program(&self) -> PathBuf {
        self.directory.path().join("pepd")
    }

    /// Puts a program in its place, as a package does.
    fn put(&self, program: &Path) -> Result<()> {
        let new = self.directory.path().join("new");
        install(program, &new)?;
        Ok(fs::rename(new, self.program())?)
    }

    /// Puts a shell's program in its place.
    fn put_script(&self, body: &str) -> Result<()> {
        let script = self.directory.path().join("script");
        fs::write(&script, format!("#!/bin/sh\n{body}\n"))?;
        self.put(&script)
    }

    fn upgrade(&self) -> Result<Finished> {
        let mut command = Command::new(PEPD);
        command.args(["upgrade", "--socket"]);
        run(command.arg(self.stage.world.admin_socket()), LIMIT)
    }
}

#[test]
fn connections_outlive_it() -> Result<()> {
    require!(root);
    let mut it = Installed::start()?;
    let pairs = [Family::V4, Family::V6].map(|family| it.stage.world.pair(family));
    let pairs = pairs.into_iter().collect::<Result<Vec<_>>>()?;
    let keeper = it.stage.pepd()?.process().pid();
    for _ in 0..5 {
        it.put(Path::new(PEPD))?;
        let daemon = it.stage.pepd()?.daemon()?;
        let said = it.upgrade()?.success()?;
        ensure!(said.contains("upgraded: 2 connections went on"), "{said}");
        ensure!(it.stage.pepd()?.daemon()? != daemon, "the same process");
        for pair in &pairs {
            pair.exchange(100_000)?;
        }
    }
    assert_eq!(it.stage.pepd()?.process().pid(), keeper);
    ensure!(it.stage.world.probe(Family::V4)?.1, "not split");
    it.stage.pepd()?.dies(Signal::SIGKILL)?;
    for pair in &pairs {
        pair.exchange(100_000)?;
    }
    it.stage.finish()
}

#[test]
fn where_it_cannot_the_old_one_goes_on() -> Result<()> {
    require!(root);
    let mut it = Installed::start()?;
    let pair = it.stage.world.pair(Family::V4)?;
    // One that refuses, that crashes at once, that hangs with what it has started, that does nothing and says
    // that all is well.
    let started = it.directory.path().join("started");
    let hangs = format!("sleep 1000 & echo $! > {}; wait", started.display());
    for body in ["exit 78", "kill -SEGV $$", &hangs, "echo all is well"] {
        it.put_script(body)?;
        let refused = it.upgrade()?;
        ensure!(refused.status.code() == Some(69), "{body}: {refused:?}");
        let said = refused
            .stderr
            .to_lowercase()
            .contains("the old one goes on");
        ensure!(said, "{body}: {refused:?}");
        pair.exchange(10_000)?;
    }
    let started = fs::read_to_string(started)?;
    wait_until(LIMIT, "what hung has ended", || {
        !Path::new("/proc").join(started.trim()).exists()
    })?;
    // None.
    fs::remove_file(it.program())?;
    let missing = it.upgrade()?;
    ensure!(missing.status.code() == Some(69), "{missing:?}");
    pair.exchange(10_000)?;
    // One that is no program any more once it has answered: it is executed by nobody else.
    it.put_script(&format!(
        "{PEPD} \"$@\"; said=$?; : >empty; chmod 755 empty; mv empty {}; exit $said",
        it.program().display()
    ))?;
    let failed = it.upgrade()?;
    ensure!(failed.status.code() == Some(70), "{failed:?}");
    pair.exchange(10_000)?;
    fs::remove_file(it.program())?;
    // None, and nobody has asked.
    it.stage.pepd()?.signal(Signal::SIGUSR2)?;
    it.stage.pepd()?.says("READY=1")?;
    pair.exchange(10_000)?;
    await_line(&it.stage, "an upgrade failed")?;
    it.stage.finish()
}

/// Whoever may choose which program is asked gains nothing of root's by it.
#[test]
fn what_is_asked_has_nothing_of_whoever_asks() -> Result<()> {
    const SECRET: &str = "/etc/passwd";
    require!(root);
    let it = Installed::start()?;
    it.stage.world.pair(Family::V4)?.exchange(10_000)?;
    let found = it.directory.path().join("found");
    it.put_script(&format!(
        "{{ pwd; tr '\\0' '\\n' </proc/$$/environ; cut -d' ' -f6 /proc/$$/stat; echo $$; ls -l /proc/$$/fd; }} >{}",
        found.display()
    ))?;
    let secret = fs::File::open(SECRET)?;
    fcntl(&secret, FcntlArg::F_SETFD(FdFlag::empty()))?;
    let mut command = Command::new(PEPD);
    command.env("SECRET", "x").args(["upgrade", "--socket"]);
    let refused = run(command.arg(it.stage.world.admin_socket()), LIMIT)?;
    ensure!(refused.status.code() == Some(69), "{refused:?}");
    let found = fs::read_to_string(found)?;
    let mut lines = found.lines();
    ensure!(lines.next() == Some("/"), "{found}");
    ensure!(!found.contains("SECRET"), "{found}");
    let lines: Vec<_> = lines.skip_while(|line| line.contains('=')).collect();
    // Its session is its own, and so are its descriptors, whatever their numbers: a shell has its script, and one for what
    // it writes to.
    ensure!(lines[0] == lines[1], "{found}");
    ensure!(
        lines.len() > 4 && !lines.iter().any(|line| line.ends_with(SECRET)),
        "{found}"
    );
    it.stage.finish()
}

/// Nothing is upgraded that ends, and nobody waits for it.
#[test]
fn where_it_drains_nothing_happens() -> Result<()> {
    require!(root);
    let mut it =
        Installed::start_with(&World::config().replace("drain = \"5s\"", "drain = \"10min\""))?;
    let pair = it.stage.world.pair(Family::V4)?;
    let daemon = it.stage.pepd()?.daemon()?;
    it.stage.pepd()?.signal(Signal::SIGTERM)?;
    it.stage.pepd()?.says("STOPPING=1")?;
    let refused = it.upgrade()?;
    ensure!(refused.status.code() == Some(69), "{refused:?}");
    ensure!(refused.stderr.contains("is ending"), "{refused:?}");
    // Nor where nobody has asked before.
    it.stage.pepd()?.signal(Signal::SIGUSR2)?;
    await_line(&it.stage, "asked for an upgrade, and does none")?;
    pair.exchange(10_000)?;
    assert_eq!(it.stage.pepd()?.daemon()?, daemon);
    drop(pair);
    it.stage.finish()
}

/// The program was moved away, and another one put where it was: what is asked, and executed, is neither.
#[test]
fn where_it_was_moved_away_nothing_happens() -> Result<()> {
    require!(root);
    let mut it = Installed::start()?;
    let pair = it.stage.world.pair(Family::V4)?;
    let moved = it.directory.path().join("pepd.old");
    fs::rename(it.program(), &moved)?;
    it.put_script("exit 1")?;
    let daemon = it.stage.pepd()?.daemon()?;
    let refused = it.upgrade()?;
    ensure!(refused.status.code() == Some(69), "{refused:?}");
    let said = refused
        .stderr
        .contains("pepd.old is the very file that runs");
    ensure!(said, "{refused:?}");
    assert_eq!(it.stage.pepd()?.daemon()?, daemon);
    // Nobody has asked: then, too, it is the file that counts.
    it.stage.pepd()?.signal(Signal::SIGUSR2)?;
    it.stage.pepd()?.says("READY=1")?;
    pair.exchange(10_000)?;
    // As the message says.
    it.put(Path::new(PEPD))?;
    fs::rename(it.program(), &moved)?;
    let said = it.upgrade()?.success()?;
    ensure!(said.contains("upgraded: 1 connections went on"), "{said}");
    pair.exchange(10_000)?;
    it.stage.finish()
}

/// A program that does not understand the configuration in force, and whose daemon ends before it goes on
/// with anything.
#[test]
fn where_the_daemon_ends_at_once_connections_go_on() -> Result<()> {
    require!(root);
    let it = Installed::start()?;
    let pair = it.stage.world.pair(Family::V4)?;
    let broken = it.directory.path().join("broken");
    install(Path::new(PEPD), &broken)?;
    let program = replace_all(&fs::read(PEPD)?, b"congestion", b"congestiom");
    fs::write(&broken, program.context("there is no such key in it")?)?;
    it.put(&broken)?;
    let failed = it.upgrade()?;
    ensure!(failed.status.code() == Some(70), "{failed:?}");
    let said = failed.stderr.contains("the old program goes on");
    ensure!(said, "{failed:?}");
    pair.exchange(100_000)?;
    await_line(&it.stage, "this one goes on connections=1")?;
    it.stage.finish()
}

/// Replaces what is as long; none where it is not there.
fn replace_all(bytes: &[u8], what: &[u8], by: &[u8]) -> Option<Vec<u8>> {
    let mut replaced = bytes.to_vec();
    let is_it = |at: &usize| bytes[*at..].starts_with(what);
    let places: Vec<usize> = (0..bytes.len()).filter(is_it).collect();
    for &at in &places {
        replaced[at..at + what.len()].copy_from_slice(by);
    }
    (!places.is_empty()).then_some(replaced)
}

/// A program whose daemon does not come up, since nft does not understand its rules: the keeper becomes
/// the one before again.
#[test]
fn where_no_daemon_comes_up_the_old_one_goes_on() -> Result<()> {
    require!(root);
    let mut it = Installed::start()?;
    let pairs = [Family::V4, Family::V6].map(|family| it.stage.world.pair(family));
    let pairs = pairs.into_iter().collect::<Result<Vec<_>>>()?;
    let keeper = it.stage.pepd()?.process().pid();
    let broken = it.directory.path().join("broken");
    install(Path::new(PEPD), &broken)?;
    let program = replace_all(&fs::read(PEPD)?, b"prerouting", b"nowhere...");
    fs::write(
        &broken,
        program.context("its rules are not in the program")?,
    )?;
    it.put(&broken)?;
    let failed = it.upgrade()?;
    ensure!(failed.status.code() == Some(70), "{failed:?}");
    let said = failed.stderr.contains("the old program goes on");
    ensure!(said, "{failed:?}");
    for pair in &pairs {
        pair.exchange(100_000)?;
    }
    ensure!(it.stage.world.probe(Family::V4)?.1, "not split");
    assert_eq!(it.stage.pepd()?.process().pid(), keeper);
    // And is as good as before.
    it.stage.pepd()?.dies(Signal::SIGKILL)?;
    for pair in &pairs {
        pair.exchange(100_000)?;
    }
    it.put(Path::new(PEPD))?;
    let said = it.upgrade()?.success()?;
    ensure!(said.contains("upgraded: 2 connections went on"), "{said}");
    it.stage.finish()
}
