//! `pepd top` on a terminal that goes, or that waits for half a key.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

use anyhow::{Result, ensure};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::Signal;
use pepd_testbed::{Family, Process, Stage, require, wait_until};
use rstest::rstest;

use super::place::Place;
use crate::harness::{LIMIT, PEPD};

/// A terminal that is nobody's controlling one: its end comes without SIGHUP.
struct Terminal {
    master: PtyMaster,
    name: String,
    /// Its other end, without which reading fails where no program has it open.
    end: File,
}

impl Terminal {
    fn new() -> Result<Self> {
        // What other tests start at the same time must not keep it open.
        let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname_r(&master)?;
        let flags = OFlag::O_NOCTTY.bits();
        let end = File::options().read(true).custom_flags(flags).open(&name)?;
        Ok(Self { master, name, end })
    }

    /// Runs `pepd top` on it until it has taken the screen.
    fn top(&mut self, place: &Place) -> Result<Process> {
        const START: &str =
            r#"stty rows 24 cols 80 <"$2" && exec "$0" top --socket "$1" <"$2" >"$2" 2>&1"#;
        let mut shell = Command::new("sh");
        shell
            .args(["-c", START, PEPD])
            .arg(place.socket())
            .arg(&self.name);
        let top = Process::spawn(&mut shell)?;
        let mut said = Vec::new();
        let mut part = [0; 4096];
        while !String::from_utf8_lossy(&said).contains("\u{1b}[?1049h") {
            let mut inputs = [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
            ensure!(
                poll(&mut inputs, PollTimeout::try_from(LIMIT)?)? > 0,
                "no screen, but {}",
                String::from_utf8_lossy(&said)
            );
            let length = self.master.read(&mut part)?;
            said.extend_from_slice(&part[..length]);
        }
        Ok(top)
    }
}

/// Runs a daemon, and `pepd top` on a terminal that shows it.
fn shown() -> Result<(Place, Stage, Terminal, Process)> {
    let place = Place::new()?;
    let stage = Stage::with_config(PEPD, &place.config())?;
    stage.world.pair(Family::V4)?.exchange(10_000)?;
    let mut terminal = Terminal::new()?;
    let top = terminal.top(&place)?;
    Ok((place, stage, terminal, top))
}

/// Waits for its end, which is neither by a signal nor by a panic.
fn ends_by_itself(mut top: Process) -> Result<()> {
    let status = top.wait(LIMIT)?;
    assert!(matches!(status.code(), Some(0 | 69)), "{status}");
    Ok(())
}

#[test]
fn top_ends_with_its_terminal() -> Result<()> {
    require!(root, program("stty"));
    let (_place, stage, terminal, top) = shown()?;
    drop(terminal);
    ends_by_itself(top)?;
    stage.finish()
}

/// An escape sequence of which the rest does not come, and then a signal.
#[rstest]
fn a_signal_ends_top_in_the_middle_of_a_key(
    #[values(Signal::SIGTERM, Signal::SIGHUP)] signal: Signal,
) -> Result<()> {
    require!(root, program("stty"));
    let (_place, stage, mut terminal, top) = shown()?;
    terminal.master.write_all(b"\x1b[")?;
    wait_until(LIMIT, "half a key is taken", || {
        let mut inputs = [PollFd::new(terminal.end.as_fd(), PollFlags::POLLIN)];
        poll(&mut inputs, PollTimeout::ZERO).unwrap() == 0
    })?;
    top.signal(signal)?;
    ends_by_itself(top)?;
    stage.finish()
}
