//! Calls of the daemon that fail.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use pepd_testbed::{Process, wait_until};

use crate::harness::LIMIT;

/// A strace that makes calls of some of the daemon's threads fail.
pub struct Faults {
    strace: Process,
}

impl Faults {
    /// Attaches it to the threads whose names begin so. Each of `faults` is as `strace --inject` has it, and counted
    /// by thread.
    pub fn inject(daemon: Pid, threads: &str, faults: &[&str]) -> Result<Self> {
        let mut command = Command::new("strace");
        let mut count = 0;
        for task in fs::read_dir(format!("/proc/{daemon}/task"))? {
            let task = task?;
            if fs::read_to_string(task.path().join("comm"))?.starts_with(threads) {
                command.arg("-p").arg(task.file_name());
                count += 1;
            }
        }
        for fault in faults {
            command.arg(format!("--inject={fault}"));
        }
        ensure!(count > 0, "no thread is named {threads}");
        let strace = Process::spawn(&mut command)?;
        wait_until(LIMIT, "strace has attached to every thread", || {
            strace.log().matches(" attached").count() >= count
        })?;
        Ok(Self { strace })
    }

    /// Detaches it; at least one call must have failed.
    pub fn end(self) -> Result<()> {
        self.strace.signal(Signal::SIGTERM)?;
        self.ended()
    }

    /// Detaches it, and tells whether a call has failed.
    pub fn detach(mut self) -> Result<bool> {
        self.strace.signal(Signal::SIGTERM)?;
        self.strace.wait(LIMIT)?;
        Ok(self.strace.log().contains("(INJECTED)"))
    }

    /// Waits for its end, which is the daemon's; at least one call must have failed.
    pub fn ended(mut self) -> Result<()> {
        self.strace.wait(LIMIT)?;
        let log = self.strace.log();
        ensure!(log.contains("(INJECTED)"), "no call has failed: {log}");
        Ok(())
    }
}
