//! What a guest looks like, and what it shares with the host.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU8;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

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
pub struct Mebibytes(pub(super) u32);

/// What QEMU and the kernel need before there is room for a command.
const LEAST_MEMORY: Mebibytes = Mebibytes(256);

impl Mebibytes {
    /// Takes an amount in MiB; `None` below 256 MiB, where the kernel does not start.
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

/// A guest to boot: what it looks like, and what it shares with the host.
#[derive(Debug, Clone)]
pub struct Guest {
    pub(super) clock: Clock,
    pub(super) processors: NonZeroU8,
    pub(super) memory: Mebibytes,
    pub(super) timeout: Duration,
    pub(super) directory: PathBuf,
    pub(super) visible: Vec<PathBuf>,
    pub(super) copies: Vec<OsString>,
    pub(super) environment: Vec<(OsString, OsString)>,
}

impl Guest {
    /// Returns a guest with two processors, 4 GiB and an hour's time limit, whose commands run in
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

    /// Tells whether the clock is [`Clock::Virtual`].
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        self.clock == Clock::Virtual
    }

    /// Returns how many processors the guest will have.
    #[must_use]
    pub fn effective_processors(&self) -> NonZeroU8 {
        match self.clock {
            Clock::Host => self.processors,
            Clock::Virtual => NonZeroU8::MIN,
        }
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
