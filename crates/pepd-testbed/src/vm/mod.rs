//! A guest kernel: Debian's, booted by QEMU, with the host's files in it.
//!
//! Some kernels lack what a test needs (`ipip`, `netem`, a congestion control), and every
//! machine is busy at times. [`Guest::run`] boots a Debian kernel under software emulation,
//! runs one command in it as root and gives back its output, status and results. The guest
//! sees the host's `/` read-only with memory on top, so that it needs no disk image: what is
//! installed and built on the host is there, and nothing it does reaches the host, except what
//! it writes to the folder named by `PEPD_RESULTS`.
//!
//! With [`Clock::Virtual`] the guest's clock counts its own instructions and skips idle time:
//! what it measures does not depend on how busy the host is, and waiting costs nothing.
//! Reading a file from the host is the exception, since the clock runs on meanwhile;
//! [`Guest::copy`] brings into memory beforehand what a measurement will read.

mod copies;
mod error;
mod initramfs;
mod kernel;
mod machine;
mod programs;
mod session;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::num::NonZeroU8;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

pub use error::{Error, Result};
pub use kernel::{Kernel, KernelPackage};
pub use programs::{MissingPackages, require_programs};

use machine::Machine;

/// Where the guest finds the results folder; `PEPD_RESULTS` in its environment says the same.
pub const RESULTS: &str = "/run/results";

/// What the guest's clock follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The host's time.
    Host,
    /// The instructions executed: one nanosecond each, idle time skipped (QEMU's `-icount`).
    /// Such a guest has one processor.
    Virtual,
}

/// An amount of guest memory, in MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mebibytes(u32);

/// What QEMU and the kernel need before there is room for a command.
const LEAST_MEMORY: Mebibytes = Mebibytes(256);

impl Mebibytes {
    /// `None` below 256 MiB, where the kernel does not start.
    #[must_use]
    pub fn new(mebibytes: u32) -> Option<Self> {
        (mebibytes >= LEAST_MEMORY.0).then_some(Self(mebibytes))
    }
}

impl FromStr for Mebibytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = match &text[digits.len()..] {
            "M" | "MiB" => 1,
            "G" | "GiB" => 1024,
            _ => return Err(format!("`{text}` has no unit; write 4G or 512M")),
        };
        digits
            .parse::<u32>()
            .ok()
            .and_then(|number| number.checked_mul(unit))
            .and_then(Self::new)
            .ok_or_else(|| format!("`{text}` is not an amount of memory from 256M up"))
    }
}

/// How the command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It ran to its end, with this status (128 + the signal if one killed it).
    Exited(u8),
    /// The guest ended before the command did: a kernel panic, or the command switched it off.
    /// Holds the end of the console.
    Died(String),
    /// The time limit passed. Holds the end of the console.
    TimedOut(String),
}

/// A guest that has run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// How the command ended.
    pub ended: Ended,
    /// From the start of QEMU to the start of the command, copies included; `None` if it never
    /// started.
    pub boot: Option<Duration>,
    /// How often the command, and what it started, asked the host for a file or wrote results;
    /// on [`Clock::Virtual`] each time lets the clock run on. `None` if the guest did not say.
    pub host_requests: Option<u64>,
}

/// A guest to boot: what it looks like, and what it shares with the host.
#[derive(Debug, Clone)]
pub struct Guest {
    clock: Clock,
    processors: NonZeroU8,
    memory: Mebibytes,
    timeout: Duration,
    directory: PathBuf,
    visible: Vec<PathBuf>,
    copies: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl Guest {
    /// A guest with two processors, 4 GiB and an hour's time limit, whose commands run in
    /// `directory`, a directory of the host.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self {
            clock: Clock::Host,
            processors: NonZeroU8::MIN.saturating_add(1),
            memory: Mebibytes(4096),
            timeout: Duration::from_secs(3600),
            directory: directory.to_owned(),
            visible: Vec::new(),
            copies: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Sets the clock. [`Clock::Virtual`] leaves one processor, whatever was asked for.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the number of processors.
    #[must_use]
    pub fn processors(mut self, processors: NonZeroU8) -> Self {
        self.processors = processors;
        self
    }

    /// Sets the memory. Up to three quarters of it hold files.
    #[must_use]
    pub fn memory(mut self, memory: Mebibytes) -> Self {
        self.memory = memory;
        self
    }

    /// Sets the time limit, on the host's clock, boot included.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Keeps `path` visible even below `/tmp`, `/run` or `/dev/shm`, which are the guest's own.
    #[must_use]
    pub fn visible(mut self, path: &Path) -> Self {
        self.visible.push(path.to_owned());
        self
    }

    /// Copies a file, a directory or a program (found by `PATH` if it has no slash) into the
    /// guest's memory before the command starts; with a program go the libraries it loads.
    #[must_use]
    pub fn copy(mut self, what: &OsStr) -> Self {
        self.copies.push(what.to_owned());
        self
    }

    /// Sets a variable of the command's environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// True if the clock is [`Clock::Virtual`].
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        self.clock == Clock::Virtual
    }

    /// How many processors the guest will have.
    #[must_use]
    pub fn effective_processors(&self) -> NonZeroU8 {
        match self.clock {
            Clock::Host => self.processors,
            Clock::Virtual => NonZeroU8::MIN,
        }
    }

    /// Boots `kernel`, runs `command` in it as root and passes its output on as it comes.
    /// `results` must exist; the guest writes to it as [`RESULTS`].
    ///
    /// QEMU ends with the calling thread, however that ends.
    ///
    /// # Errors
    /// What kept the guest from being started. What goes wrong inside it is in [`Run::ended`].
    pub fn run(
        &self,
        kernel: &Kernel,
        command: &[OsString],
        results: &Path,
        stdout: &mut (dyn Write + Send),
        stderr: &mut (dyn Write + Send),
    ) -> Result<Run> {
        let session = session::Script::new(self, kernel, command)?;
        let started = Instant::now();
        let machine = Machine::start(self, kernel, results)?;
        session::run(machine, &session, started, self.timeout, stdout, stderr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_needs_a_unit_and_enough_of_it() {
        assert_eq!("4G".parse(), Ok(Mebibytes(4096)));
        assert_eq!("512MiB".parse(), Ok(Mebibytes(512)));
        for bad in ["", "G", "4", "4T", "-1G", "255M", "0G", "99999999G", "4 G"] {
            assert!(bad.parse::<Mebibytes>().is_err(), "{bad}");
        }
    }
}
