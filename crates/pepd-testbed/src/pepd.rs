//! The real daemon, started in a namespace.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::netns::Netns;
use crate::process::{Finished, Process, run};
use crate::wait::{Deadline, wait_until};

/// The time that the daemon may take to start, reload or end on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A running `pepd run`. Dropping it kills it as SIGKILL does: what it installed stays in the
/// namespace and goes with it.
#[derive(Debug)]
pub struct Pepd {
    process: Process,
    notifications: Receiver<String>,
    directory: TempDir,
    binary: PathBuf,
}

/// The way in which the daemon is to be started.
#[derive(Debug)]
pub struct PepdBuilder {
    binary: PathBuf,
    wrapper: Vec<String>,
    log: String,
}

impl PepdBuilder {
    /// Starts it through another program that replaces itself by it, such as `prlimit`.
    #[must_use]
    pub fn wrapper(mut self, words: &[&str]) -> Self {
        self.wrapper = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Sets `PEPD_LOG`, which is `info` otherwise.
    #[must_use]
    pub fn log(mut self, filter: &str) -> Self {
        filter.clone_into(&mut self.log);
        self
    }

    /// Starts the daemon in `netns` and waits until it says that it is ready.
    ///
    /// # Errors
    /// When it ends instead; the message contains its log.
    pub fn start(self, netns: &Netns, config: &str) -> Result<Pepd> {
        let mut pepd = self.spawn(netns, config)?;
        pepd.await_notification("READY=1")?;
        Ok(pepd)
    }

    /// Starts the daemon in `netns` and waits until it ends by itself.
    ///
    /// # Errors
    /// When it does not.
    pub fn fails(self, netns: &Netns, config: &str) -> Result<(ExitStatus, String)> {
        self.spawn(netns, config)?.wait()
    }

    fn spawn(self, netns: &Netns, config: &str) -> Result<Pepd> {
        let directory = TempDir::with_prefix("pepd-testbed-")?;
        let file = directory.path().join("pepd.toml");
        fs::write(&file, config)?;
        let socket = directory.path().join("notify");
        let notifications = collect(UnixDatagram::bind(&socket)?);
        // As on a host: the daemon, which is another user by then, reads the one again and tells
        // the other how it is.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
        fs::set_permissions(&socket, Permissions::from_mode(0o777))?;

        let mut words = self.wrapper;
        words.push(self.binary.display().to_string());
        let mut command = netns.command(&words[0]);
        command.args(&words[1..]).args(["run", "-c"]).arg(&file);
        command
            .env("NOTIFY_SOCKET", &socket)
            .env("PEPD_LOG", &self.log)
            .env("NO_COLOR", "1");
        let process = Process::spawn(&mut command)?;
        Ok(Pepd {
            process,
            notifications,
            directory,
            binary: self.binary,
        })
    }
}

impl Pepd {
    /// Returns the daemon to be started from the file `binary` (a test gives
    /// `env!("CARGO_BIN_EXE_pepd")`).
    #[must_use]
    pub fn builder(binary: impl AsRef<Path>) -> PepdBuilder {
        PepdBuilder {
            binary: binary.as_ref().to_owned(),
            wrapper: Vec::new(),
            log: "info".to_owned(),
        }
    }

    /// Starts the daemon in `netns` and waits until it says that it is ready.
    ///
    /// # Errors
    /// When it ends instead; the message contains its log.
    pub fn start(binary: impl AsRef<Path>, netns: &Netns, config: &str) -> Result<Self> {
        Self::builder(binary).start(netns, config)
    }

    /// Runs another subcommand of the same binary in `netns` with `-c` and the daemon's
    /// configuration file.
    ///
    /// # Errors
    /// When it cannot be started or does not end.
    pub fn subcommand(&self, netns: &Netns, subcommand: &str) -> Result<Finished> {
        let mut command = netns.command(&self.binary.display().to_string());
        run(
            command.args([subcommand, "-c"]).arg(self.config_file()),
            LIMIT,
        )
    }

    /// Returns the configuration file that it reads.
    #[must_use]
    pub fn config_file(&self) -> PathBuf {
        self.directory.path().join("pepd.toml")
    }

    /// Returns the running process: the keeper, which a service manager knows.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns the daemon's own process, which the keeper has made.
    ///
    /// # Errors
    /// When there is none now.
    pub fn daemon(&self) -> Result<Pid> {
        daemon_of(self.process.pid())
    }

    /// Has the daemon's process die by a signal, and waits until the next one is ready.
    ///
    /// # Errors
    /// When there is no next one.
    pub fn dies(&mut self, signal: Signal) -> Result<()> {
        // What was said before is not about the next one.
        while self.notifications.try_recv().is_ok() {}
        let daemon = self.daemon()?;
        ensure!(daemon != self.process.pid(), "no keeper");
        kill(daemon, signal)?;
        self.await_notification("READY=1")
    }

    /// Waits until it tells its service manager `wanted`, a line of sd_notify(3).
    ///
    /// # Errors
    /// When it ends or stays silent instead.
    pub fn says(&mut self, wanted: &str) -> Result<()> {
        self.await_notification(wanted)
    }

    /// Returns what it has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Replaces its configuration file, sends SIGHUP and waits until it says that it is done,
    /// whatever came of it (the log says).
    ///
    /// # Errors
    /// When it ends or stays silent instead.
    pub fn reload(&mut self, config: &str) -> Result<()> {
        fs::write(self.config_file(), config)?;
        self.process.signal(Signal::SIGHUP)?;
        self.await_notification("RELOADING=1")?;
        self.await_notification("READY=1")
    }

    /// Sets the soft limit of its open files. Asked by its own user: root without
    /// CAP_SYS_RESOURCE may not ask of others (prlimit(2)).
    ///
    /// # Errors
    /// When it has ended, or without the programs `setpriv` and `prlimit`.
    pub fn limit_descriptors(&self, soft: u32) -> Result<()> {
        let daemon = self.daemon()?;
        let process = format!("/proc/{daemon}");
        let owner = fs::read_to_string(format!("{process}/status"))?;
        let id = |name: &str| {
            let line = owner.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|ids| ids.split_whitespace().next())
                .map(str::to_owned)
                .context("no such field")
        };
        let mut command = Command::new("setpriv");
        command
            .args([
                format!("--reuid={}", id("Uid:")?),
                format!("--regid={}", id("Gid:")?),
            ])
            .args(["--clear-groups", "prlimit"])
            .args([format!("--pid={daemon}"), format!("--nofile={soft}:")]);
        run(&mut command, LIMIT)?.success()?;
        Ok(())
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Stops it with SIGSTOP, the keeper first, and waits until every thread has stopped: one that
    /// still ran might take a connection that nobody then serves.
    ///
    /// # Errors
    /// When it has ended, or does not stop.
    pub fn pause(&self) -> Result<()> {
        for process in self.processes()? {
            kill(process, Signal::SIGSTOP)?;
            let tasks = format!("/proc/{process}/task");
            wait_until(LIMIT, "every thread has stopped", || {
                let tasks = fs::read_dir(&tasks).into_iter().flatten().flatten();
                let mut states = tasks.map(|task| fs::read_to_string(task.path().join("stat")));
                states.all(|state| state.is_ok_and(|state| state.contains(") T ")))
            })?;
        }
        Ok(())
    }

    /// Lets it go on after [`Pepd::pause`].
    ///
    /// # Errors
    /// When it has ended.
    pub fn resume(&self) -> Result<()> {
        for process in self.processes()?.into_iter().rev() {
            kill(process, Signal::SIGCONT)?;
        }
        Ok(())
    }

    /// Returns the keeper, and the daemon's own process if that is another one.
    fn processes(&self) -> Result<Vec<Pid>> {
        let mut processes = vec![self.process.pid(), self.daemon()?];
        processes.dedup();
        Ok(processes)
    }

    /// Waits for its end, and returns its exit status and its whole log.
    ///
    /// # Errors
    /// When it does not end.
    pub fn wait(mut self) -> Result<(ExitStatus, String)> {
        let status = self.process.wait(LIMIT)?;
        Ok((status, self.process.log()))
    }

    /// Sends SIGTERM and waits for its end.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(self) -> Result<(ExitStatus, String)> {
        self.signal(Signal::SIGTERM)?;
        self.wait()
    }

    /// Sends SIGKILL to the keeper, and waits for its end and that of the daemon's process, which ends
    /// with it.
    ///
    /// # Errors
    /// When it had ended before.
    pub fn kill(mut self) -> Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!(
                "the daemon had ended before it was killed: {status}\n{}",
                self.log()
            );
        }
        let daemon = self.daemon()?;
        self.signal(Signal::SIGKILL)?;
        self.wait()?;
        let process = format!("/proc/{daemon}");
        wait_until(LIMIT, "the daemon ends with its keeper", || {
            // Nobody may take note of its end. As long as it has another thread, that has all that it
            // had open.
            let threads = fs::read_dir(format!("{process}/task")).map_or(0, Iterator::count);
            let ended = |stat: String| stat.contains(") Z ");
            threads <= 1 && fs::read_to_string(format!("{process}/stat")).map_or(true, ended)
        })
    }

    /// Returns whether it still runs. A test asks at its end: no traffic may end the daemon.
    #[must_use]
    pub fn runs(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Returns the resident memory of the daemon's process in bytes (`VmRSS` of proc_pid_status(5)).
    ///
    /// # Errors
    /// When it has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon()?))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line
            .and_then(|rest| rest.split_whitespace().next())
            .context("no VmRSS")?;
        Ok(kib.parse::<u64>()? * 1024)
    }

    /// Returns how many descriptors it has open.
    ///
    /// # Errors
    /// When it has ended.
    pub fn descriptors(&self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.process.pid()))?.count())
    }

    fn await_notification(&mut self, wanted: &str) -> Result<()> {
        let deadline = Deadline::after(LIMIT);
        while !deadline.passed() {
            match self.notifications.recv_timeout(Duration::from_millis(20)) {
                Ok(message) if message.lines().any(|line| line == wanted) => return Ok(()),
                _ => {}
            }
            if let Some(status) = self.process.try_wait()? {
                bail!(
                    "pepd ended ({status}) before it said {wanted}:\n{}",
                    self.log()
                );
            }
        }
        bail!(
            "pepd has not said {wanted} within {LIMIT:?}:\n{}",
            self.log()
        )
    }
}

/// Returns the daemon's own process, of this keeper; the one process that there is of a binary without
/// a keeper.
///
/// # Errors
/// When there is none now.
pub fn daemon_of(keeper: Pid) -> Result<Pid> {
    let program = |pid| fs::read_link(format!("/proc/{pid}/exe"));
    let own = program(keeper)?;
    let listed = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"))?;
    let mut children = listed.split_whitespace().filter_map(|pid| pid.parse().ok());
    let child = children.find(|pid| program(Pid::from_raw(*pid)).is_ok_and(|it| it == own));
    Ok(child.map_or(keeper, Pid::from_raw))
}

impl Drop for Pepd {
    fn drop(&mut self) {
        // The thread that collects them is waiting for this.
        if let Ok(socket) = UnixDatagram::unbound() {
            let _ = socket.send_to(END, self.directory.path().join("notify"));
        }
    }
}

/// What ends [`collect`]; no daemon says it.
const END: &[u8] = b"";

/// Reads notifications as systemd does, as they come: a daemon whose notifications nobody
/// reads waits for ever once the socket's queue is full.
fn collect(socket: UnixDatagram) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = socket.recv(&mut buffer) {
            // Once nobody listens they are thrown away.
            let _ = sender.send(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
    });
    receiver
}
