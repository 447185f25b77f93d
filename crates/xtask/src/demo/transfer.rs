//! A download by curl, watched while it goes on.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pepd_testbed::{Netns, Process, wait_until};
use tempfile::TempDir;

use super::interrupt::Interrupt;

/// What the momentary rate is about.
const MOMENT: Duration = Duration::from_secs(2);
/// The interval at which a watcher is told.
const TICK: Duration = Duration::from_millis(100);

const FILE: &str = "file";

/// A download under way, or ended. What it has received goes with it.
#[derive(Debug)]
pub struct Transfer {
    curl: Process,
    started: Instant,
    directory: TempDir,
    past: VecDeque<(Instant, u64)>,
}

/// The progress of what has arrived so far.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The number of bytes.
    pub bytes: u64,
    /// The time since the request.
    pub elapsed: Duration,
    /// The rate over the last moment, in bits per second.
    pub rate: f64,
}

impl Progress {
    /// Returns the rate over all of the time, in bits per second.
    pub fn mean(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }

    /// Returns the rate from `earlier` on, in bits per second.
    pub fn since(&self, earlier: Self) -> f64 {
        let later = Self {
            bytes: self.bytes.saturating_sub(earlier.bytes),
            elapsed: self.elapsed.saturating_sub(earlier.elapsed),
            ..*self
        };
        later.mean()
    }
}

impl Transfer {
    /// Starts curl in `client`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(client: &Netns, url: &str) -> Result<Self> {
        let directory = TempDir::new()?;
        let mut curl = client.command("curl");
        // No name service and no proxy of this machine's in between.
        curl.args(["-sSf", "--noproxy", "*", "-o"]);
        curl.arg(directory.path().join(FILE)).arg(url);
        Ok(Self {
            curl: Process::spawn(&mut curl)?,
            started: Instant::now(),
            directory,
            past: VecDeque::new(),
        })
    }

    /// Watches it until it is complete, but no longer than `limit`, and tells `watcher` ten
    /// times a second. `None` if it was not complete by then.
    ///
    /// # Errors
    /// When curl fails, or a signal comes.
    pub fn watch(
        mut self,
        limit: Duration,
        interrupt: &Interrupt,
        mut watcher: impl FnMut(Progress),
    ) -> Result<(Progress, Option<Download>)> {
        let mut next = Instant::now();
        loop {
            let mut ended = None;
            // An error here only says that the tick is over.
            let _ = wait_until(next.saturating_duration_since(Instant::now()), "", || {
                ended = self.curl.try_wait().ok().flatten();
                ended.is_some() || interrupt.has_come()
            });
            interrupt.check()?;
            next += TICK;
            let progress = self.progress();
            watcher(progress);
            if let Some(status) = ended {
                ensure!(status.success(), "curl: {status}: {}", self.curl.log());
                return Ok((progress, Some(Download(self.directory))));
            }
            if progress.elapsed >= limit {
                return Ok((progress, None));
            }
        }
    }

    fn progress(&mut self) -> Progress {
        let (now, bytes) = (
            Instant::now(),
            fs::metadata(self.directory.path().join(FILE)).map_or(0, |file| file.len()),
        );
        self.past.push_back((now, bytes));
        while self.past.len() > 2 && self.past[1].0 + MOMENT < now {
            self.past.pop_front();
        }
        let (then, before) = self.past.front().copied().unwrap_or((self.started, 0));
        let span = (now - then).as_secs_f64().max(f64::EPSILON);
        Progress {
            bytes,
            elapsed: now - self.started,
            rate: bytes.saturating_sub(before) as f64 * 8.0 / span,
        }
    }
}

/// A complete download, removed on drop.
#[derive(Debug)]
pub struct Download(TempDir);

impl Download {
    /// Returns what arrived.
    pub fn file(&self) -> PathBuf {
        self.0.path().join(FILE)
    }
}
