//! The flows whose SYN is held or whose upstream leg waits for its client, shared by all
//! workers.
//!
//! The table says who has a place, what time it is and what came before; [`State`] says what
//! becomes of a flow. One lock suffices: it is held for a few map operations per event, well under
//! a microsecond.

mod given;
mod places;

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pepd_packet::{FourTuple, SequenceNumber, SourcePrefix};
use pepd_telemetry::Throttle;

use super::connect_budget::ConnectBudget;
use super::event::{Action, Event, Place, Ticket};
use super::half_open::HalfOpen;
use super::machine::{CLAIM_TIME, State, Step};
use super::syn_history::SynHistory;
use super::verdict::{SynVerdict, Unreachable};
use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard};
pub(crate) use given::{Claim, Decided, EndingDial, Evicted, FinalAck, Received, SynAction};
use places::Places;

/// A dial under way.
pub(crate) trait Dial: Debug {
    /// A leg that has sent its SYN.
    type Leg: Clone;

    /// Tells it to end, without waiting for it.
    fn stop(&self);

    /// Notes that its leg has sent its SYN.
    fn leg_sent(&mut self, leg: Self::Leg);

    /// Returns its leg, if that has sent its SYN.
    fn leg(&self) -> Option<&Self::Leg>;
}

/// A client's SYN, as it comes.
#[derive(Debug)]
pub(crate) struct ReceivedSyn<P> {
    pub(crate) flow: FourTuple,
    pub(crate) number: SequenceNumber,
    pub(crate) packet: P,
    /// Whether it has waited for so long that one that repeats it may have been routed.
    pub(crate) late: bool,
}

/// Flows under way, with packets `P`, upstream legs `U` and dials `D`.
#[derive(Debug)]
pub(crate) struct Table<P, U, D> {
    flows: Mutex<Flows<P, U, D>>,
    /// The number of flows with a place.
    len: AtomicUsize,
    /// Whether an accept is of interest, so that those of an "early" box take no lock.
    awaits_accepts: AtomicBool,
}

/// The state that the lock protects.
#[derive(Debug)]
struct Flows<P, U, D> {
    /// All that are neither unknown nor only remembered.
    states: HashMap<FourTuple, State<P, U, D>>,
    places: Places,
    half_open: HalfOpen,
    next_ticket: u64,
    budget: ConnectBudget,
    history: SynHistory,
}

/// Returns the number of SYNs remembered where there is room for `capacity` flows: as many as may
/// be routed in turn before the first of them comes again, and some hundred kilobytes in any case.
fn remembered(capacity: usize) -> usize {
    const OF_EACH: usize = 4;
    const FEWEST: usize = 1024;
    capacity.saturating_mul(OF_EACH).max(FEWEST)
}

impl<P: Debug, U: Debug, D: Dial> Table<P, U, D> {
    /// Makes a table for `capacity` flows.
    pub(crate) fn new(capacity: u32, source_prefix: SourcePrefix, now: Instant) -> Self {
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        Self {
            flows: Mutex::new(Flows {
                states: HashMap::new(),
                places: Places::new(capacity, source_prefix),
                half_open: HalfOpen::new(),
                next_ticket: 0,
                budget: ConnectBudget::new(capacity, now),
                history: SynHistory::new(remembered(capacity), now),
            }),
            len: AtomicUsize::new(0),
            awaits_accepts: AtomicBool::new(false),
        }
    }

    /// Takes another capacity, the number of handshakes that the listeners have room for, and whom
    /// one source is; what is there stays until something new comes.
    pub(crate) fn set_capacity(
        &self,
        capacity: u32,
        listener_room: usize,
        source_prefix: SourcePrefix,
    ) {
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        let capacity = capacity.min(listener_room);
        let mut flows = self.lock();
        flows.half_open.set_room(listener_room);
        flows.places.set_capacity(capacity, source_prefix);
        flows.budget.set_size(capacity);
        flows.history.set_room(remembered(capacity));
    }

    /// Takes a SYN that has come.
    pub(crate) fn on_syn(&self, syn: ReceivedSyn<P>, now: Instant) -> Received<P, U, D> {
        self.with(|flows| flows.on_syn(syn, now))
    }

    /// Notes that the dial that [`SynAction::Dial`] asked for is under way, and can be told to end.
    /// It is told so at once, and the answer is no, where its flow is gone already.
    pub(crate) fn dial_started(
        &self,
        flow: FourTuple,
        ticket: Ticket,
        dial: D,
        now: Instant,
    ) -> bool {
        let mut flows = self.lock();
        flows.of_dial(flow, ticket, Event::DialStarted(dial), now);
        flows.is_dialed(flow, ticket)
    }

    /// Notes that the upstream leg has sent its SYN, with so many bytes of what the client said in
    /// its own.
    pub(crate) fn leg_sent(
        &self,
        flow: FourTuple,
        ticket: Ticket,
        bytes: usize,
        leg: D::Leg,
        now: Instant,
    ) {
        let with_data = bytes > 0;
        let mut flows = self.lock();
        flows.of_dial(flow, ticket, Event::LegSent { with_data }, now);
        if flows.is_dialed(flow, ticket)
            && let Some(dial) = flows.states.get_mut(&flow).and_then(State::dial_mut)
        {
            dial.leg_sent(leg);
        }
    }

    /// Returns the upstream leg of a SYN that is held, if that has sent its own.
    pub(crate) fn dialed_leg(&self, flow: FourTuple) -> Option<D::Leg> {
        self.lock().states.get(&flow)?.dial()?.leg().cloned()
    }

    /// Takes the destination's answer: gives the SYN to send on to the listener, or the upstream
    /// leg back where the flow was evicted.
    pub(crate) fn answered(
        &self,
        flow: FourTuple,
        ticket: Ticket,
        upstream: U,
        now: Instant,
    ) -> Result<Decided<P>, Option<U>> {
        self.lock()
            .of_dial(flow, ticket, Event::Answered(upstream), now)
            .answered()
    }

    /// Takes the end of a dial without an upstream leg, and what that means: gives the SYN.
    pub(crate) fn dial_failed(
        &self,
        flow: FourTuple,
        ticket: Ticket,
        verdict: SynVerdict,
        now: Instant,
    ) -> Option<Decided<P>> {
        self.with(|flows| flows.of_dial(flow, ticket, Event::DialFailed(verdict), now))
            .decided()
    }

    /// Takes the network's word that the dial is in vain: ends it, and gives the SYN.
    pub(crate) fn icmp_error(
        &self,
        flow: FourTuple,
        error: Unreachable,
        now: Instant,
    ) -> Option<Decided<P>> {
        self.with(|flows| flows.step(flow, Event::IcmpError(error), now))
            .decided()
    }

    /// Takes the client's reset of what answered the dial and did not come by this host: ends the
    /// dial, and gives the SYN, which is to be routed.
    pub(crate) fn client_reset(&self, flow: FourTuple, now: Instant) -> Option<Decided<P>> {
        self.with(|flows| flows.step(flow, Event::ClientReset, now))
            .decided()
    }

    /// Takes the end of the dial of a flow that has made room: gives the SYN, which is to be
    /// routed.
    pub(crate) fn dial_ended(
        &self,
        flow: FourTuple,
        ticket: Ticket,
        now: Instant,
    ) -> Option<Decided<P>> {
        self.lock()
            .of_dial(flow, ticket, Event::DialEnded, now)
            .decided()
    }

    /// Takes what an upstream leg has tried to acknowledge while it had no client: withholds it, or
    /// says what becomes of it.
    pub(crate) fn final_ack(&self, flow: FourTuple, ack: P, now: Instant) -> FinalAck<P> {
        self.lock().final_ack(flow, ack, now)
    }

    /// Takes a client that the listener has accepted: gives what there is for it.
    pub(crate) fn accepted(&self, flow: FourTuple, now: Instant) -> Claim<P, U, D> {
        if !self.awaits_accepts.load(Relaxed) {
            return Claim::Unknown;
        }
        self.with(|flows| flows.accepted(flow, now))
    }

    /// Takes the SYNs whose clients have given up, and the upstream legs that have waited too
    /// long for theirs.
    pub(crate) fn expire(&self, now: Instant) -> Evicted<P, U, D> {
        self.with(|flows| {
            let is_due = |state: &State<P, U, D>| state.deadline().is_some_and(|at| at <= now);
            let due = flows.states.iter().filter(|(_, state)| is_due(state));
            let due: Vec<FourTuple> = due.map(|(flow, _)| *flow).collect();
            flows.half_open.expire(now);
            flows.step_all(due, || Event::Expired, now)
        })
    }

    /// Empties the table: the SYNs that are held have this verdict.
    pub(crate) fn clear(&self, verdict: SynVerdict, now: Instant) -> Evicted<P, U, D> {
        self.with(|flows| {
            let all = flows.states.keys().copied().collect();
            flows.step_all(all, || Event::Cleared(verdict), now)
        })
    }

    /// Returns the number of flows that have a place.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Does `change`, which may change the number of flows.
    fn with<T>(&self, change: impl FnOnce(&mut Flows<P, U, D>) -> T) -> T {
        let mut flows = self.lock();
        let result = change(&mut flows);
        let len = flows.places.len();
        self.len.store(len, Relaxed);
        self.awaits_accepts
            .store(len > 0 || !flows.half_open.is_empty(), Relaxed);
        result
    }

    fn lock(&self) -> MutexGuard<'_, Flows<P, U, D>> {
        // A panic while the lock is held leaves at worst a place without a flow, which the next
        // ones take.
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Debug, U: Debug, D: Dial> Flows<P, U, D> {
    fn on_syn(&mut self, syn: ReceivedSyn<P>, now: Instant) -> Received<P, U, D> {
        let ReceivedSyn { flow, number, .. } = syn;
        let mut evicted = self.end_if_port_reused(flow, number, now);
        let place = self.place_for(flow, syn.late, now);
        let state = self.states.remove(&flow).or_else(|| {
            let past = self.history.retransmitted(flow, number, now)?;
            Some(State::Remembered(number, past))
        });
        let event = Event::Syn {
            number,
            syn: syn.packet,
            place,
        };
        let action = self.advance(flow, state.unwrap_or(State::Unknown), event, now);
        if let Action::Dial(_) = action {
            self.next_ticket += 1;
            self.budget.take(now);
            while let Some(oldest) = self.places.take_excess(flow) {
                evicted.add(oldest, self.step(oldest, Event::Evict, now));
            }
        }
        Received {
            evicted,
            action: action.of_syn(),
        }
    }

    /// Ends what there is of the flow if a SYN of this number belongs to a new connection, which
    /// must not be given what belongs to the old one.
    fn end_if_port_reused(
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
    fn place_for(&self, flow: FourTuple, late: bool, now: Instant) -> Place {
        let reverse = self.states.get(&flow.reversed());
        if let Some(leg_is_open) = reverse.and_then(State::leg_is_open) {
            Place::Crossing { leg_is_open }
        } else if !self.half_open.has_room(self.places.len()) {
            Place::NoListener
        } else if late {
            Place::Late
        } else if !self.places.has_one_for(flow, now) {
            Place::Full
        } else if !self.budget.has_any(now) {
            Place::OverBudget
        } else {
            Place::Free(Ticket(self.next_ticket))
        }
    }

    fn accepted(&mut self, flow: FourTuple, now: Instant) -> Claim<P, U, D> {
        let claim = self.step(flow, Event::Accepted, now).claim();
        if let Claim::Answered(..) = claim {
            self.budget.give_back();
        }
        claim
    }

    fn final_ack(&mut self, flow: FourTuple, ack: P, now: Instant) -> FinalAck<P> {
        let state = self.states.remove(&flow).or_else(|| {
            let (number, past) = self.history.last(flow)?;
            Some(State::Remembered(number, past))
        });
        let event = Event::FinalAck(ack);
        self.advance(flow, state.unwrap_or(State::Unknown), event, now)
            .of_ack()
    }

    fn step_all(
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
    fn is_dialed(&self, flow: FourTuple, ticket: Ticket) -> bool {
        let state = self.states.get(&flow);
        state.is_some_and(|state| state.ticket() == Some(ticket))
    }

    /// Takes a flow through an event of its dial: of this one, which may be one before.
    fn of_dial(
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
    fn step(&mut self, flow: FourTuple, event: Event<P, U, D>, now: Instant) -> Action<P, U, D> {
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

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
