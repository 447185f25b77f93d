//! Programs started by a test: in a process group of their own, ended and waited for on drop.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tempfile::NamedTempFile;

use crate::wait::Deadline;

/// The time that a copy may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A running program whose output goes to a file. Dropping it kills its whole process group
/// and waits for it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    pid: Pid,
    output: NamedTempFile,
}

impl Process {
    /// Starts `command` with nothing on standard input, and its standard output and error in
    /// [`Process::log`].
    ///
    /// # Errors
    /// When the program cannot be started (mostly because it is not installed).
    pub fn spawn(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null());
        Self::spawn_with_stdin(command)
    }

    /// Starts `command` with the standard input that the caller chose.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn_with_stdin(command: &mut Command) -> Result<Self> {
        let output = NamedTempFile::new().context("no temporary file for a program's output")?;
        command.stdout(Stdio::from(output.as_file().try_clone()?));
        command.stderr(Stdio::from(output.as_file().try_clone()?));
        Self::adopt(command, output)
    }

    fn adopt(command: &mut Command, output: NamedTempFile) -> Result<Self> {
        let name = describe(command);
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start `{name}`: is it installed?"))?;
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        Ok(Self {
            name,
            child,
            pid,
            output,
        })
    }

    /// Returns the program's process id (`ip netns exec` and the like replace themselves by it).
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns what it has written so far to standard output and standard error.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read(self.output.path())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Sends a signal to the program alone.
    ///
    /// # Errors
    /// When it has ended already.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.pid, signal).with_context(|| format!("{signal} to `{}`", self.name))
    }

    /// Returns the exit status if it has ended.
    ///
    /// # Errors
    /// When the kernel cannot say.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for it to end.
    ///
    /// # Errors
    /// When it still runs after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Deadline::after(limit);
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if deadline.passed() {
                bail!(
                    "`{}` still runs after {limit:?}; it said:\n{}",
                    self.name,
                    self.log()
                );
            }
            deadline.glance();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The group is ours alone (`process_group(0)`), so nobody else's process is hit, and
        // as long as the leader has not been waited for its id cannot have been given away.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = killpg(self.pid, Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

/// The way in which a program ended and what it wrote.
#[derive(Debug)]
pub struct Finished {
    /// The command line, for messages.
    pub command: String,
    /// The exit status.
    pub status: ExitStatus,
    /// The text that it wrote to standard output.
    pub stdout: String,
    /// The text that it wrote to standard error.
    pub stderr: String,
}

impl Finished {
    /// Returns the standard output of a program that succeeded.
    ///
    /// # Errors
    /// When it did not end with exit status 0; the message has its standard error.
    pub fn success(self) -> Result<String> {
        if self.status.success() {
            return Ok(self.stdout);
        }
        bail!(
            "`{}`: {}\n{}{}",
            self.command,
            self.status,
            self.stdout,
            self.stderr
        )
    }
}

/// Runs `command` to its end and returns what it wrote.
///
/// # Errors
/// When it cannot be started or has not ended after `limit`; it is killed then.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished> {
    let name = describe(command);
    let stdout = NamedTempFile::new()?;
    let stderr = NamedTempFile::new()?;
    command.stdin(Stdio::null());
    command.stdout(Stdio::from(File::create(stdout.path())?));
    command.stderr(Stdio::from(stderr.as_file().try_clone()?));
    let mut process = Process::adopt(command, stderr)?;
    let status = process.wait(limit)?;
    Ok(Finished {
        command: name,
        status,
        stdout: String::from_utf8_lossy(&std::fs::read(stdout.path())?).into_owned(),
        stderr: process.log(),
    })
}

/// Copies the program at `from` to `to`, by a program of its own: a descriptor for writing would be
/// inherited by what other tests start at that moment, and the copy would be busy until that has
/// been executed (ETXTBSY, execve(2)).
///
/// # Errors
/// When it cannot be copied.
pub fn install(from: &Path, to: &Path) -> Result<()> {
    let mut install = Command::new("install");
    run(install.args(["-m", "755"]).args([from, to]), LIMIT)?.success()?;
    Ok(())
}

fn describe(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// Raises this process's limit of open descriptors as far as it may, for tests with thousands
/// of connections. Programs started later inherit it.
///
/// # Errors
/// When the kernel refuses.
pub fn raise_descriptor_limit() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).context("RLIMIT_NOFILE")
}
