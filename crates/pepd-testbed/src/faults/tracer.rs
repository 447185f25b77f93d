//! A process whose system calls are counted, and one of which fails: ptrace(2).
//!
//! All its threads are followed, the process that it makes as fork(2) does, and none of the programs
//! that it starts. The calls are counted
//! over all threads, so that a fault is one call and not one of each thread's.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::libc::{self, c_long};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::call::Call;
use super::fault::Fault;

/// The way in which the process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with an exit code.
    Code(i32),
    /// By a signal.
    Signal(Signal),
}

/// The calls that were made: for each kind, the parts of the scenario in which they were.
pub type Census = BTreeMap<&'static str, Vec<u8>>;

/// What the tracing thread and the scenario tell each other.
#[derive(Debug, Default)]
pub struct Shared {
    /// The part of the scenario that goes on, for the census.
    pub part: AtomicU8,
    /// The fault has been there.
    pub fired: AtomicBool,
    ended: Mutex<Option<Ended>>,
    census: Mutex<Census>,
    unknown: Mutex<Option<c_long>>,
}

impl Shared {
    /// Returns how the process has ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the calls that were counted.
    pub fn census(&self) -> Census {
        let census = self.census.lock();
        census.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of a call that is in no table.
    pub fn unknown(&self) -> Option<c_long> {
        *self.unknown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A traced process. Dropped, it is killed.
#[derive(Debug)]
pub struct Traced {
    pid: Pid,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Traced {
    /// Starts a program. `shell` runs `sh -ec` with a script that stops itself once and then
    /// becomes the program ([`STOP_THEN_RUN`]).
    ///
    /// # Errors
    /// Where it does not start, or may not be traced.
    pub fn start(mut shell: Command, fault: Option<Fault>, shared: Arc<Shared>) -> Result<Self> {
        let (told, told_pid) = std::sync::mpsc::channel();
        let its = Arc::clone(&shared);
        // Only the thread that traces may ask for anything, or wait.
        let thread = std::thread::spawn(move || {
            let child = shell.process_group(0).spawn()?;
            let tracer = Tracer::seize(&child, fault, Arc::clone(&its))?;
            let _ = told.send(tracer.pid);
            let ended = tracer.follow();
            let outcome = ended
                .as_ref()
                .copied()
                .unwrap_or(Ended::Signal(Signal::SIGKILL));
            *its.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            ended.map(drop)
        });
        match told_pid.recv() {
            Ok(pid) => Ok(Self {
                pid,
                shared,
                thread: Some(thread),
            }),
            Err(_) => match thread.join() {
                Ok(Err(error)) => Err(error.context("tracing did not begin")),
                _ => bail!("tracing did not begin"),
            },
        }
    }

    /// Returns what is known of it.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        ensure!(self.shared.ended().is_none(), "it has ended");
        kill(self.pid, signal).with_context(|| format!("{signal} to {}", self.pid))
    }

    /// Returns what made tracing itself fail, once the process has ended.
    ///
    /// # Errors
    /// That.
    pub fn finish(mut self) -> Result<()> {
        let thread = self.thread.take().context("it was finished before")?;
        thread.join().ok().context("the tracer panicked")?
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            if self.shared.ended().is_none() {
                let _ = kill(self.pid, Signal::SIGKILL);
            }
            let _ = thread.join();
        }
    }
}

/// Stops the shell, and has it become the program that its arguments name.
pub const STOP_THEN_RUN: &str = r#"kill -STOP $$; exec "$@""#;

struct Tracer {
    pid: Pid,
    fault: Option<Fault>,
    shared: Arc<Shared>,
    /// The call that each thread is in.
    calls: HashMap<Pid, InCall>,
    /// The shell has become the program, and the loader has made place for main().
    begun: Begun,
    counts: HashMap<c_long, u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Begun {
    Shell,
    Loader,
    Program,
}

#[derive(Clone, Copy)]
enum InCall {
    AsItIs,
    Fails(Errno),
}

impl Tracer {
    fn seize(child: &Child, fault: Option<Fault>, shared: Arc<Shared>) -> Result<Self> {
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        match waitpid(pid, Some(WaitPidFlag::WUNTRACED))? {
            WaitStatus::Stopped(_, Signal::SIGSTOP) => {}
            other => bail!("the shell did not stop: {other:?}"),
        }
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACECLONE
            // The keeper makes the daemon's process as fork does; programs are started by vfork.
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_EXITKILL;
        ptrace::seize(pid, options).context("PTRACE_SEIZE")?;
        kill(pid, Signal::SIGCONT)?;
        Ok(Self {
            pid,
            fault,
            shared,
            calls: HashMap::new(),
            begun: Begun::Shell,
            counts: HashMap::new(),
        })
    }

    fn follow(mut self) -> Result<Ended> {
        loop {
            let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
            let status = match waitpid(None, Some(flags)) {
                Err(Errno::EINTR) => continue,
                status => status.context("wait for the traced process")?,
            };
            let (pid, signal) = match status {
                WaitStatus::Exited(pid, code) if pid == self.pid => return Ok(Ended::Code(code)),
                WaitStatus::Signaled(pid, signal, _) if pid == self.pid => {
                    return Ok(Ended::Signal(signal));
                }
                WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..) => {
                    self.calls.remove(&pid);
                    continue;
                }
                WaitStatus::PtraceSyscall(pid) => {
                    // A thread that is killed at this moment cannot be asked any more.
                    let _ = self.on_call(pid);
                    (pid, None)
                }
                WaitStatus::PtraceEvent(pid, _, event) => {
                    if event == libc::PTRACE_EVENT_EXEC && pid == self.pid {
                        self.begun = Begun::Loader;
                    }
                    (pid, None)
                }
                WaitStatus::Stopped(pid, signal) => (pid, Some(signal)),
                WaitStatus::Continued(_) | WaitStatus::StillAlive => continue,
            };
            // It may have been killed since.
            let _ = ptrace::syscall(pid, signal);
        }
    }

    /// Takes the beginning of a call or its end.
    fn on_call(&mut self, pid: Pid) -> Result<(), Errno> {
        match self.calls.remove(&pid) {
            None => {
                let number = machine::number(pid)?;
                let fails = if is_wake_up(pid, number) {
                    InCall::AsItIs
                } else {
                    self.count(number)
                };
                self.calls.insert(pid, fails);
                if let InCall::Fails(_) = fails
                    && Call::numbered(number).is_none_or(|call| !call.works_all_the_same())
                {
                    machine::skip(pid)?;
                }
            }
            Some(InCall::AsItIs) => {}
            Some(InCall::Fails(error)) => {
                machine::give(pid, error)?;
                self.shared.fired.store(true, Relaxed);
            }
        }
        Ok(())
    }

    fn count(&mut self, number: c_long) -> InCall {
        match self.begun {
            // The first thing that a Rust program does is to look at its standard streams.
            Begun::Loader if number == libc::SYS_poll => self.begun = Begun::Program,
            Begun::Program => {}
            Begun::Shell | Begun::Loader => return InCall::AsItIs,
        }
        let Some(call) = Call::numbered(number) else {
            let mut unknown = self
                .shared
                .unknown
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *unknown = Some(number);
            return InCall::AsItIs;
        };
        let count = self.counts.entry(number).or_default();
        *count += 1;
        let mut census = self
            .shared
            .census
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let part = self.shared.part.load(Relaxed);
        census.entry(call.name).or_default().push(part);
        match self.fault {
            Some(fault) if fault.call.number == number && fault.nth == *count => {
                InCall::Fails(fault.error)
            }
            _ => InCall::AsItIs,
        }
    }
}

/// Returns whether this is how one thread wakes another, or hears of a signal: an eventfd never
/// fails, nor does reading from a Unix socket that does not block, and runtimes panic where it does.
fn is_wake_up(pid: Pid, number: c_long) -> bool {
    let (reads, writes) = (
        [libc::SYS_read, libc::SYS_recvfrom].contains(&number),
        number == libc::SYS_write,
    );
    (reads || writes)
        && machine::first_argument(pid).is_ok_and(|descriptor| {
            let link = std::fs::read_link(format!("/proc/{pid}/fd/{descriptor}"));
            let Some(link) = link
                .ok()
                .and_then(|link| link.into_os_string().into_string().ok())
            else {
                return false;
            };
            link == "anon_inode:[eventfd]" || reads && is_pair(pid, &link)
        })
}

/// Returns whether this is one of two connected Unix sockets without a name.
fn is_pair(pid: Pid, link: &str) -> bool {
    let inode = link
        .strip_prefix("socket:[")
        .and_then(|rest| rest.strip_suffix(']'));
    let sockets = std::fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    inode.is_some_and(|inode| {
        // Num RefCount Protocol Flags Type St Inode Path
        sockets.lines().any(|line| {
            let columns: Vec<_> = line.split_whitespace().collect();
            columns.get(6) == Some(&inode) && columns.len() == 7 && columns.get(5) == Some(&"03")
        })
    })
}

/// The registers of a system call.
mod machine {
    use nix::errno::Errno;
    use nix::libc::c_long;
    use nix::sys::ptrace::{getregs, setregs};
    use nix::unistd::Pid;

    pub fn number(pid: Pid) -> Result<c_long, Errno> {
        Ok(getregs(pid)?.orig_rax.cast_signed())
    }

    pub fn first_argument(pid: Pid) -> Result<u64, Errno> {
        Ok(getregs(pid)?.rdi)
    }

    pub fn skip(pid: Pid) -> Result<(), Errno> {
        let mut registers = getregs(pid)?;
        registers.orig_rax = u64::MAX;
        setregs(pid, registers)
    }

    pub fn give(pid: Pid, error: Errno) -> Result<(), Errno> {
        let mut registers = getregs(pid)?;
        registers.rax = i64::from(-(error as i32)).cast_unsigned();
        setregs(pid, registers)
    }
}
