//! Watching the daemon's process: its end, whether it still does anything, and signals for it.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use pepd_sys::process::wait_for_signal;

use super::SIGNALS;
use super::board::{Board, Stage};
use super::upgrade::Former;
use crate::exit::{Failure, Result};

/// How long the keeper waits for a signal before it looks whether the daemon does anything.
const TICK: Duration = Duration::from_secs(1);

/// The looks in a row that find nothing done: the daemon hangs. It shows a sign of life each second,
/// as long as all its workers do; and systemd, which counts the seconds too and ends both, has 30.
const MOST_SILENT: u32 = 10;

/// The looks within which the first daemon of another program has to be up.
const LONGEST_TRIAL: u32 = 60;

/// The time that what the daemon had started may take to end once it is killed.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// How the daemon's process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// By itself, with this code.
    Exited(u8),
    /// By a signal; and whether that is one that the keeper had passed on.
    Signalled(Signal, bool),
    /// By the keeper: it did nothing any more.
    Hung,
    /// By the keeper, which is to become another program.
    Upgrade,
}

/// Waits until the process has ended; passes on what an operator sends, and kills it if it hangs.
///
/// Once a daemon is up, the program before this one is not needed any more.
///
/// What the daemon was `started` with is kept as soon as it has read it: later it is a process with less
/// privileges, whose word does not count for what the next one does with its own.
pub(super) fn watch(
    child: Pid,
    board: &Board,
    former: &mut Option<Former>,
    started: &mut Option<String>,
) -> Result<Ended> {
    let mut silence = Silence::new(board);
    let mut asked = None;
    let mut killed = None;
    loop {
        let signal = wait(TICK)?;
        if started.is_none() {
            *started = board.started();
        }
        match signal {
            Some(Signal::SIGCHLD) => {}
            Some(Signal::SIGUSR2) if !may_be_replaced(board) => {}
            Some(Signal::SIGUSR2) => {
                // It may not be the keeper's to kill.
                if kill(child, Signal::SIGKILL).is_err() {
                    board.ask_to_yield();
                }
                killed = Some(Ended::Upgrade);
            }
            Some(signal) => {
                // It may just have ended, which is seen below.
                let sent = kill(child, signal).is_ok();
                if signal != Signal::SIGHUP {
                    asked = Some(signal);
                    // A keeper that has not the privilege: the daemon looks there.
                    if !sent {
                        board.ask_to_end();
                    }
                }
            }
            None if silence.is_too_long(board, former.is_some())
                && kill(child, Signal::SIGKILL).is_ok() =>
            {
                killed = killed.or(Some(Ended::Hung));
            }
            None => {}
        }
        if former.is_some() && board.stage() != Stage::Starting {
            *former = None;
        }
        let ended = reap(Some(child));
        if ended.is_some() && asked.is_some() {
            // Whoever follows is to end as well.
            board.ask_to_end();
        }
        match (ended, killed) {
            (Some(_), Some(killed)) => return Ok(killed),
            (Some(WaitStatus::Exited(_, code)), None) => {
                return Ok(Ended::Exited(u8::try_from(code).unwrap_or(u8::MAX)));
            }
            (Some(WaitStatus::Signaled(_, signal, _)), None) => {
                return Ok(Ended::Signalled(signal, asked == Some(signal)));
            }
            _ => {}
        }
    }
}

/// Only a daemon that serves is ended for an upgrade.
fn may_be_replaced(board: &Board) -> bool {
    board.stage() == Stage::Running && !board.is_asked_to_end()
}

/// Kills what the daemon has started and that has not ended with it, and waits for its end: it would
/// change what the next one changes.
pub(super) fn end_the_rest() -> Result {
    let mut waited = Duration::ZERO;
    while waited < LAST_WAIT {
        let rest = children();
        if rest.is_empty() {
            break;
        }
        for child in rest {
            let _ = kill(child, Signal::SIGKILL);
        }
        let step = Duration::from_millis(10);
        pause(step)?;
        waited += step;
        reap(None);
    }
    Ok(())
}

/// Waits, and hears no signal but the end of a child: what else comes stays pending.
pub(super) fn pause(time: Duration) -> Result {
    wait_for_signal(&[Signal::SIGCHLD as i32], time)
        .map(drop)
        .map_err(|error| Failure::internal("wait", error))
}

fn wait(time: Duration) -> Result<Option<Signal>> {
    let signals = SIGNALS.map(|signal| signal as i32);
    let signal = wait_for_signal(&signals, time)
        .map_err(|error| Failure::internal("wait for a signal", error))?;
    Ok(signal.and_then(|signal| Signal::try_from(signal).ok()))
}

/// Takes note of all children that have ended, and gives how the one asked for has.
fn reap(wanted: Option<Pid>) -> Option<WaitStatus> {
    let mut found = None;
    loop {
        match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return found,
            Ok(status) if status.pid() == wanted => found = Some(status),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return found,
        }
    }
}

/// Returns this process's children (proc_tid_children(5)); none where the kernel does not say.
fn children() -> Vec<Pid> {
    let listed = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    let pids = listed.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.map(Pid::from_raw).collect()
}

/// How long the daemon has shown no sign of life.
struct Silence {
    last: u64,
    looks: u32,
}

impl Silence {
    fn new(board: &Board) -> Self {
        Self {
            last: board.beats(),
            looks: 0,
        }
    }

    /// Looks once more. Only a daemon that is up shows signs of life, and the first of another program,
    /// which is `on_trial`, has to be up in time; and it is the keeper's own looks that count, not the
    /// clock: both may have been stopped for a while.
    fn is_too_long(&mut self, board: &Board, on_trial: bool) -> bool {
        let beats = board.beats();
        let most = match board.stage() {
            Stage::Running => MOST_SILENT,
            Stage::Starting if on_trial => LONGEST_TRIAL,
            Stage::Starting | Stage::Ending => u32::MAX,
        };
        if beats != self.last {
            (self.last, self.looks) = (beats, 0);
            return false;
        }
        self.looks = self.looks.saturating_add(1);
        self.looks >= most
    }
}
