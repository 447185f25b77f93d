//! Signals, and what systemd is told (sd_notify(3)).

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
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

/// Tells systemd how it stands, where there is one (`NOTIFY_SOCKET`).
///
/// From a thread of its own: sd_notify(3) waits while the other side does not read, and neither
/// the gate nor a signal may wait for that.
#[derive(Debug)]
pub struct Notifier {
    messages: SyncSender<Message>,
}

/// Messages that may wait to be read; more are dropped.
const WAITING: usize = 16;

#[derive(Debug)]
enum Message {
    Ready,
    Reloading,
    Stopping(Duration),
    Alive(String),
}

impl Notifier {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let (messages, inbox) = sync_channel(WAITING);
        std::thread::Builder::new()
            .name("notify".to_owned())
            .spawn(move || inbox.into_iter().for_each(|message| send(&message)))?;
        Ok(Self { messages })
    }

    /// New connections are split now.
    pub fn ready(&self) {
        self.queue(Message::Ready);
    }

    /// A reload has begun.
    pub fn reloading(&self) {
        self.queue(Message::Reloading);
    }

    /// The end has begun and takes up to `time`.
    pub fn stopping(&self, time: Duration) {
        self.queue(Message::Stopping(time));
    }

    /// All is well, and this is how it stands.
    pub fn alive(&self, status: String) {
        self.queue(Message::Alive(status));
    }

    fn queue(&self, message: Message) {
        if self.messages.try_send(message).is_err() {
            tracing::debug!("systemd does not read what it is told");
        }
    }
}

fn send(message: &Message) {
    let result = match message {
        Message::Ready => sd_notify::notify(&[NotifyState::Ready]),
        Message::Reloading => NotifyState::monotonic_usec_now()
            .and_then(|now| sd_notify::notify(&[NotifyState::Reloading, now])),
        Message::Stopping(time) => {
            let time = *time + Duration::from_secs(10);
            let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
            sd_notify::notify(&[
                NotifyState::Stopping,
                NotifyState::ExtendTimeoutUsec(micros),
            ])
        }
        Message::Alive(status) => {
            sd_notify::notify(&[NotifyState::Watchdog, NotifyState::Status(status)])
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "notify systemd");
    }
}
