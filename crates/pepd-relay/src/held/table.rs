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

use tokio::task::AbortHandle;

use super::packet::Flow;

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

/// What is no longer in the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Evicted<P, U> {
    /// SYNs that still wait for their verdict.
    pub(crate) packets: Vec<P>,
    /// Upstream legs that nobody came for.
    pub(crate) upstreams: Vec<U>,
}

#[derive(Debug)]
struct State<P, U> {
    capacity: usize,
    flows: HashMap<Flow, Entry<P, U>>,
    ages: BTreeMap<Ticket, Flow>,
    sources: HashMap<IpAddr, BTreeSet<Ticket>>,
    next: u64,
    budget: Budget,
}

#[derive(Debug)]
struct Entry<P, U> {
    ticket: Ticket,
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
        /// When the client's first and last SYN came.
        first: Instant,
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
                ages: BTreeMap::new(),
                sources: HashMap::new(),
                next: 0,
                budget: Budget::new(capacity, now),
            }),
            len: AtomicUsize::new(0),
        }
    }

    /// Takes another capacity; what is there stays until something new comes.
    pub(crate) fn set_capacity(&self, capacity: u32) {
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        let mut state = self.lock();
        state.capacity = capacity;
        state.budget.size = capacity;
    }

    /// Enters a SYN.
    pub(crate) fn see(&self, flow: Flow, packet: P, now: Instant) -> Seen<P, U> {
        let mut state = self.lock();
        match state.flows.get_mut(&flow).map(|entry| &mut entry.stage) {
            Some(Stage::Asking {
                packet: waiting,
                last,
                ..
            }) => {
                *last = now;
                return Seen::Again(std::mem::replace(waiting, packet));
            }
            Some(Stage::Answered { .. }) => return Seen::Answered(packet),
            None => {}
        }
        let reverse = state.flows.get(&flow.reversed());
        if let Some(leg_is_open) = reverse.map(|entry| entry.stage.leg_is_open()) {
            return Seen::Crossing {
                packet,
                leg_is_open,
            };
        }
        if !state.budget.take(now) {
            return Seen::OverBudget(packet);
        }
        let evicted = state.make_room(flow.client.ip());
        let ticket = state.insert(flow, packet, now);
        self.len.store(state.flows.len(), Relaxed);
        Seen::New(ticket, evicted)
    }

    /// Whether the flow is under way.
    pub(crate) fn knows(&self, flow: Flow) -> bool {
        self.lock().flows.contains_key(&flow)
    }

    /// Notes what is to be aborted when the flow is evicted. False if it has been already.
    pub(crate) fn attach(&self, flow: Flow, ticket: Ticket, handle: AbortHandle) -> bool {
        let mut state = self.lock();
        match state.flows.get_mut(&flow) {
            Some(Entry {
                ticket: at,
                stage: Stage::Asking { attempt, .. },
            }) if *at == ticket => {
                *attempt = Some(handle);
                true
            }
            _ => false,
        }
    }

    /// The upstream leg has sent its SYN.
    pub(crate) fn sent(&self, flow: Flow, ticket: Ticket) {
        if let Some(Entry {
            ticket: at,
            stage: Stage::Asking { sent, .. },
        }) = self.lock().flows.get_mut(&flow)
            && *at == ticket
        {
            *sent = true;
        }
    }

    /// The destination has answered: gives the SYN to send on to the listener, or the upstream
    /// leg back where the flow was evicted.
    pub(crate) fn answer(
        &self,
        flow: Flow,
        ticket: Ticket,
        upstream: U,
        now: Instant,
    ) -> Result<P, U> {
        let mut state = self.lock();
        match state.flows.get_mut(&flow) {
            Some(Entry { ticket: at, stage }) if *at == ticket => {
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
    pub(crate) fn give_up(&self, flow: Flow, ticket: Ticket) -> Option<P> {
        let mut state = self.lock();
        let entry = state.flows.get(&flow)?;
        if entry.ticket != ticket {
            return None;
        }
        self.remove_asking(&mut state, flow)
    }

    /// Ends the attempt because the network says that it is in vain: gives the SYN.
    pub(crate) fn abort(&self, flow: Flow) -> Option<P> {
        self.remove_asking(&mut self.lock(), flow)
    }

    /// Ends the attempt because the client has answered an answer to it that did not come by this
    /// host: gives the SYN.
    pub(crate) fn detour(&self, flow: Flow) -> Option<P> {
        let mut state = self.lock();
        match state.flows.get(&flow)?.stage {
            Stage::Asking { sent: true, .. } => self.remove_asking(&mut state, flow),
            _ => None,
        }
    }

    fn remove_asking(&self, state: &mut State<P, U>, flow: Flow) -> Option<P> {
        match state.flows.get(&flow)?.stage {
            Stage::Asking { .. } => {}
            Stage::Answered { .. } => return None,
        }
        let entry = state.remove(flow)?;
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

    /// Takes the upstream leg of an accepted client.
    pub(crate) fn claim(&self, flow: Flow) -> Option<U> {
        if self.len.load(Relaxed) == 0 {
            return None;
        }
        let mut state = self.lock();
        match state.flows.get(&flow)?.stage {
            Stage::Answered { .. } => {}
            Stage::Asking { .. } => return None,
        }
        let entry = state.remove(flow)?;
        state.budget.give_back();
        self.len.store(state.flows.len(), Relaxed);
        match entry.stage {
            Stage::Answered { upstream, .. } => Some(upstream),
            Stage::Asking { .. } => None,
        }
    }

    /// Takes the SYNs whose clients have given up, and the upstream legs that have waited too
    /// long for theirs.
    pub(crate) fn expire(&self, now: Instant) -> Evicted<P, U> {
        let mut state = self.lock();
        let late: Vec<Flow> = state
            .flows
            .iter()
            .filter(|(_, entry)| match &entry.stage {
                Stage::Answered { since, .. } => {
                    now.saturating_duration_since(*since) >= CLAIM_TIME
                }
                Stage::Asking { first, last, .. } => {
                    let patience = next_syn_within(last.saturating_duration_since(*first));
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
        let flows: Vec<Flow> = state.flows.keys().copied().collect();
        let mut evicted = Evicted::default();
        for flow in flows {
            state.evict(flow, &mut evicted);
        }
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
    fn insert(&mut self, flow: Flow, packet: P, now: Instant) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        let stage = Stage::Asking {
            packet,
            attempt: None,
            sent: false,
            first: now,
            last: now,
        };
        self.flows.insert(flow, Entry { ticket, stage });
        self.ages.insert(ticket, flow);
        let source = self.sources.entry(flow.client.ip()).or_default();
        source.insert(ticket);
        ticket
    }

    fn remove(&mut self, flow: Flow) -> Option<Entry<P, U>> {
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

    /// Evicts the oldest until one more from `source` fits.
    fn make_room(&mut self, source: IpAddr) -> Evicted<P, U> {
        let mut evicted = Evicted::default();
        let of_source = (self.capacity / 2).max(1);
        while let Some(tickets) = self.sources.get(&source)
            && tickets.len() >= of_source
            && let Some(flow) = tickets.first().and_then(|oldest| self.ages.get(oldest))
        {
            self.evict(*flow, &mut evicted);
        }
        while self.flows.len() >= self.capacity.max(1)
            && let Some((_, flow)) = self.ages.first_key_value()
        {
            self.evict(*flow, &mut evicted);
        }
        evicted
    }

    fn evict(&mut self, flow: Flow, evicted: &mut Evicted<P, U>) {
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

impl<P, U> Default for Evicted<P, U> {
    fn default() -> Self {
        Self {
            packets: Vec::new(),
            upstreams: Vec::new(),
        }
    }
}

/// How many upstream legs may be tried without a client that comes for them: as many at once
/// and per second as the table has room for. Those of clients that do come cost nothing, so
/// that this bounds what a flood makes the box send, and nothing else.
#[derive(Debug)]
struct Budget {
    size: usize,
    left: usize,
    filled: Instant,
}

impl Budget {
    fn new(size: usize, now: Instant) -> Self {
        Self {
            size,
            left: size,
            filled: now,
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        const REFILL: Duration = Duration::from_secs(1);
        if now.saturating_duration_since(self.filled) >= REFILL {
            self.left = self.size;
            self.filled = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    fn give_back(&mut self) {
        self.left = (self.left + 1).min(self.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::held::packet::tests::flow;

    type Strings = Table<&'static str, &'static str>;

    fn from(host: u8, port: u16) -> Flow {
        let mut flow = flow();
        flow.client = ([10, 1, 0, host], port).into();
        flow
    }

    fn new(table: &Strings, flow: Flow, packet: &'static str, now: Instant) -> Ticket {
        match table.see(flow, packet, now) {
            Seen::New(ticket, evicted) => {
                assert_eq!(evicted, Evicted::default());
                ticket
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_answered_flow_is_claimed_once() {
        let now = Instant::now();
        let table = Strings::new(8, now);
        let ticket = new(&table, from(1, 1), "syn", now);
        assert_eq!(table.claim(from(1, 1)), None, "nobody has answered");
        assert_eq!(table.answer(from(1, 1), ticket, "leg", now), Ok("syn"));
        assert_eq!(
            table.see(from(1, 1), "again", now),
            Seen::Answered("again"),
            "its SYN-ACK was lost"
        );
        assert_eq!(table.claim(from(1, 2)), None);
        assert_eq!(table.claim(from(1, 1)), Some("leg"));
        assert_eq!(table.claim(from(1, 1)), None);
        assert_eq!(table.len(), 0);
        assert!(table.lock().ages.is_empty() && table.lock().sources.is_empty());
    }

    #[test]
    fn a_repeated_syn_takes_the_place_of_the_one_before() {
        let now = Instant::now();
        let table = Strings::new(8, now);
        let ticket = new(&table, from(1, 1), "first", now);
        assert_eq!(table.see(from(1, 1), "second", now), Seen::Again("first"));
        assert_eq!(table.give_up(from(1, 1), ticket), Some("second"));
        assert_eq!(table.give_up(from(1, 1), ticket), None);
        // The same flow later is another one: an old attempt has no say in it.
        let later = new(&table, from(1, 1), "third", now);
        assert_eq!(table.give_up(from(1, 1), ticket), None);
        assert_eq!(table.answer(from(1, 1), ticket, "old", now), Err("old"));
        assert_eq!(table.answer(from(1, 1), later, "leg", now), Ok("third"));
        assert_eq!(table.abort(from(1, 1)), None, "it has been answered");
    }

    #[test]
    fn a_syn_of_the_other_end_is_for_the_leg_towards_it() {
        let now = Instant::now();
        let table = Strings::new(8, now);
        let (flow, reverse) = (from(1, 1), from(1, 1).reversed());
        let crossing = |packet, leg_is_open| Seen::Crossing {
            packet,
            leg_is_open,
        };
        let ticket = new(&table, flow, "syn", now);
        assert_eq!(table.see(reverse, "a", now), crossing("a", false));
        table.sent(flow, ticket);
        assert_eq!(table.see(reverse, "b", now), crossing("b", true));
        assert_eq!(table.answer(flow, ticket, "leg", now), Ok("syn"));
        assert_eq!(table.see(reverse, "c", now), crossing("c", true));
        assert_eq!(table.claim(flow), Some("leg"));
        new(&table, reverse, "d", now);
    }

    #[test]
    fn only_what_has_been_asked_can_be_answered_by_another_way() {
        let now = Instant::now();
        let table = Strings::new(8, now);
        let ticket = new(&table, from(1, 1), "syn", now);
        assert_eq!(table.detour(from(1, 1)), None);
        table.sent(from(1, 1), ticket);
        assert_eq!(table.detour(from(1, 2)), None);
        assert_eq!(table.detour(from(1, 1)), Some("syn"));
        let ticket = new(&table, from(1, 1), "syn", now);
        assert_eq!(table.answer(from(1, 1), ticket, "leg", now), Ok("syn"));
        assert_eq!(table.detour(from(1, 1)), None, "it came by this one");
    }

    #[test]
    fn when_full_the_oldest_goes() {
        let now = Instant::now();
        let table = Strings::new(3, now);
        let first = new(&table, from(1, 1), "a", now);
        assert_eq!(table.answer(from(1, 1), first, "leg", now), Ok("a"));
        new(&table, from(2, 1), "b", now);
        new(&table, from(3, 1), "c", now);
        // The budget is the capacity per second.
        let now = now + Duration::from_secs(1);
        let Seen::New(_, evicted) = table.see(from(4, 1), "d", now) else {
            panic!("refused")
        };
        assert_eq!((evicted.packets, evicted.upstreams), (vec![], vec!["leg"]));
        let Seen::New(_, evicted) = table.see(from(5, 1), "e", now) else {
            panic!("refused")
        };
        assert_eq!((evicted.packets, evicted.upstreams), (vec!["b"], vec![]));
        assert_eq!(table.len(), 3);
        assert_eq!(table.clear().packets.len(), 3);
        assert!(table.lock().sources.is_empty());
    }

    #[test]
    fn a_source_has_half_and_evicts_its_own() {
        let now = Instant::now();
        let table = Strings::new(4, now);
        new(&table, from(9, 1), "other", now);
        new(&table, from(1, 1), "a", now);
        new(&table, from(1, 2), "b", now);
        let Seen::New(_, evicted) = table.see(from(1, 3), "c", now) else {
            panic!("refused")
        };
        assert_eq!(evicted.packets, ["a"]);
    }

    #[test]
    fn attempts_in_vain_are_bounded_per_second_and_others_are_not() {
        let now = Instant::now();
        let table = Strings::new(4, now);
        for port in 0..100 {
            let ticket = new(&table, from(1, port), "good", now);
            assert_eq!(table.answer(from(1, port), ticket, "leg", now), Ok("good"));
            assert_eq!(table.claim(from(1, port)), Some("leg"));
        }
        for port in 0..4 {
            let ticket = new(&table, from(2, port), "vain", now);
            assert_eq!(table.give_up(from(2, port), ticket), Some("vain"));
        }
        let refused = table.see(from(2, 9), "vain", now);
        assert_eq!(refused, Seen::OverBudget("vain"));
        new(&table, from(2, 9), "later", now + Duration::from_secs(1));
    }

    #[test]
    fn a_leg_that_nobody_comes_for_expires() {
        let now = Instant::now();
        let table = Strings::new(4, now);
        let ticket = new(&table, from(1, 1), "a", now);
        assert_eq!(table.answer(from(1, 1), ticket, "leg", now), Ok("a"));
        let early = table.expire(now + Duration::from_secs(19));
        assert_eq!(early, Evicted::default());
        let late = table.expire(now + Duration::from_secs(21));
        assert_eq!(late.upstreams, ["leg"]);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_client_that_sends_no_more_has_given_up() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let table = Strings::new(4, start);
        new(&table, from(1, 1), "0", start);
        // As RFC 6298 has it: never longer than what has passed, and a second.
        for seconds in [1, 3, 7, 15, 31, 63] {
            assert_eq!(table.expire(after(seconds)), Evicted::default());
            assert!(matches!(
                table.see(from(1, 1), "again", after(seconds)),
                Seen::Again(_)
            ));
        }
        assert_eq!(table.expire(after(127)), Evicted::default());
        assert_eq!(table.expire(after(63 + 126 + 5)).packets, ["again"]);
        new(&table, from(1, 2), "once", start);
        assert_eq!(table.expire(after(5)).packets, ["once"]);
    }
}
