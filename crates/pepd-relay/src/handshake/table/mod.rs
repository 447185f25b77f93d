//! The flows whose SYN is held or whose upstream leg waits for its client, shared by all
//! workers.
//!
//! One lock suffices: it is held for a few map operations per connection, well under a
//! microsecond.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pepd_packet::{FourTuple, SequenceNumber};
use tokio::task::AbortHandle;

use super::connect_budget::Budget;
use super::evicted::{Evicted, Leaving};
use super::syn_history::{Fate, Past};

/// How long an upstream leg waits for its client: long enough for a SYN-ACK that is lost four
/// times (1 + 2 + 4 + 8 s) and for a long way. Most that wait so long belong to a SYN that came
/// twice, late, for a connection that has ended. A client that comes later still is served as
/// with the early handshake.
const CLAIM_TIME: Duration = Duration::from_secs(20);

/// How long a client's next SYN may take, given how long its last one came after its first:
/// each interval is at most twice the one before (RFC 6298, section 5.5), so that the next one
/// is not longer than what has passed and a second; this allows for twice that and a slow
/// start. A client that stays silent for longer has given up.
fn next_syn_within(last_after_first: Duration) -> Duration {
    2 * last_after_first + Duration::from_secs(5)
}

/// How long a flow keeps its place where there is none for another: as long as its client waits for
/// an answer before it asks again (RFC 6298, section 2.1). Until then its destination's answer may be
/// on the way, and is not the answer to the client's SYN, if that is routed: the client resets it,
/// and is connected a second later. Nobody has asked yet on behalf of the one that finds no place.
const PLACE_TIME: Duration = Duration::from_secs(1);

/// SYNs remembered where there is room for `capacity` flows: as many as may be routed in turn
/// before the first of them comes again, and some hundred kilobytes in any case.
fn remembered(capacity: usize) -> usize {
    const OF_EACH: usize = 4;
    const FEWEST: usize = 1024;
    capacity.saturating_mul(OF_EACH).max(FEWEST)
}

/// Flows under way, with packets `P` and upstream legs `U`.
#[derive(Debug)]
pub(crate) struct Table<P, U> {
    state: Mutex<State<P, U>>,
    /// The number of flows, so that the accepts of an "early" box take no lock.
    len: AtomicUsize,
}

/// Tells an entry from a later one of the same flow, and older ones from younger ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// What a SYN turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen<P, U> {
    /// The first of its flow, which is in the table now; these had to go for it.
    New(Ticket, Evicted<P, U>),
    /// One more of its flow: it takes the place of this one.
    Again(P),
    /// One more of a flow whose destination has answered: it is for the listener.
    Answered(P),
    /// One more of a flow that was routed: it has to take the same way.
    Routed(P),
    /// It has waited for so long that one that repeats it may have been routed.
    Late(P),
    /// The first of its flow, and there is no place for it.
    Full(P),
    /// The first of its flow, and no upstream leg may be tried for it now.
    OverBudget(P),
    /// The other end of a flow that is under way opens the same connection at the same time
    /// (RFC 9293, section 3.5).
    Crossing {
        packet: P,
        /// Whether the upstream leg towards that end has sent its SYN.
        leg_is_open: bool,
    },
}

/// What becomes of a SYN whose attempt has ended without an upstream leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is routed.
    Routed,
    /// It goes to the listener all the same.
    Split,
    /// It is answered, or not: the next one is a new attempt.
    Answered,
}

/// What there is of a flow whose client has been accepted.
#[derive(Debug)]
pub(crate) enum Claim<P, U> {
    /// Its upstream leg.
    Answered(U),
    /// A SYN that is still held: one that repeats it has been given to the listener, because SYNs
    /// are not held any more. The attempt has been told to end.
    Asking(P, Option<AbortHandle>),
    /// Nothing.
    Unknown,
}

#[derive(Debug)]
struct State<P, U> {
    capacity: usize,
    flows: HashMap<FourTuple, Entry<P, U>>,
    /// The last SYNs of flows that have made room, while their attempts end.
    leaving: HashMap<FourTuple, (SequenceNumber, P)>,
    ages: BTreeMap<Ticket, FourTuple>,
    sources: HashMap<IpAddr, BTreeSet<Ticket>>,
    next: u64,
    budget: Budget,
    past: Past,
}

#[derive(Debug)]
struct Entry<P, U> {
    ticket: Ticket,
    /// That of the client's last SYN.
    number: SequenceNumber,
    /// When the client's first SYN came.
    entered: Instant,
    /// Whether the upstream leg's SYN had data of it.
    had_data: bool,
    stage: Stage<P, U>,
}

#[derive(Debug)]
enum Stage<P, U> {
    /// The destination has been asked.
    Asking {
        packet: P,
        attempt: Option<AbortHandle>,
        /// Whether the upstream leg has sent its SYN.
        sent: bool,
        /// When the client's last SYN came.
        last: Instant,
    },
    /// It has answered; the SYN went on to the listener.
    Answered { upstream: U, since: Instant },
}

impl<P, U> Stage<P, U> {
    fn leg_is_open(&self) -> bool {
        match self {
            Self::Asking { sent, .. } => *sent,
            Self::Answered { .. } => true,
        }
    }
}

impl<P, U> Table<P, U> {
    /// A table for `capacity` flows, of which one source may have half.
    pub(crate) fn new(capacity: u32, now: Instant) -> Self {
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        Self {
            state: Mutex::new(State {
                capacity,
                flows: HashMap::new(),
                leaving: HashMap::new(),
                ages: BTreeMap::new(),
                sources: HashMap::new(),
                next: 0,
                budget: Budget::new(capacity, now),
                past: Past::new(remembered(capacity), now),
            }),
            len: AtomicUsize::new(0),
        }
    }

    /// Takes another capacity; what is there stays until something new comes.
    pub(crate) fn set_capacity(&self, capacity: u32) {
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        let mut state = self.lock();
        state.capacity = capacity;
        state.budget.set_size(capacity);
        state.past.set_room(remembered(capacity));
    }

    /// Enters a SYN. Where it is `late`, no upstream leg is opened for it any more.
    pub(crate) fn see(
        &self,
        flow: FourTuple,
        number: SequenceNumber,
        packet: P,
        late: bool,
        now: Instant,
    ) -> Seen<P, U> {
        let mut state = self.lock();
        if let Some(entry) = state.flows.get_mut(&flow) {
            entry.number = number;
            return match &mut entry.stage {
                Stage::Asking {
                    packet: waiting,
                    last,
                    ..
                } => {
                    *last = now;
                    Seen::Again(std::mem::replace(waiting, packet))
                }
                Stage::Answered { .. } => Seen::Answered(packet),
            };
        }
        if let Some((before, waiting)) = state.leaving.get_mut(&flow) {
            *before = number;
            return Seen::Again(std::mem::replace(waiting, packet));
        }
        match state.past.repeated(flow, number, now) {
            Some(Fate::Routed) => return Seen::Routed(packet),
            Some(Fate::Split) => return Seen::Answered(packet),
            None => {}
        }
        let reverse = state.flows.get(&flow.reversed());
        if let Some(leg_is_open) = reverse.map(|entry| entry.stage.leg_is_open()) {
            return Seen::Crossing {
                packet,
                leg_is_open,
            };
        }
        let routed = if late {
            Some(Seen::Late as fn(P) -> Seen<P, U>)
        } else if !state.has_place_for(flow.client.ip(), now) {
            Some(Seen::Full as fn(P) -> Seen<P, U>)
        } else if !state.budget.take(now) {
            Some(Seen::OverBudget as fn(P) -> Seen<P, U>)
        } else {
            None
        };
        if let Some(routed) = routed {
            state.past.note(flow, number, Fate::Routed, now);
            return routed(packet);
        }
        let evicted = state.make_room(flow.client.ip(), now);
        let ticket = state.insert(flow, number, packet, now);
        self.len.store(state.flows.len(), Relaxed);
        Seen::New(ticket, evicted)
    }

    /// Notes what is to be aborted when the flow is evicted. False if it has been already.
    pub(crate) fn attach(&self, flow: FourTuple, ticket: Ticket, handle: AbortHandle) -> bool {
        let mut state = self.lock();
        match state.flows.get_mut(&flow) {
            Some(Entry {
                ticket: at,
                stage: Stage::Asking { attempt, .. },
                ..
            }) if *at == ticket => {
                *attempt = Some(handle);
                true
            }
            _ => false,
        }
    }

    /// The upstream leg has sent its SYN, with so many bytes of what the client said in its own.
    pub(crate) fn sent(&self, flow: FourTuple, ticket: Ticket, bytes: usize) {
        if let Some(Entry {
            ticket: at,
            had_data,
            stage: Stage::Asking { sent, .. },
            ..
        }) = self.lock().flows.get_mut(&flow)
            && *at == ticket
        {
            *sent = true;
            *had_data = bytes > 0;
        }
    }

    /// Takes what there is of a flow whose client has begun anew, from the same port, if its
    /// upstream leg has said something for the connection before. Another one can be had by whoever
    /// comes from that port.
    pub(crate) fn begun_anew(&self, flow: FourTuple, number: SequenceNumber) -> Evicted<P, U> {
        let mut evicted = Evicted::default();
        if self.len.load(Relaxed) == 0 {
            return evicted;
        }
        let mut state = self.lock();
        let is_of_before = |entry: &Entry<P, U>| entry.had_data && entry.number != number;
        if state.flows.get(&flow).is_some_and(is_of_before) {
            state.evict(flow, &mut evicted);
            self.len.store(state.flows.len(), Relaxed);
        }
        evicted
    }

    /// The destination has answered: gives the SYN to send on to the listener, or the upstream
    /// leg back where the flow was evicted.
    pub(crate) fn answer(
        &self,
        flow: FourTuple,
        ticket: Ticket,
        upstream: U,
        now: Instant,
    ) -> Result<P, U> {
        let mut state = self.lock();
        match state.flows.get_mut(&flow) {
            Some(Entry {
                ticket: at, stage, ..
            }) if *at == ticket => {
                let answered = Stage::Answered {
                    upstream,
                    since: now,
                };
                match std::mem::replace(stage, answered) {
                    Stage::Asking { packet, .. } => Ok(packet),
                    Stage::Answered { upstream, .. } => Err(upstream),
                }
            }
            _ => Err(upstream),
        }
    }

    /// The attempt has ended without an upstream leg: gives the SYN.
    pub(crate) fn give_up(
        &self,
        flow: FourTuple,
        ticket: Ticket,
        next: Next,
        now: Instant,
    ) -> Option<P> {
        let mut state = self.lock();
        let entry = state.flows.get(&flow)?;
        if entry.ticket != ticket {
            return None;
        }
        let fate = match next {
            Next::Routed => Some(Fate::Routed),
            Next::Split => Some(Fate::Split),
            Next::Answered => None,
        };
        self.remove_asking(&mut state, flow, fate, now)
    }

    /// Ends the attempt because the network says that it is in vain: gives the SYN.
    pub(crate) fn abort(&self, flow: FourTuple, now: Instant) -> Option<P> {
        self.remove_asking(&mut self.lock(), flow, None, now)
    }

    /// Ends the attempt because the client has answered an answer to it that did not come by this
    /// host: gives the SYN, which is to be routed.
    pub(crate) fn detour(&self, flow: FourTuple, now: Instant) -> Option<P> {
        let mut state = self.lock();
        match state.flows.get(&flow)?.stage {
            Stage::Asking { sent: true, .. } => {
                self.remove_asking(&mut state, flow, Some(Fate::Routed), now)
            }
            _ => None,
        }
    }

    /// The attempt of a flow that has made room has ended: gives the SYN, which is to be routed.
    pub(crate) fn left(&self, flow: FourTuple, now: Instant) -> Option<P> {
        let mut state = self.lock();
        let (number, packet) = state.leaving.remove(&flow)?;
        state.past.note(flow, number, Fate::Routed, now);
        Some(packet)
    }

    fn remove_asking(
        &self,
        state: &mut State<P, U>,
        flow: FourTuple,
        fate: Option<Fate>,
        now: Instant,
    ) -> Option<P> {
        match state.flows.get(&flow)?.stage {
            Stage::Asking { .. } => {}
            Stage::Answered { .. } => return None,
        }
        let entry = state.remove(flow)?;
        if let Some(fate) = fate {
            state.past.note(flow, entry.number, fate, now);
        }
        self.len.store(state.flows.len(), Relaxed);
        match entry.stage {
            Stage::Asking {
                packet, attempt, ..
            } => {
                if let Some(attempt) = attempt {
                    attempt.abort();
                }
                Some(packet)
            }
            Stage::Answered { .. } => None,
        }
    }

    /// Takes the flow of an accepted client.
    pub(crate) fn claim(&self, flow: FourTuple, now: Instant) -> Claim<P, U> {
        if self.len.load(Relaxed) == 0 {
            return Claim::Unknown;
        }
        let mut state = self.lock();
        let Some(entry) = state.remove(flow) else {
            return Claim::Unknown;
        };
        state.past.note(flow, entry.number, Fate::Split, now);
        self.len.store(state.flows.len(), Relaxed);
        match entry.stage {
            Stage::Answered { upstream, .. } => {
                state.budget.give_back();
                Claim::Answered(upstream)
            }
            Stage::Asking {
                packet, attempt, ..
            } => {
                if let Some(attempt) = &attempt {
                    attempt.abort();
                }
                Claim::Asking(packet, attempt)
            }
        }
    }

    /// Takes the SYNs whose clients have given up, and the upstream legs that have waited too
    /// long for theirs.
    pub(crate) fn expire(&self, now: Instant) -> Evicted<P, U> {
        let mut state = self.lock();
        let late: Vec<FourTuple> = state
            .flows
            .iter()
            .filter(|(_, entry)| match &entry.stage {
                Stage::Answered { since, .. } => {
                    now.saturating_duration_since(*since) >= CLAIM_TIME
                }
                Stage::Asking { last, .. } => {
                    let patience = next_syn_within(last.saturating_duration_since(entry.entered));
                    now.saturating_duration_since(*last) >= patience
                }
            })
            .map(|(flow, _)| *flow)
            .collect();
        let mut evicted = Evicted::default();
        for flow in late {
            state.evict(flow, &mut evicted);
        }
        self.len.store(state.flows.len(), Relaxed);
        evicted
    }

    /// Empties the table.
    pub(crate) fn clear(&self) -> Evicted<P, U> {
        let mut state = self.lock();
        let flows: Vec<FourTuple> = state.flows.keys().copied().collect();
        let mut evicted = Evicted::default();
        for flow in flows {
            state.evict(flow, &mut evicted);
        }
        let leaving = state.leaving.drain().map(|(_, (_, packet))| packet);
        evicted.packets.extend(leaving);
        self.len.store(0, Relaxed);
        evicted
    }

    /// The number of flows.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State<P, U>> {
        // A panic while the lock is held leaves at worst an entry that the next ones evict.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P, U> State<P, U> {
    fn insert(
        &mut self,
        flow: FourTuple,
        number: SequenceNumber,
        packet: P,
        now: Instant,
    ) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        let stage = Stage::Asking {
            packet,
            attempt: None,
            sent: false,
            last: now,
        };
        let entry = Entry {
            ticket,
            number,
            entered: now,
            had_data: false,
            stage,
        };
        self.flows.insert(flow, entry);
        self.ages.insert(ticket, flow);
        let source = self.sources.entry(flow.client.ip()).or_default();
        source.insert(ticket);
        ticket
    }

    fn remove(&mut self, flow: FourTuple) -> Option<Entry<P, U>> {
        let entry = self.flows.remove(&flow)?;
        self.ages.remove(&entry.ticket);
        let source = flow.client.ip();
        if let Some(tickets) = self.sources.get_mut(&source) {
            tickets.remove(&entry.ticket);
            if tickets.is_empty() {
                self.sources.remove(&source);
            }
        }
        Some(entry)
    }

    /// How many flows one source may have.
    fn share(&self) -> usize {
        (self.capacity / 2).max(1)
    }

    /// Whether there is a place for one more from `source`, or one that has had its time in it.
    fn has_place_for(&self, source: IpAddr, now: Instant) -> bool {
        let tickets = self.sources.get(&source);
        let oldest = match tickets.filter(|tickets| tickets.len() >= self.share()) {
            Some(tickets) => tickets.first().and_then(|ticket| self.ages.get(ticket)),
            None if self.flows.len() >= self.capacity.max(1) => {
                self.ages.first_key_value().map(|(_, flow)| flow)
            }
            None => return true,
        };
        oldest
            .and_then(|flow| self.flows.get(flow))
            .is_none_or(|entry| now.saturating_duration_since(entry.entered) >= PLACE_TIME)
    }

    /// Evicts the oldest until one more from `source` fits. Their SYNs are to be routed.
    fn make_room(&mut self, source: IpAddr, now: Instant) -> Evicted<P, U> {
        let mut evicted = Evicted::default();
        let of_source = self.share();
        while let Some(tickets) = self.sources.get(&source)
            && tickets.len() >= of_source
            && let Some(flow) = tickets.first().and_then(|oldest| self.ages.get(oldest))
        {
            self.evict_and_route(*flow, &mut evicted, now);
        }
        while self.flows.len() >= self.capacity.max(1)
            && let Some((_, flow)) = self.ages.first_key_value()
        {
            self.evict_and_route(*flow, &mut evicted, now);
        }
        evicted
    }

    fn evict_and_route(&mut self, flow: FourTuple, evicted: &mut Evicted<P, U>, now: Instant) {
        let Some(Entry { number, stage, .. }) = self.remove(flow) else {
            return;
        };
        match stage {
            Stage::Asking {
                packet,
                attempt: Some(attempt),
                ..
            } => {
                attempt.abort();
                self.leaving.insert(flow, (number, packet));
                evicted.leaving.push(Leaving { flow, attempt });
            }
            Stage::Asking { packet, .. } => {
                self.past.note(flow, number, Fate::Routed, now);
                evicted.packets.push(packet);
            }
            Stage::Answered { upstream, .. } => evicted.upstreams.push(upstream),
        }
    }

    fn evict(&mut self, flow: FourTuple, evicted: &mut Evicted<P, U>) {
        match self.remove(flow).map(|entry| entry.stage) {
            Some(Stage::Asking {
                packet, attempt, ..
            }) => {
                if let Some(attempt) = attempt {
                    attempt.abort();
                }
                evicted.packets.push(packet);
            }
            Some(Stage::Answered { upstream, .. }) => evicted.upstreams.push(upstream),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
