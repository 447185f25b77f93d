//! What hangs, a program or a file, holds nothing up: the gate is renewed, signals and questions
//! are answered, and the wait for it ends.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nix::fcntl::AT_FDCWD;
use nix::poll::PollFlags;
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use pepd_testbed::traffic::await_event;
use pepd_testbed::{Family, Finished, Pepd, Process, World, install, require, run, wait_until};
use rstest::rstest;
use tempfile::TempDir;

use crate::harness::{LIMIT, PEPD};

/// An `nft` that is the real one until it is told to hang.
struct FakeNft {
    directory: TempDir,
    real_path: String,
    /// The words of the program that hangs, as no other has them.
    sleep: String,
}

impl FakeNft {
    fn new() -> Result<Self> {
        let directory = TempDir::with_prefix("pepd-nft-")?;
        let real_path = std::env::var("PATH")?;
        let number: u32 = directory
            .path()
            .as_os_str()
            .as_encoded_bytes()
            .iter()
            .fold(std::process::id(), |sum, byte| {
                sum.wrapping_mul(31).wrapping_add(u32::from(*byte))
            });
        let fake = Self {
            sleep: format!("{}", 1_000_000_000_u64 + u64::from(number)),
            directory,
            real_path,
        };
        let script = format!(
            "#!/bin/sh\nPATH={}\n\
             if [ -e {} ]; then sleep {}; fi\nexec nft \"$@\"\n",
            fake.real_path,
            fake.path("hang").display(),
            fake.sleep,
        );
        // The daemon is another user.
        fs::set_permissions(fake.directory.path(), fs::Permissions::from_mode(0o755))?;
        fs::write(fake.path("script"), script)?;
        install(&fake.path("script"), &fake.path("nft"))?;
        Ok(fake)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What precedes the daemon's own words so that it finds this `nft`.
    fn search(&self) -> String {
        format!(
            "PATH={}:{}",
            self.directory.path().display(),
            self.real_path
        )
    }

    fn hang(&self) -> Result<()> {
        fs::write(self.path("hang"), "")?;
        self.await_hanging()
    }

    /// The daemon may not write anything that would say so.
    fn await_hanging(&self) -> Result<()> {
        wait_until(LIMIT, "it hangs", || self.is_left())
    }

    fn mend(&self) -> Result<()> {
        fs::remove_file(self.path("hang"))?;
        Ok(())
    }

    /// Returns whether one that hung is still there.
    fn is_left(&self) -> bool {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut words = processes.map(|process| fs::read(process.path().join("cmdline")));
        words.any(|words| words.is_ok_and(|words| contains(&words, self.sleep.as_bytes())))
    }

    fn start(&self, world: &World) -> Result<Pepd> {
        Pepd::builder(PEPD)
            .wrapper(&["env", &self.search()])
            .start(world.hb(), &self.config())
    }

    fn config(&self) -> String {
        let socket = self.path("admin.sock");
        format!(
            "{}\n[admin]\nsocket = \"{}\"\n",
            World::config(),
            socket.display()
        )
    }

    fn ask(&self, word: &str) -> Result<Finished> {
        let mut command = Command::new(PEPD);
        let socket = self.path("admin.sock");
        run(command.args([word, "--socket"]).arg(socket), LIMIT)
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn split(world: &World) -> Result<bool> {
    Ok(world.probe(Family::V4)?.1)
}

#[test]
fn a_reload_with_an_nft_that_hangs_is_refused_and_the_next_one_is_not() -> Result<()> {
    require!(root, program("nft"));
    let (world, nft) = (World::standard()?, FakeNft::new()?);
    let mut pepd = nft.start(&world)?;
    fs::write(nft.path("hang"), "")?;
    pepd.signal(Signal::SIGHUP)?;
    pepd.says("RELOADING=1")?;
    nft.await_hanging()?;
    let status = nft.ask("status")?.success()?;
    assert!(status.contains("a reload is under way"), "{status}");
    assert!(split(&world)?, "what was in force is");
    // It goes on being said that all is well, though the reload is not over.
    pepd.says("WATCHDOG=1")?;
    pepd.says("READY=1")?;
    wait_until(LIMIT, "the log says why", || {
        let log = pepd.log();
        log.contains("reload refused") && log.contains("did not end within 30 s and was killed")
    })?;
    let status = nft.ask("status")?.success()?;
    assert!(status.contains("the last reload was refused"), "{status}");
    assert!(split(&world)?);

    nft.mend()?;
    pepd.signal(Signal::SIGHUP)?;
    wait_until(LIMIT, "it is reloaded", || pepd.log().contains("reloaded"))?;
    wait_until(LIMIT, "nothing that hung is left", || !nft.is_left())?;
    let (status, log) = pepd.stop()?;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!world.kernel_state()?.contains("pepd"), "it cleaned up");
    Ok(())
}

/// It hangs in what the daemon does every few seconds, and goes on hanging to the end.
#[test]
fn sigterm_ends_a_daemon_whose_nft_hangs() -> Result<()> {
    require!(root, program("nft"));
    let (world, nft) = (World::standard()?, FakeNft::new()?);
    let pepd = nft.start(&world)?;
    nft.hang()?;
    assert!(split(&world)?, "the gate is still renewed");
    pepd.signal(Signal::SIGTERM)?;
    wait_until(LIMIT, "new connections are routed", || {
        split(&world).is_ok_and(|split| !split)
    })?;
    let (status, log) = pepd.wait()?;
    assert_eq!(status.code(), Some(75), "{log}");
    wait_until(LIMIT, "nothing that hung is left", || !nft.is_left())?;
    // What is left is said, does no harm, and is removed by what is said.
    assert!(log.contains("`pepd down` tries again"), "{log}");
    assert!(!split(&world)?);
    nft.mend()?;
    let file = nft.path("pepd.toml");
    fs::write(&file, nft.config())?;
    let mut down = world.hb().command(PEPD);
    let said = run(down.args(["down", "-c"]).arg(&file), LIMIT)?.success()?;
    assert!(said.contains("removed nft table inet pepd"), "{said}");
    assert!(!world.kernel_state()?.contains("pepd"));
    Ok(())
}

#[test]
fn sigterm_ends_a_daemon_whose_nft_hangs_at_the_start() -> Result<()> {
    require!(root, program("nft"));
    let (world, nft) = (World::standard()?, FakeNft::new()?);
    let file = nft.path("pepd.toml");
    fs::write(&file, nft.config())?;
    fs::write(nft.path("hang"), "")?;
    let mut command = world.hb().command("env");
    command
        .arg(nft.search())
        .args([PEPD, "run", "-c"])
        .arg(&file);
    let mut pepd = Process::spawn(&mut command)?;
    nft.await_hanging()?;
    pepd.signal(Signal::SIGTERM)?;
    let status = pepd.wait(LIMIT)?;
    assert_eq!(status.code(), Some(75), "{}", pepd.log());
    wait_until(LIMIT, "nothing that hung is left", || !nft.is_left())?;
    assert!(!world.kernel_state()?.contains("pepd"), "{}", pepd.log());
    Ok(())
}

#[test]
fn a_fifo_in_the_place_of_the_file_is_refused_and_signals_work() -> Result<()> {
    require!(root);
    let world = World::standard()?;
    let mut pepd = Pepd::start(PEPD, world.hb(), &World::config())?;
    fs::remove_file(pepd.config_file())?;
    mkfifo(&pepd.config_file(), Mode::S_IRUSR | Mode::S_IWUSR)?;
    pepd.signal(Signal::SIGHUP)?;
    pepd.says("RELOADING=1")?;
    pepd.says("READY=1")?;
    wait_until(LIMIT, "the log says why", || {
        let log = pepd.log();
        log.contains("reload refused") && log.contains("no regular file")
    })?;
    assert!(split(&world)?);
    let (status, log) = pepd.stop()?;
    assert_eq!(status.code(), Some(0), "{log}");
    Ok(())
}

/// The kernel asks this test before it opens the file for the daemon, and is not answered: as on a
/// mount whose server has gone.
#[test]
fn a_file_that_cannot_be_opened_in_time_is_given_up() -> Result<()> {
    require!(root);
    let world = World::standard()?;
    let mut pepd = Pepd::start(PEPD, world.hb(), &World::config())?;
    let asked = Fanotify::init(
        InitFlags::FAN_CLASS_CONTENT | InitFlags::FAN_CLOEXEC,
        EventFFlags::O_RDONLY,
    )
    .context("fanotify(7) with permission events")?;
    asked.mark(
        MarkFlags::FAN_MARK_ADD,
        MaskFlags::FAN_OPEN_PERM,
        AT_FDCWD,
        Some(pepd.config_file().as_path()),
    )?;
    pepd.signal(Signal::SIGHUP)?;
    assert!(
        await_event(&asked.as_fd(), PollFlags::POLLIN, LIMIT)?,
        "it reads"
    );
    assert!(split(&world)?, "what was in force is");
    pepd.says("READY=1")?;
    wait_until(LIMIT, "the log says why", || {
        pepd.log().contains("no answer within 10 s")
    })?;
    // The first attempt still waits, and there is no second one.
    pepd.signal(Signal::SIGHUP)?;
    wait_until(LIMIT, "it is refused at once", || {
        pepd.log().contains("still waits for its file system")
    })?;
    assert!(split(&world)?);
    let (status, log) = pepd.stop()?;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!world.kernel_state()?.contains("pepd"), "it cleaned up");
    Ok(())
}

#[rstest]
fn no_command_waits_for_a_fifo(
    #[values("check", "show", "doctor", "down", "run", "status")] command: &str,
) -> Result<()> {
    let directory = TempDir::new()?;
    let file = directory.path().join("pepd.toml");
    mkfifo(&file, Mode::S_IRUSR | Mode::S_IWUSR)?;
    let said = ask(command, &file)?;
    assert_eq!(said.status.code(), Some(78), "{said:?}");
    assert!(said.stderr.contains("no regular file"), "{said:?}");
    Ok(())
}

fn ask(command: &str, file: &Path) -> Result<Finished> {
    run(Command::new(PEPD).args([command, "-c"]).arg(file), LIMIT)
}
