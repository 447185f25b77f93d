//! How many connections there are, in total and per source, and who has to be told.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use pepd_model::buffers::{Account, Holds, Memory};
use pepd_packet::Source;
use tokio::sync::Notify;

use crate::asymmetric_routes::{AsymmetricRoute, AsymmetricRoutes};
use crate::settings::Limits;
use crate::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard};
use sources::{Sources, Turn};

/// Counts connections against the limits.
///
/// A connection that has reached the listener is served even beyond the limit of all: it cannot be
/// routed any more. The limits work before that: when one is reached, the capture is told, and
/// sends no more. What one source may have it never has more of: what comes before the capture has
/// heard is routed where it can be (`turn`), else reset (`try_admit`).
#[derive(Debug)]
pub struct Admission {
    state: Mutex<State>,
    /// Descriptors have run out.
    exhausted: AtomicBool,
    /// Changed only while the state is locked: else one that comes and one that goes could each judge
    /// by what the other has changed already, and `full` would stay as the wrong one left it.
    live: AtomicU32,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    limits: Limits,
    sources: Sources,
    full: bool,
    account: Account,
    asymmetric: AsymmetricRoutes,
    /// Flooded destinations that have not been asked for yet.
    flooded: Vec<IpAddr>,
    /// The time until which no destination has new connections captured: more SYNs come than can
    /// be held, and to too many of them.
    flooded_until: Option<Instant>,
}

/// More SYNs than there is room for, which would keep others waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flood {
    /// They lead to this address.
    Of(IpAddr),
    /// They lead to many.
    Everywhere,
}

/// Flooded destinations that are kept for the capture; more are found again.
const FLOODED: usize = 1024;

/// The time for which nothing is captured while destinations are flooded everywhere: the next second
/// has a budget of its own.
const FLOODED_FOR: Duration = Duration::from_secs(1);

/// The time that a SYN waits for those before it to come: less than its client takes to repeat it (RFC
/// 6298), and more than a round trip to it by satellite.
const PATIENCE: Duration = Duration::from_millis(900);

/// The limits that are exceeded now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// There are as many connections as there may be: no new one should be captured.
    pub full: bool,
    /// The connections hold so much that there is no memory for another one.
    pub memory: bool,
    /// There is no descriptor for another one.
    pub exhausted: bool,
    /// For a moment no new connection should be captured: SYNs come that nobody can hold.
    pub flooded: bool,
    /// No new connection from these sources should be captured.
    pub sources: Vec<Source>,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            state: Mutex::new(State {
                limits,
                sources: Sources::default(),
                full: false,
                account: Account::default(),
                asymmetric: AsymmetricRoutes::new(Instant::now()),
                flooded: Vec::new(),
                flooded_until: None,
            }),
            exhausted: AtomicBool::new(false),
            live: AtomicU32::new(0),
            changed: Notify::new(),
        }
    }

    /// Counts one connection until what is returned is dropped, though its source have as many as it
    /// may: it is not to be lost.
    pub(crate) fn admit(self: &Arc<Self>, client: IpAddr) -> Permit {
        let state = self.lock();
        let source = state.limits.source_prefix.source_of(client);
        self.enter(state, source)
    }

    /// Counts one connection until what is returned is dropped; none where its source has as many as
    /// it may.
    pub(crate) fn try_admit(self: &Arc<Self>, client: IpAddr) -> Option<Permit> {
        let state = self.lock();
        let source = state.limits.source_prefix.source_of(client);
        let is_full = state.sources.is_full(source, state.limits.per_source);
        (!is_full).then(|| self.enter(state, source))
    }

    fn enter(self: &Arc<Self>, mut state: MutexGuard<'_, State>, source: Source) -> Permit {
        let live = self.live.fetch_add(1, Relaxed) + 1;
        let limits = state.limits;
        let source_is_full = state.sources.enter(source, limits.per_source);
        let became_full = !state.full && live >= limits.connections;
        state.full |= became_full;
        let memory_changed = state.account.enter(limits.memory_bytes());
        drop(state);
        if source_is_full || became_full || memory_changed {
            self.changed.notify_one();
        }
        Permit {
            admission: Arc::clone(self),
            source,
            seat: Arc::new(Seat::new(Holds::NEW)),
        }
    }

    /// Returns whether the client's source has as many connections as it may.
    pub(crate) fn source_is_full(&self, client: IpAddr) -> bool {
        let state = self.lock();
        let source = state.limits.source_prefix.source_of(client);
        state.sources.is_full(source, state.limits.per_source)
    }

    /// Waits until a client whose SYN is held may come, for [`PATIENCE`] at most; none where its source
    /// has as many connections as it may.
    pub(crate) async fn turn(self: &Arc<Self>, client: IpAddr) -> Option<Coming> {
        let until = Instant::now() + PATIENCE;
        let mut is_over = false;
        loop {
            let (source, asked) = self.ask(client, is_over);
            match asked {
                Turn::Never => return None,
                Turn::Now => {
                    return Some(Coming {
                        admission: Arc::clone(self),
                        source,
                    });
                }
                Turn::Later(woken) => {
                    is_over = tokio::time::timeout_at(until.into(), woken).await.is_err();
                }
            }
        }
    }

    fn ask(&self, client: IpAddr, has_waited: bool) -> (Source, Turn) {
        let now = Instant::now();
        let mut state = self.lock();
        let State {
            limits, sources, ..
        } = &mut *state;
        let source = limits.source_prefix.source_of(client);
        let mut asked = sources.ask(source, limits.per_source, now);
        if has_waited && matches!(asked, Turn::Later(_)) {
            sources.doubt(source, now);
            asked = sources.ask(source, limits.per_source, now);
        }
        (source, asked)
    }

    fn leave(&self, source: Source, seat: &Seat) {
        let mut state = self.lock();
        let live = self.live.fetch_sub(1, Relaxed) - 1;
        let limit = state.limits.memory_bytes();
        let mut changed = state.account.leave(seat.leave(), limit);
        let per_source = state.limits.per_source;
        changed |= state
            .sources
            .leave(source, per_source, reopening(per_source));
        if state.full && live < reopening(state.limits.connections) {
            state.full = false;
            changed = true;
        }
        drop(state);
        // A descriptor has come free.
        changed |= self.exhausted.swap(false, Relaxed);
        if changed {
            self.changed.notify_one();
        }
    }

    /// Notes the bytes of the pipes that a worker has lent, in place of what was noted before.
    pub(crate) fn note_pipes(&self, before: u64, after: u64) {
        let mut state = self.lock();
        let limit = state.limits.memory_bytes();
        let changed = state.account.change_pipes(before, after, limit);
        drop(state);
        if changed {
            self.changed.notify_one();
        }
    }

    /// Returns the memory that buffers may be given of: within what the limits say, and below what
    /// has the kernel shrink all windows.
    pub(crate) fn memory(&self) -> Memory {
        let state = self.lock();
        let limits = &state.limits;
        state
            .account
            .memory(limits.memory_bytes(), limits.tcp_memory.0)
    }

    /// Returns the bytes that connections and pipes are counted with against the limit: what they
    /// hold, and what is kept for those that hold little.
    pub fn memory_counted(&self) -> u64 {
        self.lock().account.counted()
    }

    /// Notes that no descriptor is available, until a connection ends or [`Admission::recovered`]
    /// says otherwise.
    pub(crate) fn exhausted(&self) {
        if !self.exhausted.swap(true, Relaxed) {
            self.changed.notify_one();
        }
    }

    /// Notes that descriptors are available again.
    pub(crate) fn recovered(&self) {
        if self.exhausted.swap(false, Relaxed) {
            self.changed.notify_one();
        }
    }

    /// Notes that answers take another way than by this host, unless there are too many of them.
    pub(crate) fn note_asymmetric(&self, route: AsymmetricRoute, now: Instant) {
        self.lock().asymmetric.note(route, now);
        self.changed.notify_one();
    }

    /// Returns the asymmetric routes that were found since the last call.
    pub fn take_asymmetric_routes(&self) -> Vec<AsymmetricRoute> {
        self.lock().asymmetric.take()
    }

    /// Notes a flood of SYNs.
    pub(crate) fn note_flood(&self, flood: Flood, now: Instant) {
        let mut state = self.lock();
        match flood {
            Flood::Of(destination) if state.flooded.len() < FLOODED => {
                state.flooded.push(destination);
            }
            Flood::Of(_) => {}
            Flood::Everywhere => state.flooded_until = Some(now + FLOODED_FOR),
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Returns the destinations that were found flooded since the last call.
    pub fn take_flooded(&self) -> Vec<IpAddr> {
        std::mem::take(&mut self.lock().flooded)
    }

    /// Takes new limits; they count from the next connection on. Those that there are stay with the
    /// source that they were counted for.
    pub(crate) fn set_limits(&self, limits: Limits) {
        let mut state = self.lock();
        state.limits = limits;
        state.full = self.live.load(Relaxed) >= limits.connections;
        state.account.judge(limits.memory_bytes());
        state.sources.judge(limits.per_source, limits.source_prefix);
        drop(state);
        self.changed.notify_one();
    }

    /// Returns the limits in force.
    pub fn limits(&self) -> Limits {
        self.lock().limits
    }

    /// Connections now.
    pub fn live(&self) -> u32 {
        self.live.load(Relaxed)
    }

    /// Returns what is over a limit now.
    pub fn pressure(&self, now: Instant) -> Pressure {
        let state = self.lock();
        Pressure {
            full: state.full,
            memory: state.account.is_full(),
            exhausted: self.exhausted.load(Relaxed),
            flooded: state.flooded_until.is_some_and(|until| now < until),
            sources: state.sources.full(),
        }
    }

    /// Waits until [`Admission::pressure`] may have changed, or there are asymmetric routes or
    /// flooded destinations.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held leaves at worst a count that is one off.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number below which a limit that was reached counts as free again: a little lower, so
/// that the capture is not told twice per connection.
fn reopening(limit: u32) -> u32 {
    (limit - limit / 16).max(1)
}

/// What one connection is counted with. It is changed only while the admission's state is locked.
#[derive(Debug)]
struct Seat {
    held: AtomicU64,
    counted: AtomicU64,
}

impl Seat {
    /// The count of a connection that has left.
    const GONE: u64 = u64::MAX;

    fn new(holds: Holds) -> Self {
        Self {
            held: AtomicU64::new(holds.held),
            counted: AtomicU64::new(holds.counted),
        }
    }

    /// Returns what it is counted with; none once it has left.
    fn get(&self) -> Option<Holds> {
        let counted = self.counted.load(Relaxed);
        let held = self.held.load(Relaxed);
        (counted != Self::GONE).then_some(Holds { held, counted })
    }

    fn set(&self, holds: Holds) {
        self.held.store(holds.held, Relaxed);
        self.counted.store(holds.counted, Relaxed);
    }

    fn leave(&self) -> Holds {
        let holds = self.get().unwrap_or_default();
        self.counted.store(Self::GONE, Relaxed);
        holds
    }
}

/// A client whose SYN goes on to the listener, until it has come, or never will.
#[derive(Debug)]
pub(crate) struct Coming {
    admission: Arc<Admission>,
    source: Source,
}

impl Drop for Coming {
    fn drop(&mut self) {
        let mut state = self.admission.lock();
        let limit = state.limits.per_source;
        state.sources.has_come(self.source, limit);
    }
}

/// One admitted connection.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Arc<Admission>,
    source: Source,
    seat: Arc<Seat>,
}

impl Permit {
    /// Returns what notes how much it holds.
    pub(crate) fn count(&self) -> Count {
        Count {
            admission: Arc::clone(&self.admission),
            seat: Arc::clone(&self.seat),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.leave(self.source, &self.seat);
    }
}

/// What one connection is counted with, as long as it is there.
#[derive(Debug)]
pub(crate) struct Count {
    admission: Arc<Admission>,
    seat: Arc<Seat>,
}

impl Count {
    /// Counts it with so many bytes more, if there is room for them.
    pub(crate) fn grow(&self, more: u64) -> bool {
        let mut state = self.admission.lock();
        let limit = state.limits.memory_bytes();
        let Some(before) = self.seat.get() else {
            return false;
        };
        if !state.account.has_room(more, limit) {
            return false;
        }
        let after = Holds {
            counted: before.counted.saturating_add(more),
            ..before
        };
        self.change(&mut state, before, after);
        true
    }

    /// Returns what it is counted with.
    pub(crate) fn counted(&self) -> u64 {
        self.seat.get().unwrap_or_default().counted
    }

    /// Counts it with what it was seen to hold, and may.
    pub(crate) fn set(&self, holds: Holds) {
        let mut state = self.admission.lock();
        if let Some(before) = self.seat.get() {
            self.change(&mut state, before, holds);
        }
    }

    fn change(&self, state: &mut State, before: Holds, after: Holds) {
        self.seat.set(after);
        let limit = state.limits.memory_bytes();
        if state.account.change(before, after, limit) {
            self.admission.changed.notify_one();
        }
    }
}

// The paths are for pepd-loom, which compiles this file as a module of its own.
#[path = "limits/sources.rs"]
mod sources;
#[cfg(test)]
#[path = "limits/tests.rs"]
mod tests;
