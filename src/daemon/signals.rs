//! The signals that pepd listens to, as one thing to wait for.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The request that a signal makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signalled {
    /// SIGHUP: the configuration is to be read again.
    Reload,
    /// SIGTERM or SIGINT: the daemon is to drain and end; while it drains, to end at once.
    End,
}

/// The signals that pepd listens to.
#[derive(Debug)]
pub struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Starts to listen.
    ///
    /// # Errors
    ///
    /// If the runtime cannot take over a signal.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one, and gives what it asks for.
    pub async fn next(&mut self) -> Signalled {
        tokio::select! {
            _ = self.hangup.recv() => Signalled::Reload,
            _ = self.interrupt.recv() => Signalled::End,
            _ = self.terminate.recv() => Signalled::End,
        }
    }
}
