//! The relay as its owner has it: prepared, started, reloaded, observed and stopped.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption};
use pepd_packet::QueueNumber;
use pepd_sys::nfqueue::{Queue, Room};
use pepd_telemetry::{Counters, FlowTable, UnsplitReason};

use crate::connection::access_log::AccessLog;
use crate::fast_open;
use crate::first_window::{LearnedWindow, Learner};
use crate::gate_history::GateWatch;
use crate::handshake::evicted::let_go;
use crate::handshake::verdict::SynVerdict;
use crate::left_legs::LeftLegs;
use crate::limits::Admission;
use crate::listener::{self, ListenError, Listener};
use crate::moving::Mover;
use crate::outage::{Injector, Links};
use crate::pipe_pool::PipePool;
use crate::remains::{Remains, Share};
use crate::settings::{EndToEnd, Leg, ListenerAddress, Settings};
use crate::shared::{Handshakes, Shared};
use crate::slots::Slots;
use crate::worker::{LinkControl, Worker};

/// How long upstream legs of the process before wait for their clients: whose SYN had been passed on ends
/// its handshake in a round trip, and whose had not sends it again after a second. But that one may have been
/// routed meanwhile, and its destination has this leg in the way.
const LEFT_LEGS_TIME: Duration = Duration::from_secs(3);

/// Settings whose listeners are open: nothing can fail any more when they come into force.
#[derive(Debug)]
pub struct Prepared {
    settings: Settings,
    generation: u8,
    /// A set for each worker, or `None` where those of the running generation serve on.
    listeners: Option<Vec<Vec<Listener>>>,
    addresses: Vec<ListenerAddress>,
    key: fast_open::Key,
    /// One for each worker, or `None` where those of the running generation serve on or none
    /// are needed.
    queues: Option<Vec<Queue>>,
    /// What is left of a relay before this one.
    remains: Option<Remains>,
}

impl Prepared {
    /// Opens the listeners of a first generation.
    pub fn new(settings: Settings, workers: NonZeroUsize) -> Result<Self, ListenError> {
        Self::first(settings, workers, None)
    }

    /// Takes over what a relay has left whose process has died: its listeners, if `settings` are its
    /// own, and its connections, which go on when this is started.
    pub fn taking_over(
        remains: Remains,
        settings: Settings,
        workers: NonZeroUsize,
    ) -> Result<Self, ListenError> {
        Self::first(settings, workers, Some(remains))
    }

    fn first(
        settings: Settings,
        workers: NonZeroUsize,
        remains: Option<Remains>,
    ) -> Result<Self, ListenError> {
        let queues = match settings.end_to_end {
            Some(held) => Some(open_queues(held, workers)?),
            None => None,
        };
        let (generation, key) = match remains.as_ref().and_then(|remains| remains.former) {
            Some(former) => (former.generation, former.key),
            None => (0, fast_open::Key::random().map_err(ListenError::NoKey)?),
        };
        Self::open(settings, workers, generation, key, queues, remains)
    }

    fn open(
        settings: Settings,
        workers: NonZeroUsize,
        generation: u8,
        key: fast_open::Key,
        queues: Option<Vec<Queue>>,
        mut remains: Option<Remains>,
    ) -> Result<Self, ListenError> {
        let addresses = listener::addresses(&settings, generation)?;
        let listeners = listener::open_all(&settings, workers, generation, &key, &mut remains)?;
        if let Some(remains) = &mut remains {
            remains.close_listeners();
        }
        let listeners = Some(listeners);
        Ok(Self {
            settings,
            generation,
            listeners,
            addresses,
            key,
            queues,
            remains,
        })
    }

    /// Returns where the capture has to send the SYNs of each leg's campuses, in the order of
    /// [`Settings::legs`].
    pub fn addresses(&self) -> &[ListenerAddress] {
        &self.addresses
    }
}

/// A running relay. Where it is dropped without being stopped, its connections go on for as long as the
/// process lives.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    generation: u8,
    /// The first of the queues that the workers read, if they read any.
    reading: Option<QueueNumber>,
    /// The number of handshakes that its listeners have room for.
    listener_room: usize,
}

impl Relay {
    /// Starts a worker for each set of listeners. `pipes` is how many pipes, of two descriptors
    /// each, all of them together may have; by `injector` legs are restarted when their link is back, and
    /// the congestion control called `resume` opens their windows; in `slots` is noted what whoever goes
    /// on after a crash needs.
    pub fn start(
        prepared: Prepared,
        pipes: usize,
        counters: Arc<Counters>,
        (injector, resume): (Option<Arc<Injector>>, Option<String>),
        slots: Arc<Slots>,
    ) -> io::Result<Self> {
        let Prepared {
            settings,
            generation,
            listeners,
            key,
            queues,
            mut remains,
            ..
        } = prepared;
        let pending = settings.end_to_end.map_or(0, |held| held.pending);
        let reading = queues.is_some().then_some(settings.end_to_end);
        let listeners = listeners.unwrap_or_default();
        let source_prefix = settings.limits.source_prefix;
        let now = Instant::now();
        let epoch = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let flows = FlowTable::new(
            Arc::clone(&counters),
            listeners.len(),
            now,
            epoch.as_secs_f64(),
        );
        let shared = Arc::new(Shared {
            handshakes: Handshakes::new(pending, source_prefix, now),
            flows: Arc::new(flows),
            access_log: AccessLog::new(settings.ended_lines, now),
            admission: Arc::new(Admission::new(settings.limits)),
            gate: GateWatch::default(),
            settings: ArcSwap::from_pointee(settings),
            coming_marks: ArcSwapOption::empty(),
            counters,
            injector,
            resume,
            first_windows: Learner::default(),
            links: Arc::new(Links::new(remains.as_mut().map(Remains::take_gone))),
            left_legs: LeftLegs::new(
                remains.as_mut().map(Remains::take_legs).unwrap_or_default(),
                now + LEFT_LEGS_TIME,
            ),
            slots,
            workers: listeners.len().max(1),
            fast_open_key: key,
            unnamed_leg: Leg::kernel_defaults("(none)"),
        });
        let listener_room = listener::room(&listeners);
        let handshakes = &shared.handshakes;
        handshakes.set_capacity(pending, listener_room, source_prefix);
        shared.slots.note_relay(listeners.len(), generation, &key);
        let workers = start_workers(&shared, listeners, pipes, remains)?;
        for (worker, queue) in workers.iter().zip(queues.into_iter().flatten()) {
            worker.read_queue(queue);
        }
        Ok(Self {
            shared,
            workers,
            generation,
            reading: reading.flatten().map(|held| held.first_queue),
            listener_room,
        })
    }

    /// Opens what other settings need, without touching what runs. If they hold SYNs, those may come from now on.
    pub fn prepare(&self, settings: Settings) -> Result<Prepared, ListenError> {
        let workers = NonZeroUsize::new(self.workers.len()).unwrap_or(NonZeroUsize::MIN);
        let queues = match settings.end_to_end {
            Some(held) if self.reading != Some(held.first_queue) => {
                Some(open_queues(held, workers)?)
            }
            _ => None,
        };
        let marks = settings.end_to_end.map(|held| Arc::new(held.marks));
        self.shared.coming_marks.store(marks);
        let running = self.shared.settings.load();
        if running.legs == settings.legs && running.port == settings.port {
            let addresses = listener::addresses(&settings, self.generation)?;
            return Ok(Prepared {
                settings,
                generation: self.generation,
                listeners: None,
                addresses,
                key: self.shared.fast_open_key,
                queues,
                remains: None,
            });
        }
        let (generation, key) = (self.generation.wrapping_add(1), self.shared.fast_open_key);
        Prepared::open(settings, workers, generation, key, queues, None)
    }

    /// Brings other settings into force for new connections, and as many `pipes` for all. Existing
    /// connections keep their settings.
    pub fn reload(&mut self, prepared: Prepared, pipes: usize) {
        let Prepared {
            settings,
            generation,
            listeners,
            queues,
            ..
        } = prepared;
        self.shared.admission.set_limits(settings.limits);
        for worker in &self.workers {
            worker.pool.set_most(pipes / self.workers.len());
        }
        self.shared.access_log.set_budget(settings.ended_lines);
        if settings.end_to_end.is_none() {
            // Their clients' next SYNs are answered at once; the dials must not stand in the
            // way of the upstream legs that these open.
            let evicted = self
                .shared
                .handshakes
                .clear(SynVerdict::Superseded, Instant::now());
            drop(evicted.upstreams);
            for ack in evicted.acks {
                ack.supersede();
            }
            for (packet, verdict) in evicted.packets {
                self.shared.decide(packet, verdict);
            }
        }
        if let Some(sets) = &listeners {
            self.listener_room = listener::room(sets);
        }
        if let Some(held) = settings.end_to_end {
            let source_prefix = settings.limits.source_prefix;
            let handshakes = &self.shared.handshakes;
            handshakes.set_capacity(held.pending, self.listener_room, source_prefix);
            if queues.is_some() {
                self.reading = Some(held.first_queue);
            }
        }
        self.shared.settings.store(Arc::new(settings));
        self.shared.coming_marks.store(None);
        self.generation = generation;
        self.shared.slots.note_generation(generation);
        for (worker, set) in self.workers.iter().zip(listeners.into_iter().flatten()) {
            worker.listen(set);
        }
        for (worker, queue) in self.workers.iter().zip(queues.into_iter().flatten()) {
            worker.read_queue(queue);
        }
    }

    /// Returns the number of SYNs that are held, and of upstream legs that wait for their clients.
    pub fn pending(&self) -> usize {
        self.shared.handshakes.len()
    }

    /// Returns the connections against their limits.
    pub fn admission(&self) -> &Admission {
        &self.shared.admission
    }

    /// Returns the watch on the capture's gate, to be told whatever the gate was last told.
    pub fn gate(&self) -> &GateWatch {
        &self.shared.gate
    }

    /// Returns what moves its connections to another box and back, for any thread.
    pub fn mover(&self) -> Mover {
        let hands = self.workers.iter().map(Worker::hand);
        Mover::new(Arc::clone(&self.shared), hands.collect())
    }

    /// Returns what tells it about links, for any thread.
    pub fn links(&self) -> LinkControl {
        LinkControl::new(Arc::clone(&self.shared), &self.workers)
    }

    /// Returns an observer of it for any thread.
    pub fn observer(&self) -> Observer {
        let pools = self.workers.iter().map(|worker| Arc::clone(&worker.pool));
        Observer {
            shared: Arc::clone(&self.shared),
            pools: pools.collect(),
        }
    }

    /// Returns whether every worker has shown a sign of life within `time`.
    pub fn responsive(&self, time: Duration) -> bool {
        self.workers.iter().all(|worker| worker.responsive(time))
    }

    /// Routes the SYNs that are held, and gives up the upstream legs that wait for their clients:
    /// split connections do not come through this host. To be called within a runtime, which routes
    /// those whose dials have yet to end.
    pub fn let_go(&self) {
        let blocked = SynVerdict::Bypass(UnsplitReason::Blocked);
        let evicted = self.shared.handshakes.evict_all(blocked, Instant::now());
        let_go(&self.shared, evicted);
        self.shared.note_pending();
    }

    /// Ends all workers; connections that are not finished are reset on both legs.
    /// SYNs that are still held are routed.
    pub fn stop(self) {
        let ending = SynVerdict::Bypass(UnsplitReason::Ending);
        let evicted = self.shared.handshakes.clear(ending, Instant::now());
        // And with them the dials, whose sockets must not meet the answers to what is routed.
        self.workers.into_iter().for_each(Worker::stop);
        for (packet, verdict) in evicted.packets {
            self.shared.decide(packet, verdict);
        }
    }
}

/// Starts a worker for each set of listeners, with its share of what is left of a relay before.
fn start_workers(
    shared: &Arc<Shared>,
    sets: Vec<Vec<Listener>>,
    pipes: usize,
    mut remains: Option<Remains>,
) -> io::Result<Vec<Worker>> {
    if remains.is_some() {
        shared.handshakes.succeed(Instant::now());
    }
    let count = sets.len();
    let mut take_share = |index: usize| {
        let remains = remains.as_mut();
        remains.map_or_else(Share::default, |it| it.take_share(count - index))
    };
    let start = |(index, set)| {
        let pipes = pipes / count.max(1);
        Worker::start(index, Arc::clone(shared), set, pipes, take_share(index))
    };
    sets.into_iter().enumerate().map(start).collect()
}

/// The relay as those who ask about it see it, which may outlive it.
#[derive(Clone, Debug)]
pub struct Observer {
    shared: Arc<Shared>,
    pools: Vec<Arc<PipePool>>,
}

impl Observer {
    /// Returns the connections.
    pub fn flows(&self) -> &FlowTable {
        &self.shared.flows
    }

    /// Returns the connections against their limits.
    pub fn admission(&self) -> &Admission {
        &self.shared.admission
    }

    /// Returns how many new connections by this leg wait for its link.
    pub fn newcomers(&self, leg: &str) -> u64 {
        self.shared.links.newcomers(leg)
    }

    /// Returns what connections may begin with, as far as that is learned, by leg and network.
    pub fn windows(&self) -> Vec<LearnedWindow> {
        let settings = self.shared.settings.load();
        self.shared.first_windows.windows(&settings, Instant::now())
    }

    /// Pipes in use, and how many there may be.
    pub fn pipes(&self) -> (usize, usize) {
        self.pools
            .iter()
            .map(|pool| pool.usage())
            .fold((0, 0), |(used, most), pool| (used + pool.0, most + pool.1))
    }
}

/// Returns where the capture of a first generation has to send the SYNs of each leg's campuses, in
/// the order of [`Settings::legs`]; opens nothing.
pub fn listener_addresses(settings: &Settings) -> Result<Vec<ListenerAddress>, ListenError> {
    listener::addresses(settings, 0)
}

/// Opens one queue for each worker.
fn open_queues(held: EndToEnd, workers: NonZeroUsize) -> Result<Vec<Queue>, ListenError> {
    held.first_queue
        .and_following()
        .take(workers.get())
        .map(|number| {
            Queue::open(number, Room::SYNS).map_err(|source| match source.raw_os_error() {
                Some(libc::EBUSY) => ListenError::QueueInUse { number },
                _ => ListenError::NoQueue { number, source },
            })
        })
        .collect()
}
