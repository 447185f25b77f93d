//! One session with a modem, on a connection that is there: what is sent and received for
//! [`State`], which decides.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use pepd_dlep::Message;
use pepd_dlep::session::{Action, End, Event, Report, Settings, State};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};

use super::known::Reach;
use super::{Stop, Told};

/// Bytes read at once.
const CHUNK: usize = 4096;
/// So many messages are looked at within [`WINDOW`]; a modem that has more has to wait.
const MESSAGES: u32 = 200;
/// See [`MESSAGES`].
const WINDOW: Duration = Duration::from_millis(50);
/// The time for which a modem that does not read is waited for.
const WRITE: Duration = Duration::from_secs(5);

/// How a session has ended.
pub(super) struct Over {
    pub(super) why: String,
    pub(super) reach: Reach,
    /// For how long it had been there; none where the modem has not accepted it.
    pub(super) lasted: Option<Duration>,
    /// It was not wanted any more.
    pub(super) is_stopped: bool,
}

/// Holds a session until it is over.
pub(super) async fn hold(
    stream: TcpStream,
    with: SocketAddr,
    told: &mut Told,
    stop: &mut Stop,
) -> Over {
    let settings = Settings {
        heartbeat: told.modem.heartbeat,
        peer_type: "pepd".to_owned(),
        destination: told.modem.destination,
    };
    let mut talk = Talk::new(stream);
    let (mut state, mut actions) = State::begin(&settings, Instant::now());
    let (mut end, mut accepted) = (End::Lost, None);
    while state != State::Ended || !actions.is_empty() {
        let mut is_lost = false;
        for action in std::mem::take(&mut actions) {
            match action {
                Action::Send(message) => is_lost |= talk.send(&message).await.is_err(),
                Action::Close => {}
                Action::Report(report) => {
                    match &report {
                        Report::Begun { .. } => accepted = Some(Instant::now()),
                        Report::Ended(why) => end = why.clone(),
                        Report::Link(_) | Report::TooMany => {}
                    }
                    told.report(report, with);
                }
            }
        }
        if state == State::Ended {
            break;
        }
        let event = match is_lost {
            true => Event::Lost,
            false => talk.event(&state, &end, stop).await,
        };
        (state, actions) = state.on(event, Instant::now());
    }
    let why = match (&end, &talk.error) {
        (End::Lost, Some(error)) => format!("{end}: {error}"),
        _ => end.to_string(),
    };
    let reach = match end {
        End::Silent | End::NotAccepted | End::Lost | End::Stopped => talk.reach(),
        // It has just been heard, and what it is told may still be on its way.
        _ => Reach::Reached,
    };
    Over {
        why,
        reach,
        lasted: accepted.map(|at: Instant| at.elapsed()),
        is_stopped: end == End::Stopped,
    }
}

/// The connection of a session.
struct Talk {
    stream: TcpStream,
    /// What has come and is not a whole message yet.
    inbox: Vec<u8>,
    chunk: Box<[u8; CHUNK]>,
    /// Why the connection has ended, if by itself.
    error: Option<io::Error>,
    /// The messages that may still be looked at in this window.
    left: u32,
    window: Instant,
}

impl Talk {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            inbox: Vec::new(),
            chunk: Box::new([0; CHUNK]),
            error: None,
            left: MESSAGES,
            window: Instant::now(),
        }
    }

    async fn send(&mut self, message: &Message) -> io::Result<()> {
        let bytes = message.to_bytes();
        let sent = timeout(WRITE, self.stream.write_all(&bytes)).await;
        let sent = sent.unwrap_or_else(|_| Err(io::ErrorKind::WouldBlock.into()));
        sent.inspect_err(|error| self.error = Some(error.kind().into()))
    }

    /// Waits for what happens next.
    async fn event(&mut self, state: &State, end: &End, stop: &mut Stop) -> Event {
        let deadline = state.deadline().unwrap_or_else(Instant::now);
        tokio::select! {
            // A modem that always has something to say does not keep a deadline from coming.
            biased;
            _ = &mut *stop, if *end != End::Stopped && !matches!(state, State::Terminating(_)) => {
                Event::Stop
            }
            () = sleep_until(deadline.into()) => Event::Tick,
            event = self.received() => event,
        }
    }

    /// Waits for a message. Nothing is lost if it is not waited for to the end.
    async fn received(&mut self) -> Event {
        loop {
            if let Some((message, length)) = Message::read(&self.inbox) {
                self.take_turn().await;
                self.inbox.drain(..length);
                return Event::Received(message);
            }
            match self.stream.read(&mut self.chunk[..]).await {
                Ok(0) => {
                    self.error = Some(io::ErrorKind::UnexpectedEof.into());
                    return Event::Lost;
                }
                Ok(length) => self.inbox.extend(&self.chunk[..length]),
                Err(error) => {
                    self.error = Some(error);
                    return Event::Lost;
                }
            }
        }
    }

    /// Waits where the modem has sent more than is looked at in a window.
    async fn take_turn(&mut self) {
        if self.left == 0 {
            sleep_until((self.window + WINDOW).into()).await;
        }
        if self.window.elapsed() >= WINDOW {
            (self.left, self.window) = (MESSAGES, Instant::now());
        }
        self.left = self.left.saturating_sub(1);
    }

    /// Returns whether the modem is there, at the end of a session.
    fn reach(&self) -> Reach {
        match &self.error {
            Some(error) => Reach::of(error),
            // Its kernel acknowledges what is sent, even where the program does not read.
            None => match pepd_sys::stream::unacknowledged(self.stream.as_fd()) {
                Ok(0) => Reach::Reached,
                Ok(_) => Reach::Unreachable,
                Err(_) => Reach::Unknown,
            },
        }
    }
}
