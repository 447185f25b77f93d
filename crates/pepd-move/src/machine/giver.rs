//! The box that gives.
//!
//! ```text
//!  Offered ──accepted──▶ Freezing ──frozen──▶ Transferring ──sent──▶ Restoring
//!     │                     │                      │                  │     │
//!     │ refused, cut, late, cancelled              │          refused │     │ restored: give
//!     ▼                     ▼                      ▼                  │     │
//!  Over (stays) ◀──────── thaw ◀──────────────── thaw ◀───────────────┘     ▼
//!     ▲                                                     activated   Activating ──cut, late──▶ Asking
//!     │ not served there: thaw      Over (moved) ◀── close ─────────────────┴──────────────────────┘ │
//!     └─────────────────────────────────────────────────────────────────────────────────────────────┤
//!                                   Over (lost)  ◀── close ─────────────────────────── no answer ────┘
//! ```
//!
//! Up to Restoring every failure leaves this box serving. From Activating on it serves only if the other box
//! says that it does not and will not; that it has come so far is noted before the other box is told. Whoever
//! goes on with a dead process closes what was given, and serves the rest.
//!
//! What comes for a connection goes on to the other box for as long as it is frozen, and once it is closed.

use std::collections::BTreeMap;
use std::time::Instant;

use super::{ASKING_PAUSE, ASKING_TIME, FROZEN_TIME, Members, OFFER_TIME, take_refused};
use crate::wire::{Frame, MoveId, Offer, Reason, Refused};

/// Something that happens to a box that gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GiverEvent {
    /// The other box has said this.
    Received(Frame),
    /// The members have been frozen, but for these, which go on here.
    Frozen(Vec<Refused>),
    /// All of them have been sent.
    Sent,
    /// The session that was asked for is open.
    Connected,
    /// The session has ended, or none is to be had.
    Cut,
    /// Somebody wants to have no move any more.
    Cancelled,
    /// Time has passed.
    Tick,
}

/// Something that a box that gives has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GiverAction {
    /// Say this, where a session is open.
    Send(Frame),
    /// Freeze these, have what comes for them go to the other box, and tell which could not be.
    Freeze(Members),
    /// Send these with their data, and tell when that is done.
    Transfer(Members),
    /// Note where it outlives the process that the other box may serve these, before anything else is done.
    Give(Members),
    /// Have what comes for these come here again, and serve them.
    Thaw(Members),
    /// Close these without a word.
    Close(Members),
    /// Open another session.
    Connect,
}

/// How a move has ended for the box that gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GiverOutcome {
    /// Those that did not stay are the other box's, but for those that it has lost.
    Moved {
        /// Those that it has lost.
        lost: Members,
    },
    /// All of them are served here.
    Stayed(Reason),
    /// The other box may serve them; they are not served here.
    Unknown,
}

/// A move that is under way, as the box has it that gives.
#[derive(Debug, PartialEq, Eq)]
pub struct Giver {
    id: MoveId,
    /// Those that are moving.
    members: Members,
    /// Those that stay, and why.
    stay: BTreeMap<u16, Reason>,
    state: State,
    deadline: Option<Instant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Offered,
    Freezing,
    Transferring,
    Restoring,
    Activating,
    Asking { until: Instant, connected: bool },
    Over(GiverOutcome),
}

type Actions = Vec<GiverAction>;

impl Giver {
    /// Offers connections.
    #[must_use]
    pub fn offer(offer: Offer, now: Instant) -> (Self, Actions) {
        let count = u16::try_from(offer.flows.len()).unwrap_or(u16::MAX);
        let giver = Self {
            id: offer.id,
            members: (0..count).collect(),
            stay: BTreeMap::new(),
            state: State::Offered,
            deadline: Some(now + OFFER_TIME),
        };
        (giver, vec![GiverAction::Send(Frame::Offer(offer))])
    }

    /// Returns when the next [`GiverEvent::Tick`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns how it has ended, if it has.
    #[must_use]
    pub fn outcome(&self) -> Option<&GiverOutcome> {
        match &self.state {
            State::Over(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Returns those of the connections that stay although others move, and why.
    #[must_use]
    pub fn stay(&self) -> &BTreeMap<u16, Reason> {
        &self.stay
    }

    /// Says what is to be done about an event.
    pub fn on(&mut self, event: GiverEvent, now: Instant) -> Actions {
        use GiverEvent::{Cancelled, Connected, Cut, Frozen, Received, Sent, Tick};
        let is_late = self.deadline.is_some_and(|deadline| deadline <= now);
        match (&self.state, event) {
            (State::Over(_), _) => Vec::new(),
            (State::Offered, Received(Frame::Accept(refused))) => self.accepted(&refused, now),
            (State::Freezing, Frozen(refused)) => self.frozen(&refused),
            (State::Transferring, Sent) => self.enter(State::Restoring),
            (State::Restoring, Received(Frame::Restored(refused))) => self.restored(&refused, now),
            (State::Activating, Received(Frame::Activated(lost))) => self.activated(&lost, now),
            // It promises with that never to serve them.
            (State::Activating, Received(Frame::Abort(why))) => self.give_up(why, false),
            (State::Activating, Cut) => self.ask(now),
            (State::Activating, Tick) if is_late => self.ask(now),
            // Whatever else it says says nothing of what it does.
            (State::Activating, Received(_)) => self.ask(now),
            (State::Asking { .. }, event) => self.asking(event, now),
            (State::Activating, _) => Vec::new(),
            // From here on: nothing has been given.
            (_, Received(Frame::Abort(why))) => self.give_up(why, false),
            (_, Received(_)) => self.give_up(Reason::Confused, true),
            (_, Cut) => self.give_up(Reason::Cancelled, false),
            (_, Cancelled) => self.give_up(Reason::Cancelled, true),
            (_, Tick) if is_late => self.give_up(Reason::Late, true),
            (_, Tick | Connected | Frozen(_) | Sent) => Vec::new(),
        }
    }

    fn enter(&mut self, state: State) -> Actions {
        self.state = state;
        Vec::new()
    }

    fn over(&mut self, outcome: GiverOutcome) {
        self.state = State::Over(outcome);
        self.deadline = None;
    }

    /// Takes those that are refused out; gives them, or none where that makes no sense.
    fn leave_behind(&mut self, refused: &[Refused]) -> Option<Members> {
        let out = take_refused(&mut self.members, refused)?;
        self.stay
            .extend(refused.iter().map(|refused| (refused.index, refused.why)));
        Some(out)
    }

    fn accepted(&mut self, refused: &[Refused], now: Instant) -> Actions {
        if self.leave_behind(refused).is_none() {
            return self.give_up(Reason::Confused, true);
        }
        if self.members.is_empty() {
            return self.nothing_left();
        }
        self.state = State::Freezing;
        self.deadline = Some(now + FROZEN_TIME);
        vec![GiverAction::Freeze(self.members.clone())]
    }

    fn frozen(&mut self, refused: &[Refused]) -> Actions {
        // What was not frozen needs no thawing.
        if self.leave_behind(refused).is_none() {
            return self.give_up(Reason::Confused, true);
        }
        if self.members.is_empty() {
            return self.nothing_left();
        }
        self.state = State::Transferring;
        vec![GiverAction::Transfer(self.members.clone())]
    }

    fn restored(&mut self, refused: &[Refused], now: Instant) -> Actions {
        let Some(out) = self.leave_behind(refused) else {
            return self.give_up(Reason::Confused, true);
        };
        let mut actions = Vec::new();
        if !out.is_empty() {
            actions.push(GiverAction::Thaw(out));
        }
        if self.members.is_empty() {
            actions.extend(self.nothing_left());
            return actions;
        }
        self.state = State::Activating;
        self.deadline = Some(now + FROZEN_TIME);
        actions.push(GiverAction::Give(self.members.clone()));
        actions.push(GiverAction::Send(Frame::Activate));
        actions
    }

    fn activated(&mut self, lost: &[Refused], now: Instant) -> Actions {
        let mut all = self.members.clone();
        match take_refused(&mut all, lost) {
            Some(lost) => self.close(GiverOutcome::Moved { lost }),
            None => self.ask(now),
        }
    }

    /// Closes those that the other box serves, and serves the others again, as it promises never to: its
    /// process has died while it began.
    fn answered(&mut self, served: &Members) -> Actions {
        let back: Members = self.members.difference(served).copied().collect();
        if back == self.members {
            return self.give_up(Reason::Cancelled, false);
        }
        let mut actions = Vec::new();
        if !back.is_empty() {
            self.members.retain(|index| !back.contains(index));
            let stay = back.iter().map(|index| (*index, Reason::Cancelled));
            self.stay.extend(stay);
            actions.push(GiverAction::Thaw(back));
        }
        let lost = Members::new();
        actions.extend(self.close(GiverOutcome::Moved { lost }));
        actions
    }

    fn close(&mut self, outcome: GiverOutcome) -> Actions {
        self.over(outcome);
        vec![GiverAction::Close(self.members.clone())]
    }

    /// All of them stay, each for its own reason.
    fn nothing_left(&mut self) -> Actions {
        let why = self.stay.values().next().copied();
        self.over(GiverOutcome::Stayed(why.unwrap_or(Reason::Confused)));
        vec![GiverAction::Send(Frame::Abort(Reason::Cancelled))]
    }

    /// Serves all of them again, and says so where the other box does not know: only once nothing goes there any more, as
    /// it keeps nothing for them from then on.
    fn give_up(&mut self, why: Reason, say: bool) -> Actions {
        let mut actions = Vec::new();
        if self.state != State::Offered {
            actions.push(GiverAction::Thaw(self.members.clone()));
        }
        if say {
            actions.push(GiverAction::Send(Frame::Abort(why)));
        }
        self.over(GiverOutcome::Stayed(why));
        actions
    }

    /// Asks in a session of its own.
    fn ask(&mut self, now: Instant) -> Actions {
        self.state = State::Asking {
            until: now + ASKING_TIME,
            connected: false,
        };
        self.deadline = Some(now + ASKING_PAUSE);
        vec![GiverAction::Connect]
    }

    fn asking(&mut self, event: GiverEvent, now: Instant) -> Actions {
        let State::Asking { until, connected } = &mut self.state else {
            return Vec::new();
        };
        match event {
            GiverEvent::Received(Frame::Answer(id, serves)) if id == self.id => {
                self.answered(&serves.into_iter().collect())
            }
            GiverEvent::Connected => {
                *connected = true;
                vec![GiverAction::Send(Frame::Ask(self.id))]
            }
            GiverEvent::Cut => {
                *connected = false;
                self.deadline = Some(now + ASKING_PAUSE);
                Vec::new()
            }
            GiverEvent::Tick if now >= *until => self.close(GiverOutcome::Unknown),
            GiverEvent::Tick if self.deadline.is_some_and(|deadline| deadline <= now) => {
                let connected = *connected;
                self.deadline = Some(now + ASKING_PAUSE);
                match connected {
                    true => Vec::new(),
                    false => vec![GiverAction::Connect],
                }
            }
            _ => Vec::new(),
        }
    }
}
