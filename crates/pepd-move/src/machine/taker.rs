//! The box that takes.
//!
//! ```text
//!  offer ─▶ Considering ──▶ Receiving ──all there──▶ Ready ──activate──▶ Activating ──▶ Over (serves)
//!                │              │                      │
//!                └──────────────┴── refused, cut, late, asked, aborted ──▶ discard ──▶ Over (never serves)
//! ```
//!
//! What is restored is silent until Activating. Whoever is asked what has become of a move before that has
//! it end: the answer is a promise.

use std::collections::VecDeque;
use std::time::Instant;

use pepd_packet::snapshot::SplitSnapshot;

use super::{FROZEN_TIME, Members, OFFER_TIME, take_refused};
use crate::wire::{Assembly, Frame, MoveId, Offer, Offered, Reason, Refused};

/// The moves that a box remembers to have taken.
const MOST_GIVEN: usize = 4096;

/// Something that happens to a box that takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakerEvent {
    /// The other box has said this.
    Received(Frame),
    /// The offer is welcome, but for these.
    Considered(Vec<Refused>),
    /// A connection is there and silent, or why not.
    Restored(u16, Option<Reason>),
    /// Those that were to be activated are served, but for these.
    Activated(Vec<Refused>),
    /// None of those that were to be activated is served, as what belongs to them cannot be had.
    Unready(Reason),
    /// The session has ended.
    Cut,
    /// Somebody asks what has become of the move ([`Frame::Ask`]): see [`Taker::will_serve`].
    Asked,
    /// Time has passed.
    Tick,
}

/// Something that a box that takes has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakerAction {
    /// Say this, where the session is open.
    Send(Frame),
    /// Tell which of these are not welcome.
    Consider(Vec<Offered>),
    /// Put this connection into silent sockets, and tell what has come of it.
    Restore(u16, Box<SplitSnapshot>),
    /// Serve these, each of which is noted where it outlives the process, and tell which are lost; or that none is
    /// served ([`TakerEvent::Unready`]).
    Activate(MoveId, Members),
    /// Close all that is restored without a word.
    Discard,
}

/// How a move has ended for the box that takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakerOutcome {
    /// It serves what it has said that it does.
    Serves,
    /// It serves nothing of it, and never will.
    Never(Reason),
}

/// A move that is under way, as the box has it that takes.
#[derive(Debug, PartialEq, Eq)]
pub struct Taker {
    id: MoveId,
    flows: Vec<Offered>,
    /// Those that may come, or are there.
    members: Members,
    state: State,
    deadline: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Considering,
    Receiving(Box<Receiving>),
    Ready,
    /// Whether somebody has asked meanwhile, and has been promised that they will be served.
    Activating {
        promised: bool,
    },
    Over(TakerOutcome),
}

/// What has come so far.
#[derive(Debug, Default, PartialEq, Eq)]
struct Receiving {
    assembly: Option<Assembly>,
    /// Those that have come.
    came: Members,
    /// Those of them whose restoration has been told.
    told: Members,
    refused: Vec<Refused>,
    /// Whether no more is to come.
    all: bool,
}

type Actions = Vec<TakerAction>;

impl Taker {
    /// Begins with an offer.
    #[must_use]
    pub fn begin(offer: Offer, now: Instant) -> (Self, Actions) {
        let count = u16::try_from(offer.flows.len()).unwrap_or(u16::MAX);
        let taker = Self {
            id: offer.id,
            members: (0..count).collect(),
            flows: offer.flows.clone(),
            state: State::Considering,
            deadline: Some(now + OFFER_TIME),
        };
        (taker, vec![TakerAction::Consider(offer.flows)])
    }

    /// Returns which move it is.
    #[must_use]
    pub fn id(&self) -> MoveId {
        self.id
    }

    /// Returns when the next [`TakerEvent::Tick`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns how it has ended, if it has.
    #[must_use]
    pub fn outcome(&self) -> Option<TakerOutcome> {
        match self.state {
            State::Over(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Returns which it serves, or is about to. After a [`TakerEvent::Asked`] that is for good.
    #[must_use]
    pub fn will_serve(&self) -> Members {
        match self.state {
            State::Activating { .. } | State::Over(TakerOutcome::Serves) => self.members.clone(),
            _ => Members::new(),
        }
    }

    /// Says what is to be done about an event.
    pub fn on(&mut self, event: TakerEvent, now: Instant) -> Actions {
        use TakerEvent::{Activated, Asked, Considered, Cut, Received, Restored, Tick, Unready};
        let is_late = self.deadline.is_some_and(|deadline| deadline <= now);
        match (&mut self.state, event) {
            (State::Over(_), _) => Vec::new(),
            (State::Activating { .. }, Activated(lost)) => self.activated(lost),
            (State::Activating { promised: false }, Unready(why)) => self.never(why, true),
            (State::Activating { promised: true }, Unready(why)) => {
                let members = self.members.iter();
                let lost = members.map(|&index| Refused { index, why });
                let lost = lost.collect();
                self.activated(lost)
            }
            (State::Activating { promised }, Asked) => {
                *promised = true;
                Vec::new()
            }
            (State::Activating { .. }, _) => Vec::new(),
            (_, Received(Frame::Abort(why))) => self.never(why, false),
            (_, Cut | Asked) => self.never(Reason::Cancelled, false),
            (_, Tick) if is_late => self.never(Reason::Late, true),
            (_, Tick) => Vec::new(),
            (State::Considering, Considered(refused)) => self.considered(refused, now),
            (State::Receiving(_), Received(frame)) => self.received(frame),
            (State::Receiving(receiving), Restored(index, why)) => {
                if !receiving.came.contains(&index) || !receiving.told.insert(index) {
                    return Vec::new();
                }
                receiving
                    .refused
                    .extend(why.map(|why| Refused { index, why }));
                self.ready()
            }
            (State::Ready, Received(Frame::Activate)) => {
                self.state = State::Activating { promised: false };
                self.deadline = None;
                vec![TakerAction::Activate(self.id, self.members.clone())]
            }
            (_, Received(_)) => self.never(Reason::Confused, true),
            (_, Considered(_) | Restored(..) | Activated(_) | Unready(_)) => Vec::new(),
        }
    }

    fn activated(&mut self, lost: Vec<Refused>) -> Actions {
        self.members
            .retain(|index| lost.iter().all(|it| it.index != *index));
        self.over(TakerOutcome::Serves);
        vec![TakerAction::Send(Frame::Activated(lost))]
    }

    fn over(&mut self, outcome: TakerOutcome) {
        self.state = State::Over(outcome);
        self.deadline = None;
    }

    /// Ends it, for good.
    fn never(&mut self, why: Reason, say: bool) -> Actions {
        let mut actions = Vec::new();
        if !matches!(self.state, State::Considering) {
            actions.push(TakerAction::Discard);
        }
        // Only now: it is a promise.
        if say {
            actions.push(TakerAction::Send(Frame::Abort(why)));
        }
        self.over(TakerOutcome::Never(why));
        actions
    }

    fn considered(&mut self, refused: Vec<Refused>, now: Instant) -> Actions {
        if take_refused(&mut self.members, &refused).is_none() {
            return self.never(Reason::Confused, true);
        }
        self.state = State::Receiving(Box::default());
        // Longer than the other box waits.
        self.deadline = Some(now + OFFER_TIME + FROZEN_TIME);
        vec![TakerAction::Send(Frame::Accept(refused))]
    }

    fn received(&mut self, frame: Frame) -> Actions {
        let State::Receiving(receiving) = &mut self.state else {
            return Vec::new();
        };
        match (frame, receiving.assembly.is_some()) {
            _ if receiving.all => {}
            (Frame::Connection(head), false) => {
                let offered = self.flows.get(usize::from(head.index));
                let known = offered.is_some_and(|it| it.flow == head.connection().flow);
                let wanted = self.members.contains(&head.index) && known;
                if wanted && receiving.came.insert(head.index) {
                    receiving.assembly = Some(Assembly::begin(*head));
                    return self.assembled();
                }
            }
            (Frame::Data(bytes), true) => {
                let assembly = receiving.assembly.as_mut();
                if assembly.is_some_and(|assembly| assembly.add(&bytes).is_ok()) {
                    return self.assembled();
                }
            }
            (Frame::Transferred, false) => {
                receiving.all = true;
                return self.ready();
            }
            _ => {}
        }
        self.never(Reason::Confused, true)
    }

    /// Has the connection restored whose data has all come.
    fn assembled(&mut self) -> Actions {
        let State::Receiving(receiving) = &mut self.state else {
            return Vec::new();
        };
        let complete = receiving
            .assembly
            .take_if(|assembly| assembly.is_complete());
        match complete.map(Assembly::finish) {
            Some(Ok((index, connection))) => {
                vec![TakerAction::Restore(index, Box::new(connection))]
            }
            Some(Err(_)) => self.never(Reason::Confused, true),
            None => Vec::new(),
        }
    }

    /// Says what is there, once that is known of all.
    fn ready(&mut self) -> Actions {
        let State::Receiving(receiving) = &mut self.state else {
            return Vec::new();
        };
        if !receiving.all || receiving.told != receiving.came {
            return Vec::new();
        }
        // Those that were left behind the other box knows of.
        self.members = std::mem::take(&mut receiving.came);
        let mut refused = std::mem::take(&mut receiving.refused);
        refused.sort_by_key(|refused| refused.index);
        if take_refused(&mut self.members, &refused).is_none() {
            return self.never(Reason::Confused, true);
        }
        self.state = State::Ready;
        vec![TakerAction::Send(Frame::Restored(refused))]
    }
}

/// The connections that a box has taken, by move, as far as it remembers.
#[derive(Clone, Debug, Default)]
pub struct Given(VecDeque<(MoveId, Members)>);

impl Given {
    /// Remembers one; the oldest moves are forgotten, long after anybody would ask.
    pub fn remember(&mut self, id: MoveId, index: u16) {
        if let Some((_, members)) = self.0.iter_mut().rev().find(|(it, _)| *it == id) {
            members.insert(index);
            return;
        }
        self.0.push_back((id, Members::from([index])));
        if self.0.len() > MOST_GIVEN {
            self.0.pop_front();
        }
    }

    /// Returns those that have been taken with this move.
    #[must_use]
    pub fn of(&self, id: MoveId) -> Members {
        let mut moves = self.0.iter();
        let found = moves.find(|(it, _)| *it == id);
        found.map_or_else(Members::new, |(_, members)| members.clone())
    }
}
