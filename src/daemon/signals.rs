//! The signals that pepd listens to, as one thing to wait for.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Interval;

use crate::daemon::ticks;

/// The request that a signal makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signalled {
    /// SIGHUP: the configuration is to be read again.
    Reload,
    /// SIGTERM or SIGINT: the daemon is to drain and end; while it drains, to end at once.
    End,
}

/// The interval at which signals are looked for whose message to the runtime is lost: the handler
/// writes it to a socket, for which the kernel may lack memory.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The signals that pepd listens to.
#[derive(Debug)]
pub struct Signals {
    hangup: Heard,
    interrupt: Heard,
    terminate: Heard,
    look: Interval,
}

impl Signals {
    /// Starts to listen.
    ///
    /// # Errors
    ///
    /// If the runtime cannot take over a signal.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            hangup: Heard::new(SignalKind::hangup())?,
            interrupt: Heard::new(SignalKind::interrupt())?,
            terminate: Heard::new(SignalKind::terminate())?,
            look: ticks::interval(LOOK_INTERVAL),
        })
    }

    /// Waits for the next one, and gives what it asks for.
    pub async fn next(&mut self) -> Signalled {
        loop {
            tokio::select! {
                () = self.hangup.next() => return Signalled::Reload,
                () = self.interrupt.next() => return Signalled::End,
                () = self.terminate.next() => return Signalled::End,
                _ = self.look.tick() => {}
            }
            if self.interrupt.take() || self.terminate.take() {
                return Signalled::End;
            }
            if self.hangup.take() {
                return Signalled::Reload;
            }
        }
    }
}

/// One signal.
#[derive(Debug)]
struct Heard {
    signal: Signal,
    /// It has come, and nobody has heard of it.
    flag: Arc<AtomicBool>,
}

impl Heard {
    fn new(kind: SignalKind) -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        // First: whoever hears of the signal by the runtime finds the flag set, and clears it.
        signal_hook::flag::register(kind.as_raw_value(), Arc::clone(&flag))?;
        Ok(Self {
            signal: signal(kind)?,
            flag,
        })
    }

    /// Waits until it comes. One that a look has found already is not heard of twice: a second one of
    /// those that end the daemon has it end at once.
    async fn next(&mut self) {
        while self.signal.recv().await.is_some() {
            if self.take() {
                return;
            }
        }
        std::future::pending().await
    }

    /// Returns whether it has come and nobody has heard of it.
    fn take(&self) -> bool {
        self.flag.swap(false, SeqCst)
    }
}
