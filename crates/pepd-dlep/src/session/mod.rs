//! The router's side of a session with a modem, from the TCP connection's first byte to its last: a
//! total function of where it stands and what happens. No I/O and no clock: the time is passed in.
//!
//! ```text
//!             Session Initialization Response: success
//!   Initializing ───────────────────────────────▶ InSession
//!    │ │                                            │   │
//!    │ │ time over, or a message that has no place, │   │
//!    │ │ is not understood, or of a destination     │   │
//!    │ │ that is unknown; or it is to end           │   │
//!    │ └──────────────▶ Terminating ◀───────────────┘   │
//!    │                       │                          │
//!    │ refused, terminated   │ Session Termination      │ terminated
//!    │ by the modem, lost    │ Response, time over,     │ by the modem,
//!    │                       ▼ lost                     │ lost
//!    └────────────────────▶ Ended ◀─────────────────────┘
//! ```
//! (section 7; what a termination does to the links is its owner's to say.)

mod destinations;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::{Duration, Instant};

use destinations::{Destinations, Taken};
pub use destinations::{Link, MOST, Metrics};

use crate::item::DataItem;
use crate::mac::MacAddress;
use crate::message::{Message, MessageError, MessageKind};
use crate::status::{Status, StatusCode};

/// The time in which a modem has to accept a session.
const INITIALIZATION: Duration = Duration::from_secs(10);
/// The time for which the end of a session waits for its confirmation.
const TERMINATION: Duration = Duration::from_secs(2);
/// The least time without a word after which a modem is silent, whatever interval it has named.
const LEAST_PATIENCE: Duration = Duration::from_millis(500);
/// The time that a modem has at the session's beginning to announce a destination, before the link
/// counts as gone.
const FIRST_DESTINATION: Duration = Duration::from_secs(2);

/// What a session is begun with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The time between two heartbeats of the router's.
    pub heartbeat: Duration,
    /// What the router says it is.
    pub peer_type: String,
    /// The only destination that counts, if it is not any.
    pub destination: Option<MacAddress>,
}

/// What happens to a session.
#[derive(Debug)]
pub enum Event {
    /// A message has come, or what is none.
    Received(Result<Message, MessageError>),
    /// It is [`State::deadline`].
    Tick,
    /// The connection has ended.
    Lost,
    /// The router ends.
    Stop,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// To send a message.
    Send(Message),
    /// To close the connection.
    Close,
    /// To take note of something.
    Report(Report),
}

/// What becomes known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The session is there.
    Begun {
        /// What the modem says it is. Not trusted.
        modem: String,
    },
    /// The link is another than before.
    Link(Link),
    /// The modem has more than [`MOST`] destinations. Said once.
    TooMany,
    /// The session is over.
    Ended(End),
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The modem does not want it.
    Refused(Status),
    /// The modem has ended it.
    ByModem(Status),
    /// The connection has ended.
    Lost,
    /// The modem has been silent for too long.
    Silent,
    /// The modem did not accept it in time.
    NotAccepted,
    /// The modem sent something that is not understood.
    Invalid(MessageError),
    /// The modem sent a message where it has no place.
    Unexpected(MessageKind),
    /// The modem spoke of a destination that it has not announced.
    UnknownDestination(MacAddress),
    /// The router ends.
    Stopped,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status) => write!(f, "the modem refuses: {}", status.code),
            Self::ByModem(status) => write!(f, "the modem has ended it: {}", status.code),
            Self::Lost => f.write_str("the connection has ended"),
            Self::Silent => f.write_str("the modem is silent"),
            Self::NotAccepted => f.write_str("the modem has not accepted it in time"),
            Self::Invalid(error) => write!(f, "not understood: {error}"),
            Self::Unexpected(kind) => write!(f, "{kind} has no place there"),
            Self::UnknownDestination(address) => {
                write!(f, "destination {address} has not been announced")
            }
            Self::Stopped => f.write_str("pepd has ended it"),
        }
    }
}

impl End {
    /// Returns the code with which the modem is told; None if it knows, or is not there.
    fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused(_) | Self::ByModem(_) | Self::Lost => None,
            Self::Silent | Self::NotAccepted => Some(StatusCode::TIMED_OUT),
            Self::Invalid(error) => Some(error.status()),
            Self::Unexpected(_) => Some(StatusCode::UNEXPECTED_MESSAGE),
            Self::UnknownDestination(_) => Some(StatusCode::INVALID_DESTINATION),
            Self::Stopped => Some(StatusCode::SHUTTING_DOWN),
        }
    }
}

/// Where a session stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The modem has been asked for it.
    Initializing(Initializing),
    /// It is there.
    InSession(Box<InSession>),
    /// The modem has been told that it ends; waits until then for the confirmation.
    Terminating(Instant),
    /// It is over.
    Ended,
}

/// A session that the modem has been asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initializing {
    until: Instant,
    settings: Settings,
}

/// A session that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InSession {
    /// The time between two heartbeats of the router's.
    heartbeat: Duration,
    /// The longest time without a word of the modem's, if it has said that it will speak.
    patience: Option<Duration>,
    heard: Instant,
    sent: Instant,
    destinations: Destinations,
    /// When no destination means that the link is gone.
    believed_at: Option<Instant>,
    reported: Option<Link>,
    has_too_many: bool,
}

/// The next state, and what is to be done.
pub type Step = (State, Vec<Action>);

impl State {
    /// Begins a session on a connection that is there: asks the modem for it (section 12.5).
    pub fn begin(settings: &Settings, now: Instant) -> Step {
        let interval = u32::try_from(settings.heartbeat.as_millis()).unwrap_or(u32::MAX);
        let items = [
            DataItem::HeartbeatInterval(interval),
            DataItem::PeerType {
                secured: false,
                description: settings.peer_type.clone(),
            },
        ];
        let state = Self::Initializing(Initializing {
            until: now + INITIALIZATION,
            settings: settings.clone(),
        });
        let ask = Message::new(MessageKind::SessionInitialization, items);
        (state, vec![Action::Send(ask)])
    }

    /// Returns when it is to hear of a tick.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Initializing(initializing) => Some(initializing.until),
            Self::InSession(session) => Some(session.deadline()),
            Self::Terminating(until) => Some(*until),
            Self::Ended => None,
        }
    }

    /// Takes the session through an event.
    pub fn on(self, event: Event, now: Instant) -> Step {
        match (self, event) {
            (Self::Ended, _) => (Self::Ended, Vec::new()),
            (Self::Terminating(until), event) => terminating(until, &event, now),
            (_, Event::Lost) => ended(End::Lost),
            (_, Event::Stop) => terminate(End::Stopped, now),
            (_, Event::Received(Err(error))) => terminate(End::Invalid(error), now),
            (_, Event::Received(Ok(message)))
                if message.kind == MessageKind::SessionTermination =>
            {
                terminated(&message)
            }
            (Self::Initializing(state), Event::Received(Ok(message))) => {
                state.received(&message, now)
            }
            (Self::Initializing(state), Event::Tick) if now < state.until => {
                (Self::Initializing(state), Vec::new())
            }
            (Self::Initializing(_), Event::Tick) => terminate(End::NotAccepted, now),
            (Self::InSession(session), Event::Received(Ok(message))) => {
                session.received(&message, now)
            }
            (Self::InSession(session), Event::Tick) => session.tick(now),
        }
    }
}

/// Tells the modem that the session ends, and why (section 7.4).
fn terminate(end: End, now: Instant) -> Step {
    let code = end.status().unwrap_or(StatusCode::SHUTTING_DOWN);
    let message = with_status(MessageKind::SessionTermination, code, None);
    let actions = vec![Action::Report(Report::Ended(end)), Action::Send(message)];
    (State::Terminating(now + TERMINATION), actions)
}

/// Waits for the confirmation; what else comes meanwhile is too late.
fn terminating(until: Instant, event: &Event, now: Instant) -> Step {
    let is_confirmed = match event {
        Event::Received(Ok(message)) => matches!(
            message.kind,
            // The modem may end it at the same time.
            MessageKind::SessionTerminationResponse | MessageKind::SessionTermination
        ),
        Event::Received(Err(_)) | Event::Stop => false,
        Event::Tick => now >= until,
        Event::Lost => true,
    };
    match is_confirmed {
        true => (State::Ended, vec![Action::Close]),
        false => (State::Terminating(until), Vec::new()),
    }
}

/// Confirms what the modem has ended (section 12.10).
fn terminated(message: &Message) -> Step {
    let response = Message::new(MessageKind::SessionTerminationResponse, []);
    let actions = vec![
        Action::Report(Report::Ended(End::ByModem(status_of(message)))),
        Action::Send(response),
        Action::Close,
    ];
    (State::Ended, actions)
}

fn ended(end: End) -> Step {
    let actions = vec![Action::Report(Report::Ended(end)), Action::Close];
    (State::Ended, actions)
}

fn status_of(message: &Message) -> Status {
    let status = message.status().cloned();
    status.unwrap_or_else(|| StatusCode::SUCCESS.into())
}

fn with_status(kind: MessageKind, code: StatusCode, about: Option<MacAddress>) -> Message {
    let about = about.map(DataItem::Mac).into_iter();
    let items = about.chain([DataItem::Status(code.into())]);
    Message::new(kind, items.collect::<Vec<_>>())
}

impl Initializing {
    fn received(self, message: &Message, now: Instant) -> Step {
        if message.kind != MessageKind::SessionInitializationResponse {
            return terminate(End::Unexpected(message.kind), now);
        }
        let status = status_of(message);
        if status.code != StatusCode::SUCCESS {
            return ended(End::Refused(status));
        }
        let (mut modem, mut patience) = (String::new(), None);
        for item in &message.items {
            match item {
                DataItem::PeerType { description, .. } => modem.clone_from(description),
                DataItem::HeartbeatInterval(interval) if *interval > 0 => {
                    let interval = Duration::from_millis((*interval).into());
                    patience = Some((2 * interval).max(LEAST_PATIENCE));
                }
                _ => {}
            }
        }
        let mut metrics = Metrics::default();
        metrics.update(&message.items);
        let session = InSession {
            heartbeat: self.settings.heartbeat,
            patience,
            heard: now,
            sent: now,
            destinations: Destinations::new(metrics, self.settings.destination),
            believed_at: Some(now + FIRST_DESTINATION),
            reported: None,
            has_too_many: false,
        };
        let begun = Action::Report(Report::Begun { modem });
        (State::InSession(Box::new(session)), vec![begun])
    }
}

impl InSession {
    fn deadline(&self) -> Instant {
        let silent = self.patience.map(|patience| self.heard + patience);
        let next = self.sent + self.heartbeat;
        let deadlines = [silent, self.believed_at].into_iter().flatten();
        deadlines.fold(next, Instant::min)
    }

    fn received(mut self: Box<Self>, message: &Message, now: Instant) -> Step {
        self.heard = now;
        let mut actions = Vec::new();
        let response = match (message.kind, message.destination()) {
            (MessageKind::Heartbeat, _) => None,
            (MessageKind::SessionUpdate, _) => {
                self.destinations.update_all(&message.items);
                let kind = MessageKind::SessionUpdateResponse;
                Some(with_status(kind, StatusCode::SUCCESS, None))
            }
            (MessageKind::DestinationUp, Some(address)) => {
                let code = self.up(address, &message.items, &mut actions);
                let kind = MessageKind::DestinationUpResponse;
                Some(with_status(kind, code, Some(address)))
            }
            (MessageKind::DestinationUpdate, Some(address)) => {
                if !self.destinations.update(address, &message.items) {
                    return terminate(End::UnknownDestination(address), now);
                }
                None
            }
            (MessageKind::DestinationDown, Some(address)) => {
                if !self.destinations.down(address) {
                    return terminate(End::UnknownDestination(address), now);
                }
                let kind = MessageKind::DestinationDownResponse;
                Some(with_status(kind, StatusCode::SUCCESS, Some(address)))
            }
            // The router's own, and answers to what it has not asked.
            (kind, _) => return terminate(End::Unexpected(kind), now),
        };
        if let Some(response) = response {
            self.sent = now;
            actions.push(Action::Send(response));
        }
        self.report(now, &mut actions);
        (State::InSession(self), actions)
    }

    fn up(
        &mut self,
        address: MacAddress,
        items: &[DataItem],
        actions: &mut Vec<Action>,
    ) -> StatusCode {
        match self.destinations.up(address, items) {
            Taken::Kept => StatusCode::SUCCESS,
            Taken::Uninteresting => StatusCode::NOT_INTERESTED,
            Taken::TooMany => {
                if !std::mem::replace(&mut self.has_too_many, true) {
                    actions.push(Action::Report(Report::TooMany));
                }
                StatusCode::NOT_INTERESTED
            }
        }
    }

    fn tick(mut self: Box<Self>, now: Instant) -> Step {
        if (self.patience).is_some_and(|patience| now >= self.heard + patience) {
            return terminate(End::Silent, now);
        }
        let mut actions = Vec::new();
        if now >= self.sent + self.heartbeat {
            self.sent = now;
            actions.push(Action::Send(Message::new(MessageKind::Heartbeat, [])));
        }
        self.report(now, &mut actions);
        (State::InSession(self), actions)
    }

    /// Reports the link if it is another than before. That none of its destinations is up means
    /// nothing as long as the modem may still be about to announce the first.
    fn report(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let link = self.destinations.link();
        if link.is_up || self.believed_at.is_some_and(|at| at <= now) {
            self.believed_at = None;
        }
        if self.believed_at.is_none() && self.reported != Some(link) {
            self.reported = Some(link);
            actions.push(Action::Report(Report::Link(link)));
        }
    }
}
