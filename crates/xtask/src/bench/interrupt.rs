//! Ctrl-C: the measurement under way ends, and everything is cleaned up by its owners.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Whether the user wants the benchmark to end.
#[derive(Debug, Default)]
pub struct Interrupt {
    raised: Mutex<bool>,
    wake: Condvar,
}

impl Interrupt {
    /// Creates the flag that is raised by SIGINT, SIGTERM and SIGHUP; a second one ends the process
    /// without cleaning up (the next run of anything on the testbed sweeps what is left).
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub fn on_signals() -> Result<Arc<Self>> {
        let interrupt = Arc::new(Self::default());
        let raised = Arc::clone(&interrupt);
        let mut signals =
            Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot watch for signals")?;
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                let mut signals = signals.forever();
                if signals.next().is_some() {
                    eprintln!("\ninterrupted: cleaning up");
                    raised.raise();
                }
                if let Some(signal) = signals.next() {
                    std::process::exit(128 + signal);
                }
            })?;
        Ok(interrupt)
    }

    /// Goes on unless interrupted.
    ///
    /// # Errors
    /// When interrupted.
    pub fn check(&self) -> Result<()> {
        self.wait(Duration::ZERO)
    }

    /// Lets `time` pass, during which something is measured.
    ///
    /// # Errors
    /// As soon as interrupted.
    pub fn wait(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        let mut raised = self.lock();
        loop {
            if *raised {
                bail!("interrupted");
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            raised = self
                .wake
                .wait_timeout(raised, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn raise(&self) {
        *self.lock() = true;
        self.wake.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_when_it_is_raised() {
        let interrupt = Interrupt::default();
        assert!(interrupt.check().is_ok());
        assert!(interrupt.wait(Duration::from_millis(1)).is_ok());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| interrupt.wait(Duration::from_secs(3600)));
            interrupt.raise();
            assert!(waiting.join().unwrap().is_err());
        });
        assert!(interrupt.check().is_err());
    }
}
