//! The keeper: the process that systemd started, which makes the daemon and, when that dies, makes
//! another one. It has one thread, reads nothing that comes from outside, and does little.
//!
//! Both have one table of descriptors (`pepd-sys`, `process.rs`): whatever the daemon has open stays
//! open when it dies, connections with it. What the next one needs to go on with them is on the
//! [`board`], memory that both have. How often that is done is [`deaths`]' to say.

pub mod board;
mod deaths;
mod upgrade;
mod watch;

use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::prctl::{set_child_subreaper, set_name, set_pdeathsig};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::unistd::{Pid, getpid, getppid, setpgid};
use pepd_sys::process::clone_sharing_descriptors;

use self::board::Stage;
pub use self::deaths::Death;
use self::deaths::{Deaths, Verdict};
pub use self::upgrade::path_of_now;
use self::upgrade::{Begun, Former};
use self::watch::{Ended, watch};
use crate::cli::RunArgs;
use crate::commands;
use crate::daemon::resources::raise_descriptor_limit;
use crate::exit::{Failure, Result};
use crate::ui::output::tell;

/// The signals that the keeper waits for: those of an operator, which it passes on, but for that of
/// an upgrade; and that of its child's end.
const SIGNALS: [Signal; 5] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGUSR2,
    Signal::SIGCHLD,
];

/// The pause before it is tried again to make the daemon's process.
const PAUSE: Duration = Duration::from_millis(200);

/// How often that is tried where the kernel has no process or memory for it: for a minute.
const MOST_ATTEMPTS: u32 = 300;

/// Runs the daemon in a process of its own until that ends, and again where it dies.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let file = &args.file;
    // Its table of descriptors is the daemon's as well: with a lower limit than that one's it could open
    // nothing any more, once there are as many connections.
    raise_descriptor_limit()?;
    let Begun {
        board,
        mut former,
        mut started,
    } = upgrade::take_over(args)?;
    // Of a program that was executed by its descriptor the kernel has that number for a name.
    set_name(c"pepd").map_err(|error| Failure::internal("name the process", error))?;
    let usual_signals = usual_signals(args.board.is_some())?;
    // What the daemon has started, and cannot see the end of, is the keeper's to end.
    set_child_subreaper(true).map_err(|error| Failure::internal("adopt processes", error))?;
    let keeper = getpid();
    let mut deaths = Deaths::after(args.board.is_some());
    loop {
        board.begin();
        let was_up = deaths.was_up(Stage::Starting);
        let daemon = || {
            begin_child(keeper, &usual_signals)?;
            let before = Before {
                keeper,
                kept: former.as_ref().map(Former::as_fd),
                started: started.clone(),
            };
            commands::run::run(file, board.clone(), before)
        };
        let child = make_child(was_up, daemon)?;
        let ended = watch(child, &board, was_up, &mut former, &mut started)?;
        let stage = board.stage();
        let death = match judge(ended, stage, deaths.was_up(stage)) {
            Judged::Over(code) => return Ok(ExitCode::from(code)),
            Judged::Ended(signal) => return Ok(end_by(signal)),
            Judged::Died(death) => death,
        };
        watch::end_the_rest()?;
        if let Some(former) = &former {
            // It returns where that program is not to be had any more: this one goes on.
            board.died(Death::UpgradeFailed(death.number()));
            let _ = former.become_again(file, &board, started.as_deref());
            block_signals()?;
        }
        if death == Death::Upgrade {
            board.died(death);
            let error = upgrade::become_program(file, &board, started.as_deref());
            block_signals()?;
            board.died(Death::UpgradeFailed(error.raw_os_error().unwrap_or(0)));
            continue;
        }
        board.died(death);
        let verdict = deaths.note(death, stage, pepd_sys::clock::monotonic());
        board.set_recent_deaths(deaths.recent());
        match verdict {
            Verdict::Again => {}
            Verdict::AgainLater(pause) => watch::pause(pause)?,
            Verdict::GiveUp => {
                return Err(Failure::internal(
                    "the daemon has died again and again",
                    format!("{death}; connections are reset, and new ones routed"),
                ));
            }
        }
    }
}

/// What a daemon's process has of the keeper that has made it.
#[derive(Debug)]
pub struct Before {
    /// The keeper.
    pub keeper: Pid,
    /// What is the keeper's own, and stays open.
    pub kept: Option<BorrowedFd<'static>>,
    /// The text of the file that the first daemon was started with; none for that one.
    pub started: Option<String>,
}

/// What the end of a daemon means.
enum Judged {
    /// It is over, with this exit code.
    Over(u8),
    /// It was asked to end by this signal before it could hear of it, and did.
    Ended(Signal),
    /// Its connections are to live on.
    Died(Death),
}

fn judge(ended: Ended, stage: Stage, was_up: bool) -> Judged {
    match (ended, stage) {
        (Ended::Upgrade, _) => Judged::Died(Death::Upgrade),
        (Ended::Exited(0), _) => Judged::Over(0),
        (Ended::Exited(code), Stage::Starting) if !was_up => Judged::Over(code),
        (Ended::Exited(code), Stage::Ending) => Judged::Over(code),
        (Ended::Exited(code), _) => Judged::Died(Death::Exit(code)),
        (Ended::Hung, _) => Judged::Died(Death::Hang),
        (Ended::AsAsked(signal), Stage::Starting) if !was_up => Judged::Ended(signal),
        (Ended::AsAsked(signal), _) => Judged::Died(Death::Signal(signal as i32)),
        (Ended::Signalled(number), _) => Judged::Died(Death::Signal(number)),
    }
}

/// Makes the daemon's process. Where connections wait for it, a shortage is not the end of them: it may
/// pass.
fn make_child(connections_wait: bool, daemon: impl Fn() -> Result) -> Result<Pid> {
    let mut attempts = 1;
    loop {
        match clone_sharing_descriptors(|| {
            daemon().map_or_else(|failure| tell(&failure).into(), |()| 0)
        }) {
            Ok(child) => return Ok(Pid::from_raw(child)),
            Err(_) if connections_wait && attempts < MOST_ATTEMPTS => {}
            Err(error) => return Err(Failure::internal("start the daemon's process", error)),
        }
        attempts += 1;
        watch::pause(PAUSE)?;
    }
}

/// Blocks the signals that the keeper waits for; gives the mask that it had.
fn block_signals() -> Result<SigSet> {
    let mut before = SigSet::empty();
    let waited: SigSet = SIGNALS.into_iter().collect();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&waited), Some(&mut before))
        .map_err(|error| Failure::internal("block signals", error))?;
    Ok(before)
}

/// Blocks them, and gives the mask that the daemon is to have. The program `before` this one had blocked
/// them as well, and a mask outlives execve(2).
fn usual_signals(before: bool) -> Result<SigSet> {
    let mut usual = block_signals()?;
    for signal in SIGNALS.into_iter().filter(|_| before) {
        usual.remove(signal);
    }
    Ok(usual)
}

/// Makes a new process the daemon's: with the usual signals, but for that of a reload, which waits until it
/// is heard ([`hear_hangup`]) and would end the process before; not in the group that a terminal's signals go
/// to, which come by the keeper, and not without it.
fn begin_child(keeper: Pid, usual_signals: &SigSet) -> Result {
    let mut signals = *usual_signals;
    signals.add(Signal::SIGHUP);
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&signals), None)
        .map_err(|error| Failure::internal("unblock signals", error))?;
    setpgid(Pid::from_raw(0), Pid::from_raw(0))
        .map_err(|error| Failure::internal("make a process group", error))?;
    die_first();
    end_with(keeper)
}

/// Has the daemon's process, whose main thread this is, take the signal of a reload from now on.
pub fn hear_hangup() -> nix::Result<()> {
    let hangup: SigSet = [Signal::SIGHUP].into_iter().collect();
    sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&hangup), None)
}

/// Has the kernel, where memory runs out, end this process rather than the keeper, without which no
/// other could go on (`oom_score_adj` of proc_pid_oom_score_adj(5)).
fn die_first() {
    const FILE: &str = "/proc/self/oom_score_adj";
    const MORE: i32 = 100;
    const MOST: i32 = 1000;
    let own = std::fs::read_to_string(FILE).unwrap_or_default();
    let own: i32 = own.trim().parse().unwrap_or(0);
    // Where it is not allowed the kernel takes the larger one, which is this one as well.
    let _ = std::fs::write(FILE, (own + MORE).min(MOST).to_string());
}

/// Has this process end when its keeper does. What the kernel takes back when a process becomes
/// another user (commit_creds, kernel/cred.c).
pub fn end_with(keeper: Pid) -> Result {
    set_pdeathsig(Signal::SIGKILL)
        .map_err(|error| Failure::internal("end with the keeper", error))?;
    if getppid() == keeper {
        return Ok(());
    }
    Err(Failure::temporary("its keeper has ended"))
}

/// Ends as a signal ends a process, so that whoever waits for this one sees which it was.
fn end_by(signal: Signal) -> ExitCode {
    let one: SigSet = [signal].into_iter().collect();
    // It is pending, and so ends the process, once it is not blocked any more.
    let _ = kill(getpid(), signal);
    let _ = sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&one), None);
    ExitCode::FAILURE
}
