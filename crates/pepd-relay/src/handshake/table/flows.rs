//! What there is of each flow, and what becomes of it: the state that the table's lock protects.

use std::collections::HashMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use pepd_packet::{FourTuple, SequenceNumber, SourcePrefix};
use pepd_telemetry::{Throttle, UnsplitReason};

use super::given::{Claim, Evicted, FinalAck, Received};
use super::places::Places;
use super::taken::{Dial, ReceivedSyn};
use crate::handshake::connect_budget::ConnectBudget;
use crate::handshake::event::{Action, Event, Place, Ticket};
use crate::handshake::half_open::HalfOpen;
use crate::handshake::machine::{CLAIM_TIME, State, Step};
use crate::handshake::syn_history::SynHistory;
use crate::handshake::turned_away::TurnedAway;
use crate::handshake::verdict::SynVerdict;

/// The state that the lock protects.
#[derive(Debug)]
pub(super) struct Flows<P, U, D> {
    /// All that are neither unknown nor only remembered.
    pub(super) states: HashMap<FourTuple, State<P, U, D>>,
    pub(super) places: Places,
    pub(super) half_open: HalfOpen,
    next_ticket: u64,
    budget: ConnectBudget,
    history: SynHistory,
    turned_away: TurnedAway,
    /// Until when a SYN that was not seen before may repeat one that came to whoever was here before.
    successor_until: Option<Instant>,
}

/// The time for which clients' SYNs may repeat earlier ones (the longest interval of net.ipv4.tcp_syn_retries' usual
/// six), and the time before the first that is seen at which such a client may have begun: at the last but one of its
/// repetitions, when the next one is as far away.
const REPEATED: Duration = Duration::from_secs(64);
const BEFORE: Duration = Duration::from_secs(32);

/// The verdict of a SYN that has made room for another.
const ROUTED_FOR_ROOM: SynVerdict = SynVerdict::Bypass(UnsplitReason::Full);

/// Returns the number of SYNs remembered where there is room for `capacity` flows: as many as may
/// be routed in turn before the first of them comes again, and some hundred kilobytes in any case.
fn remembered(capacity: usize) -> usize {
    const OF_EACH: usize = 4;
    const FEWEST: usize = 1024;
    capacity.saturating_mul(OF_EACH).max(FEWEST)
}

impl<P: Debug, U: Debug, D: Dial> Flows<P, U, D> {
    /// Makes room for `capacity` flows.
    pub(super) fn new(capacity: usize, source_prefix: SourcePrefix, now: Instant) -> Self {
        Self {
            states: HashMap::new(),
            places: Places::new(capacity, source_prefix),
            half_open: HalfOpen::new(),
            next_ticket: 0,
            budget: ConnectBudget::new(capacity, now),
            history: SynHistory::new(remembered(capacity), now),
            turned_away: TurnedAway::new(now),
            successor_until: None,
        }
    }

    /// Takes SYNs for such as may have been repeated already, for a while: another process was here before.
    pub(super) fn succeed(&mut self, now: Instant) {
        self.successor_until = Some(now + REPEATED);
    }

    /// Takes another capacity; what is there stays until something new comes.
    pub(super) fn set_capacity(
        &mut self,
        capacity: usize,
        listener_room: usize,
        source_prefix: SourcePrefix,
    ) {
        let capacity = capacity.min(listener_room);
        self.half_open.set_room(listener_room);
        self.places.set_capacity(capacity, source_prefix);
        self.budget.set_size(capacity);
        self.history.set_room(remembered(capacity));
    }

    pub(super) fn on_syn(&mut self, syn: ReceivedSyn<P>, now: Instant) -> Received<P, U, D> {
        let ReceivedSyn { flow, number, .. } = syn;
        let mut evicted = self.end_if_port_reused(flow, number, now);
        let place = self.place_for(&syn, now);
        let repeats = self.successor_until.is_some_and(|until| now < until);
        let begun = repeats.then(|| now.checked_sub(BEFORE)).flatten();
        let state = self.states.remove(&flow).or_else(|| {
            let past = self.history.retransmitted(flow, number, now)?;
            Some(State::Remembered(number, past))
        });
        let event = Event::Syn {
            number,
            syn: syn.packet,
            place,
            begun: begun.unwrap_or(now),
        };
        let action = self.advance(flow, state.unwrap_or(State::Unknown), event, now);
        if let Action::Dial(_) = action {
            self.next_ticket += 1;
            self.budget.take(flow.server.ip(), now);
            while let Some(oldest) = self.places.take_excess(flow) {
                evicted.add(
                    oldest,
                    self.step(oldest, Event::Evict(ROUTED_FOR_ROOM), now),
                );
            }
        }
        let is_routed = action.is_routed_at_once();
        Received {
            evicted,
            action: action.of_syn(),
            flood: is_routed
                .then(|| self.turned_away.note(flow.server.ip(), now))
                .flatten(),
        }
    }

    /// Ends what there is of the flow if a SYN of this number belongs to a new connection, which
    /// must not be given what belongs to the old one.
    pub(super) fn end_if_port_reused(
        &mut self,
        flow: FourTuple,
        number: SequenceNumber,
        now: Instant,
    ) -> Evicted<P, U, D> {
        let mut evicted = Evicted::default();
        let state = self.states.get(&flow);
        if state.is_some_and(|state| state.is_port_reused(number)) {
            evicted.add(flow, self.step(flow, Event::PortReused, now));
        }
        evicted
    }

    /// Returns whether there is a place for this flow, if it has none yet.
    fn place_for(&self, syn: &ReceivedSyn<P>, now: Instant) -> Place {
        let ReceivedSyn { flow, late, .. } = *syn;
        let reverse = self.states.get(&flow.reversed());
        if let Some(leg_is_open) = reverse.and_then(State::leg_is_open) {
            Place::Crossing { leg_is_open }
        } else if !self.half_open.has_room(self.places.len()) {
            Place::NoListener
        } else if late {
            Place::Late
        } else if !self.places.has_one_for(flow, now) {
            Place::Full
        } else if !self.budget.has_any(flow.server.ip(), now) {
            Place::OverBudget
        } else {
            Place::Free(Ticket(self.next_ticket))
        }
    }

    pub(super) fn accepted(&mut self, flow: FourTuple, now: Instant) -> Claim<P, U, D> {
        let claim = self.step(flow, Event::Accepted, now).claim();
        if let Claim::Answered(..) = claim {
            self.budget.give_back(flow.server.ip());
            self.turned_away.came(flow.server.ip());
        }
        claim
    }

    pub(super) fn final_ack(&mut self, flow: FourTuple, ack: P, now: Instant) -> FinalAck<P> {
        let state = self.states.remove(&flow).or_else(|| {
            let (number, past) = self.history.last(flow)?;
            Some(State::Remembered(number, past))
        });
        let event = Event::FinalAck(ack);
        self.advance(flow, state.unwrap_or(State::Unknown), event, now)
            .of_ack()
    }

    pub(super) fn step_all(
        &mut self,
        flows: Vec<FourTuple>,
        event: impl Fn() -> Event<P, U, D>,
        now: Instant,
    ) -> Evicted<P, U, D> {
        let mut evicted = Evicted::default();
        for flow in flows {
            evicted.add(flow, self.step(flow, event(), now));
        }
        evicted
    }

    /// Returns whether what there is of the flow is this dial's.
    pub(super) fn is_dialed(&self, flow: FourTuple, ticket: Ticket) -> bool {
        let state = self.states.get(&flow);
        state.is_some_and(|state| state.ticket() == Some(ticket))
    }

    /// Takes a flow through an event of its dial: of this one, which may be one before.
    pub(super) fn of_dial(
        &mut self,
        flow: FourTuple,
        ticket: Ticket,
        event: Event<P, U, D>,
        now: Instant,
    ) -> Action<P, U, D> {
        if self.is_dialed(flow, ticket) {
            self.step(flow, event, now)
        } else {
            self.advance(flow, State::Unknown, event, now)
        }
    }

    /// Takes a flow through an event.
    pub(super) fn step(
        &mut self,
        flow: FourTuple,
        event: Event<P, U, D>,
        now: Instant,
    ) -> Action<P, U, D> {
        let state = self.states.remove(&flow).unwrap_or(State::Unknown);
        self.advance(flow, state, event, now)
    }

    /// Takes `state` through an event, and keeps what comes of it.
    fn advance(
        &mut self,
        flow: FourTuple,
        state: State<P, U, D>,
        event: Event<P, U, D>,
        now: Instant,
    ) -> Action<P, U, D> {
        let before = state.place();
        let was_remembered = matches!(state, State::Remembered(..));
        let listened = state.listener_until();
        let is_accepted = matches!(event, Event::Accepted);
        let Step { next, action, stop } = state.on(event, now);
        if is_accepted {
            self.half_open.ended(flow);
        } else if next.listener_until().is_none() {
            // The listener is told nothing of a leg that is closed.
            let to_listener = matches!(action, Action::Decide(_, SynVerdict::Split));
            let until = listened.or(to_listener.then_some(now + CLAIM_TIME));
            if let Some(until) = until.filter(|until| *until > now) {
                self.half_open.note(flow, until);
            }
        }
        match (before, next.place()) {
            (None, Some(ticket)) => self.places.enter(flow, ticket, now),
            (Some(ticket), None) => self.places.leave(ticket),
            (Some(_), Some(_)) | (None, None) => {}
        }
        match next {
            State::Unknown => {}
            State::Remembered(number, past) => {
                // One that was there already has just been looked up.
                if !was_remembered {
                    self.history.note(flow, number, past, now);
                }
            }
            next => drop(self.states.insert(flow, next)),
        }
        if let Some(dial) = stop.as_ref().or(action.ending_dial()) {
            dial.stop();
        }
        if let Action::Illegal(event) = &action {
            report_illegal(flow, event);
        }
        action
    }
}

fn report_illegal(flow: FourTuple, event: &impl Debug) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(60));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::error!(
            client = %flow.client, server = %flow.server, ?event, held_back,
            "a held SYN met what cannot happen to it: a defect of pepd's; nothing was changed"
        );
    }
}
