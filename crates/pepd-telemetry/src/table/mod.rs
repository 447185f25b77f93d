//! All live connections, and what is summed over them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::flow::{ConnectionSample, Flow, FlowInfo, LiveLeg, SampleFields, Socket, StepReport};
use crate::history::PointBudget;
use crate::legs::Legs;
use crate::pairs::Pairs;
use crate::{
    CountedFailure, Counters, FlowHistory, FlowSnapshot, HistoryStep, LegHistory, LegSecondFacts,
    LegState, PairLeg, PairSnapshot, Side, TcpFigures,
};

/// Points of history that all flows together may keep: 22 MB.
const HISTORY_POINTS: usize = 400_000;

/// All live connections. Each worker has a shard of its own, so that workers do not wait for
/// one another.
#[derive(Debug)]
pub struct FlowTable {
    counters: Arc<Counters>,
    began: Instant,
    /// The same time in seconds since the Unix epoch.
    epoch: f64,
    last_id: AtomicU64,
    shards: Box<[Mutex<Shard>]>,
    pairs: Pairs,
    legs: Legs,
    failures: Mutex<BTreeMap<(Side, i32), u64>>,
    budget: Arc<PointBudget>,
}

#[derive(Debug, Default)]
struct Shard {
    slots: Vec<Option<Arc<Flow>>>,
    free: Vec<usize>,
}

impl FlowTable {
    /// Creates an empty table for `workers` workers, at `now`, which is `epoch` seconds since the
    /// Unix epoch.
    pub fn new(counters: Arc<Counters>, workers: usize, now: Instant, epoch: f64) -> Self {
        Self {
            counters,
            began: now,
            epoch,
            last_id: AtomicU64::new(0),
            shards: (0..workers.max(1)).map(|_| Mutex::default()).collect(),
            pairs: Pairs::default(),
            legs: Legs::default(),
            failures: Mutex::default(),
            budget: PointBudget::new(HISTORY_POINTS),
        }
    }

    /// Returns when the table began, in seconds since the Unix epoch.
    pub fn epoch(&self) -> f64 {
        self.epoch
    }

    /// Seconds since then.
    pub fn uptime(&self, now: Instant) -> f64 {
        now.saturating_duration_since(self.began).as_secs_f64()
    }

    /// Returns an id that no connection has had, for one that is to be entered with it.
    pub fn new_id(&self) -> u64 {
        self.last_id.fetch_add(1, Relaxed) + 1
    }

    /// Enters a connection of `worker`; it leaves when what is returned is dropped.
    pub fn register(
        self: &Arc<Self>,
        worker: usize,
        info: FlowInfo,
        client_socket: Weak<Socket>,
        upstream_socket: Weak<Socket>,
        now: Instant,
    ) -> Registration {
        let id = self.new_id();
        self.enter(worker, id, info, (client_socket, upstream_socket), now)
    }

    /// Enters again a connection that another process has had, by its id there, with the bytes that it
    /// had written to the server and to the client. They are not counted again.
    pub fn register_again(
        self: &Arc<Self>,
        worker: usize,
        (id, written): (u64, [u64; 2]),
        info: FlowInfo,
        sockets: (Weak<Socket>, Weak<Socket>),
        now: Instant,
    ) -> Registration {
        self.last_id.fetch_max(id, Relaxed);
        let registration = self.enter(worker, id, info, sockets, now);
        registration.flow.had_written(written);
        registration
    }

    fn enter(
        self: &Arc<Self>,
        worker: usize,
        id: u64,
        info: FlowInfo,
        sockets: (Weak<Socket>, Weak<Socket>),
        now: Instant,
    ) -> Registration {
        let pair = self
            .pairs
            .get(&info.client_campus, &info.server_campus, now);
        pair.measured.get_or_init(|| {
            let measurements = &self.counters.measurements;
            measurements.pair(&info.client_campus, &info.server_campus)
        });
        pair.flow_began(&info.client_profile, &info.upstream_profile);
        let leg = |name| self.legs.get(name, &self.counters.measurements, now);
        let legs = [leg(&info.client_profile), leg(&info.upstream_profile)];
        let flow = Arc::new(Flow::new(id, info, (pair, legs), sockets, now));
        let shard = worker % self.shards.len();
        let slot = self.shard(shard).insert(Arc::clone(&flow));
        Registration {
            table: Arc::clone(self),
            shard,
            slot,
            flow,
        }
    }

    /// Samples a share of `worker`'s connections: every `of`th, from the `part`th on. Each is to
    /// be sampled once a second. `read` reads the sockets of those in which something happened; it is
    /// given their ids.
    pub fn sample(
        &self,
        worker: usize,
        part: usize,
        of: usize,
        now: Instant,
        mut read: impl FnMut(u64, &Socket, &Socket, SampleFields) -> ConnectionSample,
    ) {
        let flows: Vec<_> = self
            .shard(worker % self.shards.len())
            .slots
            .iter()
            .skip(part)
            .step_by(of.max(1))
            .flatten()
            .cloned()
            .collect();
        let since = now.saturating_duration_since(self.began).as_millis() / 10;
        let centiseconds = u32::try_from(since).unwrap_or(u32::MAX);
        let (mut up, mut down) = (0, 0);
        for flow in flows {
            let read = |client: &Socket, upstream: &Socket, fields: SampleFields| {
                read(flow.id, client, upstream, fields)
            };
            let delivered = flow.sample(now, centiseconds, &self.budget, read);
            up += delivered.0;
            down += delivered.1;
        }
        self.counters.bytes_up.add(up);
        self.counters.bytes_down.add(down);
    }

    /// Returns the legs of `worker`'s connections of whose name that is true, the sockets of which that worker's own
    /// thread may use.
    pub fn legs(&self, worker: usize, is_meant: impl Fn(&str) -> bool) -> Vec<LiveLeg> {
        let shard = self.shard(worker % self.shards.len());
        let flows = shard.slots.iter().flatten();
        flows.flat_map(|flow| flow.legs(&is_meant)).collect()
    }

    /// Counts a connection that ended with an error.
    pub fn count_failure(&self, side: Side, errno: i32) {
        *lock(&self.failures).entry((side, errno)).or_default() += 1;
    }

    /// Returns the connections that ended with an error.
    pub fn failures(&self) -> Vec<CountedFailure> {
        lock(&self.failures)
            .iter()
            .map(|(&(side, errno), &count)| CountedFailure {
                side,
                errno: errno_name(errno),
                count,
            })
            .collect()
    }

    /// Returns all live connections.
    pub fn flows(&self, now: Instant) -> Vec<FlowSnapshot> {
        self.all()
            .iter()
            .map(|flow| flow.snapshot(now, self.began, self.epoch))
            .collect()
    }

    /// Returns one live connection.
    pub fn flow(&self, id: u64, now: Instant) -> Option<FlowSnapshot> {
        let flow = self.find(id)?;
        Some(flow.snapshot(now, self.began, self.epoch))
    }

    /// Returns the last minutes of one live connection.
    pub fn history(&self, id: u64) -> Option<FlowHistory> {
        let points = self.find(id)?.history(self.epoch);
        Some(FlowHistory { id, points })
    }

    /// Returns the campus pairs that had connections.
    pub fn pairs(&self, now: Instant) -> Vec<PairSnapshot> {
        let flows = self.all();
        let pairs = self.pairs.all();
        pairs
            .iter()
            .map(|pair| {
                let of_pair = || flows.iter().filter(|flow| Arc::ptr_eq(&flow.pair, pair));
                let legs: Vec<_> = of_pair().map(|flow| flow.figures()).collect();
                let mut snapshot = pair.snapshot(now);
                fill(&mut snapshot.client_leg, legs.iter().map(|legs| legs.0));
                fill(&mut snapshot.upstream_leg, legs.iter().map(|legs| legs.1));
                snapshot
            })
            .collect()
    }

    /// Ends a second of all legs; to be called about once a second. `facts` gives what is known of a leg
    /// beside what its sockets show.
    pub fn end_leg_second(&self, now: Instant, facts: impl FnMut(&str) -> LegSecondFacts) {
        let time = self.epoch + self.uptime(now);
        self.legs.end_second(now, time, facts);
    }

    /// Returns the legs that had connections.
    pub fn leg_states(&self, now: Instant) -> Vec<LegState> {
        self.legs.states(now)
    }

    /// Returns a leg's last minutes or its last day, after `since` in seconds since the Unix epoch; none if
    /// it had no connection yet.
    pub fn leg_history(&self, leg: &str, step: HistoryStep, since: f64) -> Option<LegHistory> {
        self.legs.history(leg, step, since)
    }

    /// Returns the bytes a second that arrived over a leg in the two seconds in which it was most, of the last sixty in
    /// which its link was up; none if nothing did.
    pub fn most_delivered(&self, leg: &str) -> Option<u64> {
        self.legs.most_delivered(leg)
    }

    fn all(&self) -> Vec<Arc<Flow>> {
        (0..self.shards.len())
            .flat_map(|shard| {
                let shard = self.shard(shard);
                shard.slots.iter().flatten().cloned().collect::<Vec<_>>()
            })
            .collect()
    }

    fn find(&self, id: u64) -> Option<Arc<Flow>> {
        (0..self.shards.len()).find_map(|shard| {
            let shard = self.shard(shard);
            let mut flows = shard.slots.iter().flatten();
            flows.find(|flow| flow.id == id).cloned()
        })
    }

    fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[index])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while a lock is held leaves at worst a slot that is not used again.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fills in the median round-trip time and the share of retransmitted bytes of one side's legs.
fn fill(leg: &mut PairLeg, figures: impl Iterator<Item = Option<TcpFigures>>) {
    let figures: Vec<_> = figures.flatten().collect();
    let mut rtts: Vec<_> = figures
        .iter()
        .map(|tcp| tcp.rtt)
        .filter(|rtt| *rtt > 0.0)
        .collect();
    rtts.sort_by(f64::total_cmp);
    leg.rtt = rtts.get(rtts.len() / 2).copied();
    let sum = |of: fn(&TcpFigures) -> Option<u64>| figures.iter().filter_map(of).sum::<u64>();
    let sent = sum(|tcp| tcp.sent_bytes);
    let again = sum(|tcp| tcp.retransmitted_bytes);
    leg.sent_bytes = sent;
    leg.retransmitted = (sent > 0).then(|| again as f64 / sent as f64);
}

impl Shard {
    fn insert(&mut self, flow: Arc<Flow>) -> usize {
        if let Some(slot) = self.free.pop() {
            self.slots[slot] = Some(flow);
            return slot;
        }
        self.slots.push(Some(flow));
        self.slots.len() - 1
    }

    fn remove(&mut self, slot: usize) {
        if self.slots[slot].take().is_some() {
            self.free.push(slot);
        }
    }
}

/// Gives the error's name in errno(3), or its number where it has none.
pub fn errno_name(errno: i32) -> String {
    match Errno::from_raw(errno) {
        Errno::UnknownErrno => errno.to_string(),
        known => format!("{known:?}"),
    }
}

/// A connection's entry in the table, which it leaves when this is dropped.
#[derive(Debug)]
pub struct Registration {
    table: Arc<FlowTable>,
    shard: usize,
    slot: usize,
    flow: Arc<Flow>,
}

impl Registration {
    /// Returns the connection's id, unique for the life of the daemon.
    pub fn id(&self) -> u64 {
        self.flow.id
    }

    /// Returns what is known of it since its beginning.
    pub fn info(&self) -> &FlowInfo {
        &self.flow.info
    }

    /// Reports what a step that began at `woke` and ended at `done` came to in both directions.
    pub fn report(&self, woke: Instant, done: Instant, up: StepReport, down: StepReport) {
        self.flow.report(woke, done, up, down);
    }

    /// Returns whether its sockets have ever been sampled.
    pub fn was_sampled(&self) -> bool {
        self.flow.was_sampled()
    }

    /// Adds a sample out of turn: the last, while the sockets are still open.
    pub fn add_sample(&self, now: Instant, sample: ConnectionSample) {
        self.flow.add_sample(now, sample, &self.table.budget);
    }

    /// Returns the connection as it is.
    pub fn snapshot(&self, now: Instant) -> FlowSnapshot {
        self.flow.snapshot(now, self.table.began, self.table.epoch)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let (up, down) = self.flow.finish(Instant::now());
        self.table.counters.bytes_up.add(up);
        self.table.counters.bytes_down.add(down);
        let (client, upstream) = self.flow.figures();
        self.flow.pair.observe_retransmissions(client, upstream);
        self.flow.pair.flow_ended();
        self.table.shard(self.shard).remove(self.slot);
    }
}

/// The interval at which each connection is to be sampled.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
