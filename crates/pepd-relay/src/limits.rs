//! How many connections there are, in total and per source, and who has to be told.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use pepd_packet::Source;
use tokio::sync::Notify;

use crate::asymmetric_routes::{AsymmetricRoute, AsymmetricRoutes};
use crate::settings::Limits;
use crate::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard};

/// Counts connections against the limits.
///
/// A connection that has reached the listener is served even beyond the limit: it cannot be
/// routed any more. The limits work before that: when one is reached, the capture is told, and
/// sends no more.
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
    sources: HashMap<Source, u32>,
    full: bool,
    full_sources: HashSet<Source>,
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

/// The limits that are exceeded now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// There are as many connections as there may be: no new one should be captured.
    pub full: bool,
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
                sources: HashMap::new(),
                full: false,
                full_sources: HashSet::new(),
                asymmetric: AsymmetricRoutes::new(Instant::now()),
                flooded: Vec::new(),
                flooded_until: None,
            }),
            exhausted: AtomicBool::new(false),
            live: AtomicU32::new(0),
            changed: Notify::new(),
        }
    }

    /// Counts one connection until what is returned is dropped.
    pub(crate) fn admit(self: &Arc<Self>, client: IpAddr) -> Permit {
        let mut state = self.lock();
        let live = self.live.fetch_add(1, Relaxed) + 1;
        let source = state.limits.source_prefix.source_of(client);
        let State {
            limits, sources, ..
        } = &mut *state;
        let from_source = sources.entry(source).or_default();
        *from_source += 1;
        let source_is_full = *from_source == limits.per_source;
        if source_is_full {
            state.full_sources.insert(source);
        }
        let became_full = !state.full && live >= state.limits.connections;
        state.full |= became_full;
        drop(state);
        if source_is_full || became_full {
            self.changed.notify_one();
        }
        Permit {
            admission: Arc::clone(self),
            source,
        }
    }

    fn leave(&self, source: Source) {
        let mut state = self.lock();
        let live = self.live.fetch_sub(1, Relaxed) - 1;
        let mut changed = false;
        let remaining = state.sources.get_mut(&source).map(|count| {
            *count -= 1;
            *count
        });
        if remaining == Some(0) {
            state.sources.remove(&source);
        }
        if remaining.is_none_or(|count| count < reopening(state.limits.per_source)) {
            changed |= state.full_sources.remove(&source);
        }
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
        let State {
            sources,
            full_sources,
            ..
        } = &mut *state;
        *full_sources = sources
            .iter()
            .filter(|(_, count)| **count >= limits.per_source)
            .map(|(source, _)| *source)
            // The capture knows sources by one prefix.
            .filter(|source| limits.source_prefix.source_of(source.network()) == *source)
            .collect();
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
            exhausted: self.exhausted.load(Relaxed),
            flooded: state.flooded_until.is_some_and(|until| now < until),
            sources: state.full_sources.iter().copied().collect(),
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

/// One admitted connection.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Arc<Admission>,
    source: Source,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.leave(self.source);
    }
}

#[cfg(test)]
mod tests {
    use pepd_packet::SourcePrefix;

    use super::*;

    fn admission(connections: u32, per_source: u32) -> Arc<Admission> {
        Arc::new(Admission::new(limits(connections, per_source)))
    }

    fn limits(connections: u32, per_source: u32) -> Limits {
        Limits {
            connections,
            per_source,
            source_prefix: SourcePrefix::NETWORK,
        }
    }

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 1, 0, last])
    }

    #[test]
    fn full_at_the_limit_and_free_a_little_below() {
        let admission = admission(32, 1000);
        let mut permits: Vec<_> = (0..31).map(|n| admission.admit(ip(n))).collect();
        assert!(!admission.pressure(Instant::now()).full);
        permits.push(admission.admit(ip(99)));
        assert!(admission.pressure(Instant::now()).full);
        permits.truncate(30);
        assert!(admission.pressure(Instant::now()).full);
        permits.truncate(29);
        assert!(!admission.pressure(Instant::now()).full);
        drop(permits);
        assert_eq!(admission.live(), 0);
        assert!(
            admission.lock().sources.is_empty(),
            "no trace of a source that left"
        );
    }

    #[test]
    fn a_source_at_its_limit_is_named_until_it_leaves() {
        let admission = admission(1000, 2);
        let first = admission.admit(ip(1));
        let _other = admission.admit(ip(2));
        assert!(admission.pressure(Instant::now()).sources.is_empty());
        let second = admission.admit(ip(1));
        assert_eq!(
            admission.pressure(Instant::now()),
            Pressure {
                sources: vec![ip(1).into()],
                ..Pressure::default()
            }
        );
        drop(second);
        assert!(admission.pressure(Instant::now()).sources.is_empty());
        drop(first);
    }

    #[test]
    fn new_limits_count_at_once() {
        let admission = admission(1000, 1000);
        let _permits: Vec<_> = (0..4).map(|_| admission.admit(ip(1))).collect();
        admission.set_limits(limits(4, 4));
        assert_eq!(
            admission.pressure(Instant::now()),
            Pressure {
                full: true,
                sources: vec![ip(1).into()],
                ..Pressure::default()
            }
        );
        admission.set_limits(limits(5, 5));
        assert_eq!(admission.pressure(Instant::now()), Pressure::default());
    }

    #[test]
    fn the_addresses_of_one_network_are_one_source() {
        let admission = admission(1000, 3);
        let client = |host| format!("2001:db8:1:2::{host}").parse().unwrap();
        let permits = [1, 2, 3].map(|host| admission.admit(client(host)));
        let _other = admission.admit("2001:db8:1:3::1".parse().unwrap());
        let full = admission.pressure(Instant::now()).sources;
        assert_eq!(full, [SourcePrefix::NETWORK.source_of(client(9))]);
        // Each leaves the source that it was counted for.
        let mut coarser = limits(1000, 3);
        coarser.source_prefix = SourcePrefix(48);
        admission.set_limits(coarser);
        assert!(
            admission.pressure(Instant::now()).sources.is_empty(),
            "of another prefix"
        );
        let _more = admission.admit(client(4));
        drop(permits);
        assert!(admission.pressure(Instant::now()).sources.is_empty());
        assert_eq!(admission.lock().sources.len(), 2);
    }

    #[test]
    fn a_flood_is_told_to_the_capture() {
        let (admission, now) = (admission(10, 10), Instant::now());
        for last in 0..=255 {
            for third in 0..5 {
                let destination = IpAddr::from([10, 2, third, last]);
                admission.note_flood(Flood::Of(destination), now);
            }
        }
        assert!(!admission.pressure(now).flooded);
        assert_eq!(admission.take_flooded().len(), FLOODED);
        assert_eq!(admission.take_flooded(), [] as [IpAddr; 0]);
        admission.note_flood(Flood::Everywhere, now);
        assert!(admission.pressure(now).flooded);
        assert!(!admission.pressure(now + FLOODED_FOR).flooded);
    }

    #[test]
    fn exhausted_until_something_ends() {
        let admission = admission(10, 10);
        let permit = admission.admit(ip(1));
        admission.exhausted();
        assert!(admission.pressure(Instant::now()).exhausted);
        drop(permit);
        assert!(!admission.pressure(Instant::now()).exhausted);
    }
}
