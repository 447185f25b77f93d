//! Two boxes, what they have, and what is between them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::examples;
use crate::machine::{
    Given, Giver, GiverAction, GiverEvent, GiverOutcome, Members, Taker, TakerAction, TakerEvent,
    TakerOutcome,
};
use crate::wire::{Frame, Head, MoveId, Offer, Offered, Reason, Refused};

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// The box that gives does what is next, and it goes well or fails.
    GiverDoes(bool),
    TakerDoes(bool),
    /// The next frame of a session arrives.
    ReachesTaker(u8),
    ReachesGiver,
    /// A box sees the end of a session; what was on its way to it is lost.
    GiverSeesCut,
    TakerSeesCut(u8),
    /// Time passes, up to the next deadline.
    GiverWaits,
    TakerWaits,
    /// The process dies, and another one goes on.
    GiverCrashes,
    TakerCrashes,
    /// The same, when the other one has begun to serve so many of those that it is to.
    TakerCrashesBeginning(u8),
    /// The box dies, for good.
    TakerDies,
    /// It cannot have what belongs to those that it is to serve next.
    TakerIsUnready,
    Cancelled,
}

/// A session; the first one has the move.
#[derive(Debug, Default)]
struct Session {
    to_taker: VecDeque<Frame>,
    to_giver: VecDeque<Frame>,
    /// Whether a box has seen its end.
    giver_has_left: bool,
    taker_has_left: bool,
}

#[derive(Debug)]
pub struct World {
    now: Instant,
    flows: Vec<Offered>,
    giver: Option<Giver>,
    giver_to_do: VecDeque<GiverAction>,
    frozen: Members,
    /// Those of them that the box that gives remembers to have given, whatever dies.
    pub given_away: Members,
    closed: Members,
    taker: Option<Taker>,
    taker_to_do: VecDeque<TakerAction>,
    /// What the box that takes remembers.
    given: Given,
    restored: Members,
    served: Members,
    lost: Members,
    taker_is_dead: bool,
    sessions: Vec<Session>,
    outcome: Option<GiverOutcome>,
}

impl World {
    pub fn begin(flows: u16) -> Self {
        let (now, id) = (Instant::now(), MoveId([7; 16]));
        let flows: Vec<_> = (0..flows).map(examples::offered).collect();
        let offer = Offer {
            id,
            flows: flows.clone(),
        };
        let (giver, actions) = Giver::offer(offer, now);
        Self {
            now,
            flows,
            giver: Some(giver),
            giver_to_do: actions.into(),
            frozen: Members::new(),
            given_away: Members::new(),
            closed: Members::new(),
            taker: None,
            taker_to_do: VecDeque::new(),
            given: Given::default(),
            restored: Members::new(),
            served: Members::new(),
            lost: Members::new(),
            taker_is_dead: false,
            sessions: vec![Session::default()],
            outcome: None,
        }
    }

    /// Returns which of the boxes serve a connection: the one that gives, and the one that takes.
    pub fn serves(&self, index: u16) -> (bool, bool) {
        let gives = !self.frozen.contains(&index) && !self.closed.contains(&index);
        (gives, self.served.contains(&index) && !self.taker_is_dead)
    }

    pub fn both_serve(&self) -> bool {
        let mut all = 0..u16::try_from(self.flows.len()).unwrap();
        all.any(|index| self.serves(index) == (true, true))
    }

    /// Returns whether the box that takes is to serve them next.
    pub fn is_about_to_serve(&self) -> bool {
        matches!(self.taker_to_do.front(), Some(TakerAction::Activate(..)))
    }

    pub fn is_lost(&self, index: u16) -> bool {
        self.lost.contains(&index) || self.taker_is_dead && self.served.contains(&index)
    }

    pub fn outcome(&self) -> Option<&GiverOutcome> {
        let now = self.giver.as_ref().and_then(Giver::outcome);
        now.or(self.outcome.as_ref())
    }

    pub fn happens(&mut self, happening: Happening) {
        use Happening::*;
        match happening {
            GiverDoes(well) => self.giver_does(well),
            TakerDoes(well) => self.taker_does(well),
            ReachesTaker(session) => self.reaches_taker(usize::from(session)),
            ReachesGiver => self.reaches_giver(),
            GiverSeesCut => {
                if let Some(session) = self.sessions.last_mut()
                    && !session.giver_has_left
                {
                    session.giver_has_left = true;
                    self.tell_giver(GiverEvent::Cut);
                }
            }
            TakerSeesCut(session) => self.taker_leaves(usize::from(session)),
            GiverWaits => {
                let deadline = self.giver.as_ref().and_then(Giver::deadline);
                self.now = deadline.unwrap_or(self.now).max(self.now);
                self.tell_giver(GiverEvent::Tick);
            }
            TakerWaits => {
                let deadline = self.taker.as_ref().and_then(Taker::deadline);
                self.now = deadline.unwrap_or(self.now).max(self.now);
                self.tell_taker(TakerEvent::Tick);
            }
            GiverCrashes => self.giver_crashes(),
            TakerCrashes => self.taker_crashes(),
            TakerCrashesBeginning(count) => {
                if let Some(TakerAction::Activate(id, members)) = self.taker_to_do.front().cloned()
                {
                    for index in members.into_iter().take(usize::from(count)) {
                        self.given.remember(id, index);
                        self.served.insert(index);
                    }
                }
                self.taker_crashes();
            }
            TakerDies => {
                self.taker_crashes();
                self.taker_is_dead = true;
            }
            TakerIsUnready => self.taker_is_unready(),
            Cancelled => self.tell_giver(GiverEvent::Cancelled),
        }
    }

    /// Does the next thing that is to be done, and as it should be; false where there is nothing.
    pub fn next(&mut self) -> bool {
        let count = self.sessions.len();
        let waiting = (0..count).find(|at| {
            let session = &self.sessions[*at];
            !session.taker_has_left && !session.to_taker.is_empty()
        });
        let answered = self
            .sessions
            .last()
            .is_some_and(|last| !last.giver_has_left && !last.to_giver.is_empty());
        if !self.giver_to_do.is_empty() {
            self.giver_does(true);
        } else if let Some(at) = waiting {
            self.reaches_taker(at);
        } else if !self.taker_to_do.is_empty() {
            self.taker_does(true);
        } else if answered {
            self.reaches_giver();
        } else {
            return false;
        }
        true
    }

    /// Lets all happen that is still to happen, with nothing in its way that was not before; false where
    /// that does not end.
    pub fn settles(&mut self) -> bool {
        for _ in 0..2000 {
            if self.next() {
                continue;
            }
            // Both see the end of what has ended.
            for at in 0..self.sessions.len() {
                let is_last = at + 1 == self.sessions.len();
                let session = &self.sessions[at];
                let giver_is_gone = session.giver_has_left || !is_last;
                if giver_is_gone && !session.taker_has_left {
                    self.taker_leaves(at);
                }
            }
            if let Some(session) = self.sessions.last()
                && session.taker_has_left
                && !session.giver_has_left
            {
                self.happens(Happening::GiverSeesCut);
            } else if self.giver.as_ref().and_then(Giver::deadline).is_some() {
                self.happens(Happening::GiverWaits);
            } else if self.taker.as_ref().and_then(Taker::deadline).is_some() {
                self.happens(Happening::TakerWaits);
            } else if self.giver_to_do.is_empty() && self.taker_to_do.is_empty() {
                return true;
            }
        }
        false
    }

    fn tell_giver(&mut self, event: GiverEvent) {
        if let Some(giver) = &mut self.giver {
            self.giver_to_do.extend(giver.on(event, self.now));
        }
    }

    fn tell_taker(&mut self, event: TakerEvent) {
        if let Some(taker) = &mut self.taker {
            self.taker_to_do.extend(taker.on(event, self.now));
        }
    }

    fn giver_does(&mut self, well: bool) {
        match self.giver_to_do.pop_front() {
            None => {}
            Some(GiverAction::Send(frame)) => {
                if let Some(session) = self.sessions.last_mut()
                    && !session.giver_has_left
                    && !session.taker_has_left
                {
                    session.to_taker.push_back(frame);
                }
            }
            Some(GiverAction::Freeze(members)) => {
                // Where it fails it does for the first of them.
                let mut refused = Vec::new();
                for index in members {
                    if !well && refused.is_empty() {
                        refused.push(Refused {
                            index,
                            why: Reason::Unfit,
                        });
                    } else {
                        self.frozen.insert(index);
                    }
                }
                self.tell_giver(GiverEvent::Frozen(refused));
            }
            Some(GiverAction::Transfer(members)) => self.transfer(&members),
            Some(GiverAction::Give(members)) => {
                assert!(members.is_subset(&self.frozen));
                self.given_away.extend(members);
            }
            Some(GiverAction::Thaw(members)) => {
                self.frozen.retain(|index| !members.contains(index));
                self.given_away.retain(|index| !members.contains(index));
            }
            Some(GiverAction::Close(members)) => {
                self.frozen.retain(|index| !members.contains(index));
                self.given_away.retain(|index| !members.contains(index));
                self.closed.extend(members);
            }
            Some(GiverAction::Connect) => {
                if self.taker_is_dead || !well {
                    self.tell_giver(GiverEvent::Cut);
                } else {
                    self.sessions.push(Session::default());
                    self.tell_giver(GiverEvent::Connected);
                }
            }
        }
    }

    fn transfer(&mut self, members: &Members) {
        let at = self.sessions.len() - 1;
        for index in members {
            let connection = examples::connection(self.flows[usize::from(*index)].flow);
            let (head, data) = Head::part(*index, connection).unwrap();
            let frames = [Frame::Connection(Box::new(head))].into_iter().chain(data);
            let session = &mut self.sessions[at];
            if !session.giver_has_left && !session.taker_has_left {
                session.to_taker.extend(frames);
            }
        }
        self.giver_to_do
            .push_front(GiverAction::Send(Frame::Transferred));
        self.giver_does(true);
        self.tell_giver(GiverEvent::Sent);
    }

    fn taker_says(&mut self, session: usize, frame: Frame) {
        let last = self.sessions.len() - 1;
        let it = &mut self.sessions[session];
        // Nobody reads one that is not the last.
        if session == last && !it.taker_has_left && !it.giver_has_left {
            it.to_giver.push_back(frame);
        }
    }

    fn taker_does(&mut self, well: bool) {
        let why = (!well).then_some(Reason::Full);
        match self.taker_to_do.pop_front() {
            None => {}
            Some(TakerAction::Send(frame)) => self.taker_says(0, frame),
            Some(TakerAction::Consider(_)) => {
                let refused = why.map(|why| Refused { index: 1, why });
                self.tell_taker(TakerEvent::Considered(refused.into_iter().collect()));
            }
            Some(TakerAction::Restore(index, connection)) => {
                assert_eq!(
                    *connection,
                    examples::connection(self.flows[usize::from(index)].flow)
                );
                if well {
                    self.restored.insert(index);
                }
                self.tell_taker(TakerEvent::Restored(index, why));
            }
            Some(TakerAction::Activate(id, members)) => {
                assert!(members.is_subset(&self.restored));
                let mut lost = Vec::new();
                for index in members {
                    if !well && lost.is_empty() {
                        lost.push(Refused {
                            index,
                            why: Reason::Kernel(12),
                        });
                        self.lost.insert(index);
                    } else {
                        self.given.remember(id, index);
                        self.served.insert(index);
                    }
                }
                self.restored.clear();
                self.tell_taker(TakerEvent::Activated(lost));
            }
            Some(TakerAction::Discard) => self.restored.clear(),
        }
    }

    fn taker_is_unready(&mut self) {
        let next = self
            .taker_to_do
            .pop_front_if(|it| matches!(it, TakerAction::Activate(..)));
        if let Some(TakerAction::Activate(_, members)) = next {
            self.tell_taker(TakerEvent::Unready(Reason::Packets));
            // It has said that it will.
            if self.taker.as_ref().and_then(Taker::outcome) == Some(TakerOutcome::Serves) {
                self.lost.extend(members);
                self.restored.clear();
            }
        }
    }

    fn reaches_taker(&mut self, session: usize) {
        let at = session % self.sessions.len();
        if self.sessions[at].taker_has_left {
            return;
        }
        let Some(frame) = self.sessions[at].to_taker.pop_front() else {
            return;
        };
        match frame {
            Frame::Ask(id) => {
                self.tell_taker(TakerEvent::Asked);
                let mut serves = self.given.of(id);
                serves.extend(self.taker.iter().flat_map(Taker::will_serve));
                let serves = serves.into_iter().collect();
                self.taker_says(at, Frame::Answer(id, serves));
            }
            Frame::Offer(offer) => {
                let (taker, actions) = Taker::begin(offer, self.now);
                self.taker = Some(taker);
                self.taker_to_do.extend(actions);
            }
            frame => {
                if matches!(frame, Frame::Abort(_)) {
                    // It holds nothing that comes for them from now on.
                    assert!(
                        self.frozen.is_empty(),
                        "sent on to who is told that nothing is"
                    );
                }
                self.tell_taker(TakerEvent::Received(frame));
            }
        }
    }

    fn reaches_giver(&mut self) {
        if let Some(session) = self.sessions.last_mut()
            && !session.giver_has_left
            && let Some(frame) = session.to_giver.pop_front()
        {
            self.tell_giver(GiverEvent::Received(frame));
        }
    }

    fn taker_leaves(&mut self, session: usize) {
        let at = session % self.sessions.len();
        let session = &mut self.sessions[at];
        if !session.taker_has_left {
            session.taker_has_left = true;
            session.to_taker.clear();
            if at == 0 {
                self.tell_taker(TakerEvent::Cut);
            }
        }
    }

    fn giver_crashes(&mut self) {
        self.outcome = self.outcome().cloned();
        self.giver_to_do.clear();
        if let Some(session) = self.sessions.last_mut() {
            session.giver_has_left = true;
        }
        self.giver = None;
        self.outcome
            .get_or_insert(match self.given_away.is_empty() {
                true => GiverOutcome::Stayed(Reason::Cancelled),
                false => GiverOutcome::Unknown,
            });
        // What was not given goes on.
        self.frozen.clear();
        self.closed.append(&mut self.given_away);
    }

    fn taker_crashes(&mut self) {
        self.taker = None;
        self.taker_to_do.clear();
        self.restored.clear();
        for session in &mut self.sessions {
            session.taker_has_left = true;
            session.to_taker.clear();
        }
        self.now += Duration::from_millis(1);
    }
}
