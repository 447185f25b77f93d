//! Signals, and what systemd is told (sd_notify(3)).

use std::io;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// SIGHUP.
    Reload,
    /// SIGTERM or SIGINT.
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
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.hangup.recv() => Request::Reload,
            _ = self.interrupt.recv() => Request::End,
            _ = self.terminate.recv() => Request::End,
        }
    }
}

/// Tells systemd, where there is one; that it cannot be told stops nothing.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "notify systemd");
    }
}

/// New connections are split now.
pub fn ready() {
    notify(&[NotifyState::Ready]);
}

/// A reload has begun.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "read the clock"),
    }
}

/// The end has begun and takes up to `time`.
pub fn stopping(time: Duration) {
    let time = time.as_micros() + Duration::from_secs(10).as_micros();
    notify(&[
        NotifyState::Stopping,
        NotifyState::ExtendTimeoutUsec(u32::try_from(time).unwrap_or(u32::MAX)),
    ]);
}

/// All is well, and this is how it stands.
pub fn alive(status: &str) {
    notify(&[NotifyState::Watchdog, NotifyState::Status(status)]);
}
