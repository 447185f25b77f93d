//! Sums over all connections between two campuses, including those that have ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::measurements::PairMeasurements;
use crate::phase::PhaseTimes;
use crate::{PairDirection, PairLeg, PairSnapshot, TcpFigures};

/// Seconds that "of late" means.
const RECENT: u64 = 10;

/// A bucket for each of them.
const BUCKETS: usize = 10;

/// The bytes that one direction has carried, and how long it took: of a flow since it was last
/// asked, or of all flows of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) bytes: u64,
    /// While there was something to carry.
    pub(crate) times: PhaseTimes,
}

impl Progress {
    fn add(&mut self, more: Self) {
        self.bytes += more.bytes;
        self.times = self.times.plus(more.times);
    }
}

/// The connections from one campus to another.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) client_campus: Arc<str>,
    pub(crate) server_campus: Arc<str>,
    /// The measurements for the metrics; set when the first connection enters.
    pub(crate) measured: OnceLock<Arc<PairMeasurements>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    live: u64,
    accepted: u64,
    client_profile: Arc<str>,
    upstream_profile: Arc<str>,
    up: Progress,
    down: Progress,
    began: Instant,
    recent: [Bucket; BUCKETS],
}

/// One of the last seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    second: u64,
    up: Progress,
    down: Progress,
}

impl Pair {
    fn new(client_campus: Arc<str>, server_campus: Arc<str>, now: Instant) -> Self {
        let nameless: Arc<str> = "".into();
        Self {
            client_campus,
            server_campus,
            measured: OnceLock::new(),
            state: Mutex::new(State {
                live: 0,
                accepted: 0,
                client_profile: Arc::clone(&nameless),
                upstream_profile: nameless,
                up: Progress::default(),
                down: Progress::default(),
                began: now,
                recent: Default::default(),
            }),
        }
    }

    /// Counts a connection that begins, with the profiles of its two legs.
    pub(crate) fn flow_began(&self, client_profile: &Arc<str>, upstream_profile: &Arc<str>) {
        let mut state = self.lock();
        state.live += 1;
        state.accepted += 1;
        // After a reload they may be others.
        if !Arc::ptr_eq(&state.client_profile, client_profile) {
            state.client_profile = Arc::clone(client_profile);
        }
        if !Arc::ptr_eq(&state.upstream_profile, upstream_profile) {
            state.upstream_profile = Arc::clone(upstream_profile);
        }
    }

    /// Counts a connection that has ended.
    pub(crate) fn flow_ended(&self) {
        let mut state = self.lock();
        state.live = state.live.saturating_sub(1);
    }

    /// Records the round-trip times of a connection's legs, each second in which it is active.
    pub(crate) fn observe_rtts(&self, client: Option<TcpFigures>, upstream: Option<TcpFigures>) {
        let Some(measured) = self.measured.get() else {
            return;
        };
        for (leg, tcp) in [(&measured.client, client), (&measured.upstream, upstream)] {
            // Not measured yet where it is zero.
            if let Some(tcp) = tcp.filter(|tcp| tcp.rtt > 0.0) {
                leg.rtt.observe(tcp.rtt);
            }
        }
    }

    /// Records what a connection's legs sent again, from the last figures of them.
    pub(crate) fn observe_retransmissions(
        &self,
        client: Option<TcpFigures>,
        upstream: Option<TcpFigures>,
    ) {
        let Some(measured) = self.measured.get() else {
            return;
        };
        for (leg, tcp) in [(&measured.client, client), (&measured.upstream, upstream)] {
            if let Some(tcp) = tcp {
                leg.observe_retransmitted(&tcp);
            }
        }
    }

    /// Adds the progress of a connection's two directions.
    pub(crate) fn add(&self, now: Instant, up: Progress, down: Progress) {
        if (up, down) == Default::default() {
            return;
        }
        let mut state = self.lock();
        let second = state.second(now);
        state.up.add(up);
        state.down.add(down);
        let slot = usize::try_from(second % RECENT).unwrap_or(0);
        let bucket = &mut state.recent[slot];
        if bucket.second != second {
            *bucket = Bucket {
                second,
                ..Bucket::default()
            };
        }
        bucket.up.add(up);
        bucket.down.add(down);
    }

    /// Returns the pair as the API gives it, but for what only the live connections know.
    pub(crate) fn snapshot(&self, now: Instant) -> PairSnapshot {
        let state = self.lock();
        let second = state.second(now);
        let mut up = Progress::default();
        let mut down = Progress::default();
        for bucket in &state.recent {
            if bucket.second + RECENT > second {
                up.add(bucket.up);
                down.add(bucket.down);
            }
        }
        // Bytes come in once a second: the running second has none yet.
        let time = now
            .saturating_duration_since(state.began)
            .clamp(Duration::from_secs(1), Duration::from_secs(RECENT))
            .as_secs_f64();
        let direction = |all: Progress, recent: Progress| PairDirection {
            bytes: all.bytes,
            goodput: recent.bytes as f64 * 8.0 / time,
            phases: all.times.into(),
            recent_phases: recent.times.into(),
        };
        let leg = |profile: &Arc<str>| PairLeg {
            profile: profile.to_string(),
            ..PairLeg::default()
        };
        PairSnapshot {
            client_campus: self.client_campus.to_string(),
            server_campus: self.server_campus.to_string(),
            live: state.live,
            accepted: state.accepted,
            up: direction(state.up, up),
            down: direction(state.down, down),
            client_leg: leg(&state.client_profile),
            upstream_leg: leg(&state.upstream_profile),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held leaves at worst a sum that lacks one addend.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Counts from 1, so that a bucket that was never used belongs to no second.
    fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs() + RECENT
    }
}

/// All pairs that had connections: as many as there are campuses, squared, at most.
#[derive(Debug, Default)]
pub(crate) struct Pairs(Mutex<HashMap<Campuses, Arc<Pair>>>);

/// The client's and the server's.
type Campuses = (Arc<str>, Arc<str>);

impl Pairs {
    /// Gives the pair of these two campuses, made if it is new.
    pub(crate) fn get(&self, client: &Arc<str>, server: &Arc<str>, now: Instant) -> Arc<Pair> {
        let key = (Arc::clone(client), Arc::clone(server));
        let mut pairs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = pairs.entry(key).or_insert_with_key(|(client, server)| {
            Arc::new(Pair::new(Arc::clone(client), Arc::clone(server), now))
        });
        Arc::clone(pair)
    }

    /// Returns all pairs, sorted by name.
    pub(crate) fn all(&self) -> Vec<Arc<Pair>> {
        let pairs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = pairs.values().map(Arc::clone).collect();
        all.sort_by(|a, b| {
            (&a.client_campus, &a.server_campus).cmp(&(&b.client_campus, &b.server_campus))
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_late_is_the_last_ten_seconds() {
        let start = Instant::now();
        let pair = Pair::new("a".into(), "b".into(), start);
        let progress = |bytes| Progress {
            bytes,
            times: PhaseTimes {
                free: Duration::from_secs(1),
                ..PhaseTimes::default()
            },
        };
        pair.add(start, progress(1000), Progress::default());
        pair.add(
            start + Duration::from_secs(12),
            progress(50),
            Progress::default(),
        );
        pair.add(
            start + Duration::from_secs(13),
            progress(50),
            Progress::default(),
        );
        let seen = pair.snapshot(start + Duration::from_secs(14));
        assert_eq!(seen.up.bytes, 1100);
        assert!((seen.up.goodput - 80.0).abs() < 1e-9);
        assert!((seen.up.phases.free - 3.0).abs() < 1e-9);
        assert!((seen.up.recent_phases.free - 2.0).abs() < 1e-9);
        let later = pair.snapshot(start + Duration::from_secs(60));
        assert!(later.up.goodput.abs() < 1e-9);
    }

    #[test]
    fn a_reload_brings_other_profiles() {
        let pair = Pair::new("a".into(), "b".into(), Instant::now());
        pair.flow_began(&"lan".into(), &"wan".into());
        pair.flow_began(&"lan".into(), &"satellite".into());
        pair.flow_ended();
        let seen = pair.snapshot(Instant::now());
        assert_eq!((seen.live, seen.accepted), (1, 2));
        assert_eq!(seen.upstream_leg.profile, "satellite");
    }
}
