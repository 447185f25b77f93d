//! Watching the daemon's process: its end, whether it still does anything, and signals for it.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pepd_sys::process::wait_for_signal;
use rustix::io::Errno;
use rustix::process::{WaitOptions, WaitStatus, wait as wait_for_end};

use super::SIGNALS;
use super::board::{Board, Stage};
use super::upgrade::Former;
use crate::exit::{Failure, Result};
use crate::ui::output::eprint_in_time;

/// How long the keeper waits for a signal before it looks whether the daemon does anything.
const TICK: Duration = Duration::from_secs(1);

/// The looks in a row that find nothing done: the daemon hangs. It shows a sign of life each second,
/// as long as all its workers do; and systemd, which counts the seconds too and ends both, has 30.
const MOST_SILENT: u32 = 10;

/// For how long at least a daemon has done nothing that is said to hang.
pub(super) const HUNG_FOR: Duration = Duration::from_secs(TICK.as_secs() * MOST_SILENT as u64);

/// The same of one that goes on with connections and is not up yet. It shows signs of life as soon as its
/// workers go on; before that it asks the host for things, which may take a while. Several of that kind in a
/// row are no five deaths in a minute.
const MOST_SILENT_BEFORE: u32 = 20;

/// The looks within which the first daemon of another program has to be up.
const LONGEST_TRIAL: u32 = 60;

/// The time that what the daemon had started may take to end once it is killed.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// How the daemon's process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// By itself, with this code.
    Exited(u8),
    /// By a signal of this number, which may be a real-time signal's (signal(7)).
    Signalled(i32),
    /// By a signal that the keeper had passed on.
    AsAsked(Signal),
    /// By the keeper: it did nothing any more.
    Hung,
    /// By the keeper, which is to become another program.
    Upgrade,
}

/// Waits until the process has ended; passes on what an operator sends, and kills it if it hangs.
///
/// Once a daemon is up, the program before this one is not needed any more; `was_up` says whether any has
/// been, of either.
///
/// What the daemon was `started` with is kept as soon as it has read it: later it is a process with less
/// privileges, whose word does not count for what the next one does with its own.
pub(super) fn watch(
    child: Pid,
    board: &Board,
    was_up: bool,
    former: &mut Option<Former>,
    started: &mut Option<String>,
) -> Result<Ended> {
    let mut silence = Silence::new(board, was_up);
    let mut asked = None;
    let mut killed = None;
    loop {
        let signal = wait(TICK)?;
        if started.is_none() {
            *started = board.started();
        }
        match signal {
            Some(Signal::SIGCHLD) => {}
            Some(Signal::SIGUSR2) if !may_be_replaced(board) => {
                eprint_in_time(
                    "pepd: asked for an upgrade, and does none: a daemon is just starting, or ends",
                );
            }
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
            None if silence.is_too_long(board, former.is_some(), child)
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
        if let Some(status) = ended {
            return Ok(killed.unwrap_or_else(|| how(status, asked)));
        }
    }
}

/// Says how a process has ended that was `asked` to by this signal.
fn how(status: WaitStatus, asked: Option<Signal>) -> Ended {
    match (status.terminating_signal(), asked) {
        (Some(number), Some(asked)) if number == asked as i32 => Ended::AsAsked(asked),
        (Some(number), _) => Ended::Signalled(number),
        (None, _) => {
            let code = status
                .exit_status()
                .and_then(|code| u8::try_from(code).ok());
            Ended::Exited(code.unwrap_or(u8::MAX))
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
        match wait_for_end(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                if wanted.is_some_and(|wanted| wanted.as_raw() == pid.as_raw_nonzero().get()) {
                    found = Some(status);
                }
            }
            Err(Errno::INTR) => {}
            // None has ended, or there is none.
            Ok(None) | Err(_) => return found,
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
    /// Whether any daemon has been up, whose connections wait.
    was_up: bool,
}

impl Silence {
    fn new(board: &Board, was_up: bool) -> Self {
        Self {
            last: board.beats(),
            looks: 0,
            was_up,
        }
    }

    /// Looks once more. The first daemon of another program, which is `on_trial`, has to be up in time; that
    /// of one without connections may take as long as it needs. It is the keeper's own looks that count,
    /// not the clock: both may have been stopped for a while. Nor does a look that finds it waiting in the kernel.
    fn is_too_long(&mut self, board: &Board, on_trial: bool, child: Pid) -> bool {
        let beats = board.beats();
        let is_starting = board.stage() == Stage::Starting;
        let most = match board.stage() {
            Stage::Running | Stage::Ending => MOST_SILENT,
            Stage::Starting if on_trial => LONGEST_TRIAL,
            Stage::Starting if self.was_up => MOST_SILENT_BEFORE,
            Stage::Starting => u32::MAX,
        };
        // Signs of life are no substitute for being up in time.
        if beats != self.last && !(is_starting && on_trial) {
            (self.last, self.looks) = (beats, 0);
            return false;
        }
        if !(is_starting && on_trial) && waits_in_the_kernel(child) {
            return false;
        }
        self.looks = self.looks.saturating_add(1);
        self.looks >= most
    }
}

/// Returns whether a thread that a sign of life needs waits for what only the kernel ends: somebody's firewall is being loaded,
/// or a kernel that is short of time keeps all who change something waiting for each other. Another process would wait as
/// well, and meanwhile nobody would pass on what the other threads still do.
fn waits_in_the_kernel(process: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    let mut threads = threads.into_iter().flatten().flatten();
    threads.any(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat"));
        stat.is_ok_and(|stat| is_waiting(&stat, process))
    })
}

/// The same of one thread: the main one, or a worker, in state `D` (proc_pid_stat(5)). Others wait for files, which is what
/// they are there for.
fn is_waiting(stat: &str, process: Pid) -> bool {
    let parts = stat.split_once(" (").and_then(|(id, rest)| {
        // A name may have any letter in it.
        let (name, state) = rest.rsplit_once(") ")?;
        Some((id, name, state))
    });
    parts.is_some_and(|(id, name, state)| {
        let is_needed = id == process.to_string() || name.starts_with("worker-");
        is_needed && state.starts_with('D')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_in_the_kernel_is_no_thread_that_waits_for_a_file() {
        let process = Pid::from_raw(814);
        for (stat, expected) in [
            ("814 (pepd) D 1 814 814 0", true),
            ("814 (pepd) S 1 814 814 0", false),
            ("820 (worker-0) D 1 814 814 0", true),
            ("820 (worker-0) R 1 814 814 0", false),
            ("821 (wait) D 1 814 814 0", false),
            ("814 (a) D (b) S 1 814 814 0", false),
            ("", false),
        ] {
            assert_eq!(is_waiting(stat, process), expected, "{stat}");
        }
    }
}
