//! Waiting for an event, with a deadline, and never for a fixed time.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The interval at which a condition is checked. It bounds how late an event is noticed, nothing
/// else.
const GLANCE: Duration = Duration::from_millis(5);

/// A point in time by which something must have happened.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// Returns the deadline that lies `after` from now.
    #[must_use]
    pub fn after(after: Duration) -> Self {
        Self(Instant::now() + after)
    }

    /// Returns the time that is left; zero once the deadline has passed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Returns whether it has passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Lets other threads run for a moment, at most until the deadline.
    pub(crate) fn glance(&self) {
        thread::park_timeout(GLANCE.min(self.remaining()));
    }
}

/// Waits until `condition` holds.
///
/// # Errors
/// When `limit` passes first; the message names `what` was waited for.
pub fn wait_until(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
    let deadline = Deadline::after(limit);
    loop {
        if condition() {
            return Ok(());
        }
        if deadline.passed() {
            bail!("waited {limit:?} in vain: {what}");
        }
        deadline.glance();
    }
}
