//! The flows whose SYN is held or whose upstream leg waits for its client, shared by all
//! workers.
//!
//! The table says who has a place, what time it is and what came before ([`flows`]); [`State`] says
//! what becomes of a flow. One lock suffices: it is held for a few map operations per event, well under
//! a microsecond.

mod flows;
mod given;
mod places;
mod taken;

use std::fmt::Debug;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use pepd_packet::{FourTuple, SourcePrefix};

use super::event::{Event, Ticket};
use super::machine::State;
use super::verdict::{SynVerdict, Unreachable};
use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard};
use flows::Flows;
pub(crate) use given::{Claim, Decided, EndingDial, Evicted, FinalAck, Received, SynAction};
pub(crate) use taken::{Dial, ReceivedSyn};

/// Flows under way, with packets `P`, upstream legs `U` and dials `D`.
#[derive(Debug)]
pub(crate) struct Table<P, U, D> {
    flows: Mutex<Flows<P, U, D>>,
    /// The number of flows with a place.
    len: AtomicUsize,
    /// Whether an accept is of interest, so that those of an "early" box take no lock.
    awaits_accepts: AtomicBool,
}

impl<P: Debug, U: Debug, D: Dial> Table<P, U, D> {
    /// Makes a table for `capacity` flows.
    pub(crate) fn new(capacity: u32, source_prefix: SourcePrefix, now: Instant) -> Self {
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        Self {
            flows: Mutex::new(Flows::new(capacity, source_prefix, now)),
            len: AtomicUsize::new(0),
            awaits_accepts: AtomicBool::new(false),
        }
    }

    /// Has a client that is seen first stay for as long as one that has begun before: from `now` on this goes on in the
    /// place of another process, whose held SYNs are repeated.
    pub(crate) fn succeed(&self, now: Instant) {
        self.lock().succeed(now);
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
        self.lock()
            .set_capacity(capacity, listener_room, source_prefix);
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

    /// Empties the table but for the dials that have not ended: the SYNs that are held have this
    /// verdict, at once or when their dial has ended.
    pub(crate) fn evict_all(&self, verdict: SynVerdict, now: Instant) -> Evicted<P, U, D> {
        self.with(|flows| {
            let placed = flows
                .states
                .iter()
                .filter(|(_, state)| state.place().is_some());
            let placed = placed.map(|(flow, _)| *flow).collect();
            flows.step_all(placed, || Event::Evict(verdict), now)
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

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
