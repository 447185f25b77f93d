//! What systemd is told about the daemon (sd_notify(3)), and the keeper of it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use nix::unistd::{Pid, getppid};
use pepd_sys::retry_on_intr;
use sd_notify::NotifyState;

use crate::daemon::ticks;
use crate::keeper::board::{Board, Stage};

/// A line to systemd, where there is one (`NOTIFY_SOCKET`).
///
/// A thread of its own sends what is told: sd_notify(3) waits while the other side does not read,
/// and neither the gate nor a signal may wait for that.
#[derive(Debug)]
pub struct Notifier {
    messages: SyncSender<Message>,
    board: Arc<Board>,
    keeper: Pid,
}

/// Nobody sees it: the keeper is gone, or knows.
const ENDED_WITH_KEEPER: i32 = 70;

/// The interval at which is told that all is well while something is waited for.
const ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// The number of messages that may wait to be sent; more are dropped.
const QUEUE_LENGTH: usize = 16;

#[derive(Debug)]
enum Message {
    Ready,
    Reloading,
    Stopping(Duration),
    Alive(String),
    GoingOn,
}

impl Notifier {
    /// Starts the thread. Systemd, for which a daemon before this one was up, may have heard nothing for a
    /// while: its patience begins anew.
    pub fn start(board: Arc<Board>) -> io::Result<Self> {
        let (messages, inbox) = sync_channel(QUEUE_LENGTH);
        std::thread::Builder::new()
            .name("notify".to_owned())
            .spawn(move || deliver(inbox))?;
        let notifier = Self {
            messages,
            board,
            keeper: getppid(),
        };
        if notifier.board.last_death().is_some() {
            notifier.queue(Message::GoingOn);
        }
        Ok(notifier)
    }

    /// Tells that new connections are split from now on.
    pub fn ready(&self) {
        self.board.set_stage(Stage::Running);
        self.queue(Message::Ready);
    }

    /// Tells that a reload has begun.
    pub fn reloading(&self) {
        self.queue(Message::Reloading);
    }

    /// Tells that the end has begun and takes up to `time`.
    pub fn stopping(&self, time: Duration) {
        self.board.ask_to_end();
        self.board.set_stage(Stage::Ending);
        self.queue(Message::Stopping(time));
    }

    /// Tells that all is well, with a line on the daemon.
    ///
    /// Where the keeper may not send signals to this process (it became another user, and the keeper has
    /// no CAP_KILL), it is here that its end, or that of its keeper, is seen.
    pub fn alive(&self, status: String) {
        if self.board.is_asked_to_yield() || getppid() != self.keeper {
            std::process::exit(ENDED_WITH_KEEPER);
        }
        self.board.beat();
        self.queue(Message::Alive(status));
    }

    /// Waits for `work`, and tells meanwhile again and again that all is well, with this line.
    pub async fn during<T>(&self, status: &str, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let mut tick = ticks::interval(ALIVE_INTERVAL);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = tick.tick() => self.alive(status.to_owned()),
            }
        }
    }

    fn queue(&self, message: Message) {
        if self.messages.try_send(message).is_err() {
            tracing::debug!("systemd does not read what it is told");
        }
    }
}

/// Sends what comes. What could not be sent is sent before the next message, of which there is one a
/// second: whoever has not heard that the daemon is ready ends it.
fn deliver(inbox: Receiver<Message>) {
    let mut unsent = VecDeque::new();
    for message in inbox {
        unsent.push_back(message);
        while let Some(first) = unsent.front() {
            if let Err(error) = retry_on_intr(|| send(first)) {
                tracing::debug!(%error, "notify systemd");
                break;
            }
            unsent.pop_front();
        }
        // That all is well is told again by itself.
        unsent.retain(|message| !matches!(message, Message::Alive(_)));
        while unsent.len() > QUEUE_LENGTH {
            unsent.pop_front();
        }
    }
}

fn send(message: &Message) -> io::Result<()> {
    match message {
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
        Message::GoingOn => sd_notify::notify(&[NotifyState::Watchdog]),
    }
}
