//! The real daemon under the tracer.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Result, bail};
use nix::sys::signal::Signal;
use tempfile::{NamedTempFile, TempDir};

use super::fault::Fault;
use super::tracer::{Census, Ended, STOP_THEN_RUN, Traced};
use crate::netns::Netns;
use crate::process::{Finished, run};
use crate::wait::wait_until;

/// The parts of a scenario, for the census.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Connections; before them is the start.
    Connection = 1,
    /// A configuration that is read again.
    Reload,
    /// SIGTERM, and what follows.
    End,
}

/// A `pepd run` that is traced.
pub struct Daemon {
    traced: Traced,
    notifications: UnixDatagram,
    ready: usize,
    output: NamedTempFile,
    directory: TempDir,
    binary: PathBuf,
    fault: Option<Fault>,
}

impl Daemon {
    /// Starts it; what comes of that is [`Daemon::await_ready`]'s.
    pub fn start(binary: &Path, netns: &Netns, config: &str, fault: Option<Fault>) -> Result<Self> {
        let directory = TempDir::with_prefix("pepd-faults-")?;
        let file = directory.path().join("pepd.toml");
        fs::write(&file, config)?;
        let socket = directory.path().join("notify");
        let notifications = UnixDatagram::bind(&socket)?;
        notifications.set_nonblocking(true)?;
        // As on a host: the daemon, which is another user by then, uses both.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
        fs::set_permissions(&socket, Permissions::from_mode(0o777))?;
        let output = NamedTempFile::new()?;
        let mut command = netns.command("sh");
        command
            .args(["-ec", STOP_THEN_RUN, "sh"])
            .arg(binary)
            .args(["run", "-c"])
            .arg(&file)
            .env("NOTIFY_SOCKET", &socket)
            .env("PEPD_LOG", "info")
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::from(output.as_file().try_clone()?))
            .stderr(Stdio::from(output.as_file().try_clone()?));
        Ok(Self {
            traced: Traced::start(command, fault, Arc::default())?,
            notifications,
            ready: 0,
            output,
            directory,
            binary: binary.to_owned(),
            fault,
        })
    }

    /// Waits until it has said for the `nth` time that it is ready, or has logged one of `words`
    /// (either of them may be what fails), or has ended: how, if so.
    ///
    /// # Errors
    /// When `limit` passes.
    pub fn await_ready(
        &mut self,
        nth: usize,
        words: &[&str],
        limit: Duration,
    ) -> Result<Option<Ended>> {
        wait_until(limit, &format!("ready, or one of {words:?}"), || {
            let mut buffer = [0; 4096];
            while let Ok(length) = self.notifications.recv(&mut buffer) {
                let message = String::from_utf8_lossy(&buffer[..length]);
                self.ready += message.lines().filter(|line| *line == "READY=1").count();
            }
            let log = self.log();
            self.ready >= nth
                || words.iter().any(|word| log.contains(word))
                || self.ended().is_some()
        })?;
        Ok(self.ended())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When `limit` passes.
    pub fn await_end(&self, limit: Duration) -> Result<Ended> {
        wait_until(limit, "the daemon's end", || self.ended().is_some())?;
        match self.ended() {
            Some(ended) => Ok(ended),
            None => bail!("it has not ended"),
        }
    }

    /// Says which part of the scenario goes on.
    pub fn enter(&self, part: Part) {
        self.traced.shared().part.store(part as u8, Relaxed);
    }

    /// Replaces its configuration and sends SIGHUP.
    pub fn reload(&self, config: &str) -> Result<()> {
        fs::write(self.directory.path().join("pepd.toml"), config)?;
        self.signal(Signal::SIGHUP)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.traced.signal(signal)
    }

    /// Runs `pepd down` with its configuration.
    pub fn down(&self, netns: &Netns, limit: Duration) -> Result<Finished> {
        let mut command = netns.command(&self.binary.display().to_string());
        let file = self.directory.path().join("pepd.toml");
        run(command.args(["down", "-c"]).arg(file), limit)
    }

    /// Returns how it has ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        self.traced.shared().ended()
    }

    /// Returns whether its fault has been there.
    pub fn has_failed(&self) -> bool {
        self.traced.shared().fired.load(Relaxed)
    }

    /// Returns whether its fault excuses that a connection breaks.
    pub fn excuses_a_break(&self) -> bool {
        !self.fault.is_some_and(|fault| fault.spares_connections())
    }

    /// Returns what it has written.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.output.path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the calls it has made.
    pub fn census(&self) -> Census {
        self.traced.shared().census()
    }

    /// Ends the tracing of a daemon that has ended.
    ///
    /// # Errors
    /// A call that no table has, or that tracing failed.
    pub fn finish(self) -> Result<()> {
        if let Some(number) = self.traced.shared().unknown() {
            bail!("system call {number} is not in the table of calls: it wants a line there");
        }
        self.traced.finish()
    }
}
