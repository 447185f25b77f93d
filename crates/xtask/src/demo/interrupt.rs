//! Ctrl-C ends the demo between two steps, so that everything is removed as at its end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether a signal has come. A second one ends the process at once; what that leaves is swept
/// by the next run.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

/// A signal has come.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

impl Interrupt {
    /// Watches for SIGINT, SIGTERM and SIGHUP from now on.
    ///
    /// # Errors
    /// When the kernel refuses a handler.
    pub fn watch() -> io::Result<Self> {
        let come = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the first signal must not find the flag set already.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&come))?;
            flag::register(signal, Arc::clone(&come))?;
        }
        Ok(Self(come))
    }

    /// Returns whether one has come.
    pub fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Goes on only if none has.
    ///
    /// # Errors
    /// [`Interrupted`] if one has.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.has_come() {
            Err(Interrupted)
        } else {
            Ok(())
        }
    }
}
