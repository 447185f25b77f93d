//! The daemon as the admin API, the metrics and the dashboard see it.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use pepd_admin::metrics::open_descriptors;
use pepd_admin::wire::{
    API_VERSION, AutoBuffers, CampusSnapshot, Confinement, CountedReason, DaemonState, Deaths,
    FlowHistory, FlowSnapshot, GuardDrops, HistoryStep, LastReload, LegHistory, LimitUse,
    MoveCounts, PathPoint, Readiness, ReloadState, Status, Survival, Takeover,
};
use pepd_admin::{LegFacts, View, advise};
use pepd_config::{Buffer, Config, Via};
use pepd_relay::Observer;
use pepd_telemetry::{Counters, LegSecondFacts};

use crate::clock::unix_time;
use crate::daemon::choosing::ChosenFigures;
use crate::daemon::controls::{Finders, Names};
use crate::daemon::fitness::{Draining, Published};
use crate::daemon::health::{Alarms, Passing};
use crate::daemon::holding::HeldFigures;
use crate::daemon::links::LinkStates;
use crate::daemon::measuring::WorthFigures;
use crate::daemon::moving::MoveFigures;
use crate::daemon::peers::PeerStates;
use crate::daemon::resources::Descriptors;
use crate::daemon::windows;
use crate::keeper::board::Board;

/// The sources of what a status tells beside what the relay does.
#[derive(Debug)]
pub struct Sources {
    /// Everything counted since the start.
    pub counters: Arc<Counters>,
    /// The number of worker threads.
    pub workers: NonZeroUsize,
    /// The shares of the process's descriptors.
    pub descriptors: Descriptors,
    /// The records of all peers.
    pub peers: PeerStates,
    /// The kernel's names for the legs' controls.
    pub controls: Names,
    /// What knows the rates that are found.
    pub finders: Finders,
    /// What is chosen for the legs that leave that to the daemon.
    pub chosen: ChosenFigures,
    /// What stands in the way of connections.
    pub alarms: Arc<Alarms>,
    /// What the daemon may still do.
    pub confinement: Confinement,
    /// What its processes have died of.
    pub board: Arc<Board>,
    /// How this one has gone on where another had died.
    pub takeover: Option<Takeover>,
    /// The last judgement on the box.
    pub fitness: Published,
}

/// A view of the connections, the counters and the configuration in force.
#[derive(Debug)]
pub struct StatusView {
    observer: Observer,
    counters: Arc<Counters>,
    workers: usize,
    /// The most descriptors that the process may have.
    descriptors: u64,
    peers: PeerStates,
    controls: Names,
    finders: Finders,
    chosen: ChosenFigures,
    alarms: Arc<Alarms>,
    links: LinkStates,
    held: HeldFigures,
    worth: WorthFigures,
    moves: MoveFigures,
    confinement: Confinement,
    board: Arc<Board>,
    takeover: Option<Takeover>,
    fitness: Published,
    kernel: RwLock<pepd_net::Counts>,
    configured: RwLock<Configured>,
    draining: AtomicBool,
    reload: RwLock<Option<LastReload>>,
    /// What is the matter with the kernel state.
    trouble: RwLock<Option<String>>,
}

/// The parts of the configuration that a status names.
#[derive(Debug)]
struct Configured {
    node: String,
    drain: Duration,
    pending: u64,
    campuses: Vec<CampusSnapshot>,
    legs: Vec<LegFacts>,
    /// The legs with `buffer = "auto"`.
    automatic: Vec<String>,
}

impl StatusView {
    /// Makes a view of the relay that `observer` sees, of the links under its legs, of what is held
    /// for them, of what splitting is worth, and of what has moved.
    pub fn new(
        config: &Config,
        observer: Observer,
        links: LinkStates,
        held: HeldFigures,
        (worth, moves): (WorthFigures, MoveFigures),
        sources: Sources,
    ) -> Self {
        let Sources {
            counters,
            workers,
            descriptors,
            peers,
            controls,
            finders,
            chosen,
            alarms,
            confinement,
            board,
            takeover,
            fitness,
        } = sources;
        Self {
            observer,
            counters,
            workers: workers.get(),
            descriptors: descriptors.limit,
            peers,
            controls,
            finders,
            chosen,
            alarms,
            links,
            held,
            worth,
            moves,
            confinement,
            board,
            takeover,
            fitness,
            kernel: RwLock::default(),
            configured: RwLock::new(Configured::from(config)),
            draining: AtomicBool::new(false),
            reload: RwLock::default(),
            trouble: RwLock::default(),
        }
    }

    /// Takes over a configuration that is in force from now on.
    pub fn set_config(&self, config: &Config) {
        let mut configured = self
            .configured
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *configured = Configured::from(config);
    }

    /// Takes over what the kernel has counted by now.
    pub fn set_kernel_counts(&self, counts: pepd_net::Counts) {
        *self.kernel.write().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    fn drain(&self) -> Duration {
        let configured = self.configured.read();
        configured.unwrap_or_else(PoisonError::into_inner).drain
    }

    /// Has the status say from now on that the daemon drains.
    pub fn set_draining(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Notes that connections go to this neighbor, by its place, while the daemon drains.
    pub fn set_evacuation(&self, neighbor: usize) {
        self.board.set_evacuation(neighbor);
    }

    /// Has the status tell what has become of the last reload, as of now, and why if it was refused.
    pub fn set_reload(&self, state: ReloadState, reason: Option<&str>) {
        let last = LastReload {
            state,
            since: unix_time(),
            reason: reason.map(str::to_owned),
        };
        *self.reload.write().unwrap_or_else(PoisonError::into_inner) = Some(last);
    }

    /// Has the status tell what is the matter with the kernel state; none if nothing is.
    pub fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.write().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Gives the SYNs that the kernel routed, and what the guards of the tunnels have dropped.
    fn kernel(&self) -> (Vec<CountedReason>, Vec<GuardDrops>) {
        let kernel = self.kernel.read().unwrap_or_else(PoisonError::into_inner);
        let routed = kernel.unsplit.iter().map(|unsplit| CountedReason {
            name: unsplit.counter.to_owned(),
            count: unsplit.syns,
            meaning: unsplit.meaning.to_owned(),
        });
        let guards = kernel.guards.iter().map(|guard| GuardDrops {
            peer: guard.peer.clone(),
            packets: guard.packets,
            bytes: guard.bytes,
            unreachable: guard.unreachable,
        });
        (routed.collect(), guards.collect())
    }

    /// Gives what has moved to other boxes, where there are any.
    fn moved(&self) -> Option<MoveCounts> {
        let mut moves = self.moves.get();
        let kernel = self.kernel.read().unwrap_or_else(PoisonError::into_inner);
        moves.sent_on = kernel.sent_on;
        Some(moves).filter(|moves| !moves.neighbors.is_empty())
    }

    /// Gives all live connections, with the configuration's names for the legs' controls.
    fn named_flows(&self, now: Instant) -> Vec<FlowSnapshot> {
        let mut flows = self.observer.flows().flows(now);
        for flow in &mut flows {
            self.controls.translate(flow);
        }
        flows
    }

    fn survival(&self) -> Survival {
        let deaths = self.board.deaths().map(|(cause, count)| Deaths {
            cause: cause.to_owned(),
            count,
        });
        Survival {
            deaths: deaths.collect(),
            keeper: std::os::unix::process::parent_id(),
            layout: Board::layout(),
            last: self.takeover.clone(),
        }
    }

    fn state(&self) -> DaemonState {
        if self.draining.load(Relaxed) {
            return DaemonState::Draining;
        }
        let pressure = self.observer.admission().pressure(Instant::now());
        match self.alarms.passing() {
            Passing::Blocked => DaemonState::Blocked,
            _ if pressure.full || pressure.memory || pressure.exhausted => DaemonState::Full,
            _ if pressure.flooded => DaemonState::Flooded,
            Passing::OnTrial => DaemonState::Trial,
            Passing::Through => DaemonState::Splitting,
        }
    }

    fn limits(&self, configured: &Configured) -> Vec<LimitUse> {
        let admission = self.observer.admission();
        let (pipes, most_pipes) = self.observer.pipes();
        let limit = |name: &str, used: u64, limit: u64| LimitUse {
            name: name.to_owned(),
            used,
            limit,
        };
        let mut limits = vec![
            limit(
                "connections",
                admission.live().into(),
                admission.limits().connections.into(),
            ),
            limit("pending", self.counters.pending.get(), configured.pending),
            limit("pipes", pipes as u64, most_pipes as u64),
        ];
        if let Some(memory) = admission.limits().memory {
            limits.push(limit("memory", admission.memory_counted(), memory.0));
        }
        // Where the kernel does not tell, nothing is reported.
        if let Some(open) = open_descriptors() {
            limits.push(limit("descriptors", open, self.descriptors));
        }
        limits
    }
}

impl View for StatusView {
    fn status(&self) -> Status {
        let now = Instant::now();
        let table = self.observer.flows();
        let configured = self
            .configured
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let pairs = table.pairs(now);
        let (routed, guards) = self.kernel();
        let flows = self.named_flows(now);
        let legs = table.leg_states(now);
        let advice = advise(&pairs, &flows, &configured.legs, &legs, &self.links.away());
        let automatic = configured.automatic.iter();
        Status {
            api: API_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: configured.node.clone(),
            state: self.state(),
            started: table.epoch(),
            uptime: table.uptime(now),
            workers: self.workers,
            ready: Some(self.readiness()),
            reload: read(&self.reload),
            trouble: read(&self.trouble),
            confinement: Some(self.confinement.clone()),
            survival: Some(self.survival()),
            limits: self.limits(&configured),
            counters: CountedReason::list(&self.counters),
            failures: table.failures(),
            campuses: configured.campuses.clone(),
            pairs,
            peers: self.peers.get(),
            routed,
            guards,
            links: self.links.seen_by(&self.observer),
            legs,
            rates: self.finders.rates(),
            chosen: self.chosen.get(),
            buffers: automatic.map(|leg| AutoBuffers::sum(leg, &flows)).collect(),
            windows: windows::shown(&self.observer),
            held: self.held.get(),
            worth: self.worth.get(),
            moves: self.moved(),
            alarms: self.alarms.list(),
            advice,
        }
    }

    fn readiness(&self) -> Readiness {
        let live = self.observer.admission().live();
        // Those that are being given may all stay.
        let left = live.max(self.moves.under_way());
        let evacuation = || self.moves.name(self.board.evacuation()?);
        let drains = || Draining {
            left,
            // The process before this one may have had a part of it.
            time: self.drain().saturating_sub(self.board.asked_to_end_for()),
            to: evacuation().or_else(|| self.moves.has_given_to().filter(|_| left == 0)),
        };
        let draining = self.draining.load(Relaxed).then(drains);
        self.fitness.get(draining, Instant::now())
    }

    fn flows(&self) -> Vec<FlowSnapshot> {
        let mut flows = self.named_flows(Instant::now());
        self.links.report_on(&mut flows);
        flows
    }

    fn flow(&self, id: u64) -> Option<FlowSnapshot> {
        let mut flow = self.observer.flows().flow(id, Instant::now())?;
        self.controls.translate(&mut flow);
        self.links.report_on(std::slice::from_mut(&mut flow));
        Some(flow)
    }

    fn history(&self, id: u64) -> Option<FlowHistory> {
        self.observer.flows().history(id)
    }

    fn leg_history(&self, leg: &str, step: HistoryStep, since: f64) -> Option<LegHistory> {
        self.observer.flows().leg_history(leg, step, since)
    }

    fn end_second(&self) {
        let configured = self
            .configured
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let facts = |leg: &str| {
            let path = self.finders.end_second(leg);
            LegSecondFacts {
                capacity: configured.capacity(leg, path),
                path,
                least_rtt: self.finders.least_rtt(leg),
                was_gone: self.links.was_gone(leg),
            }
        };
        self.observer.flows().end_leg_second(Instant::now(), facts);
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Configured {
    /// Returns what a leg is known to carry, in bits a second: what was found, or the rate of all its
    /// connections together.
    fn capacity(&self, leg: &str, path: Option<PathPoint>) -> Option<f64> {
        let given = || {
            let facts = self.legs.iter().find(|facts| facts.name == leg)?;
            // With the kernel's controls it is the most of one connection.
            let is_of_all = facts.congestion.as_deref() == Some("fixed-rate");
            #[allow(clippy::cast_precision_loss, reason = "rates are below 2^53")]
            facts.rate.filter(|_| is_of_all).map(|rate| rate as f64)
        };
        path.map(|path| path.capacity).or_else(given)
    }
}

fn read<T: Clone>(from: &RwLock<T>) -> T {
    from.read().unwrap_or_else(PoisonError::into_inner).clone()
}

impl From<&Config> for Configured {
    fn from(config: &Config) -> Self {
        let campuses = config.campuses.iter().map(|campus| CampusSnapshot {
            name: campus.name.clone(),
            prefixes: campus.prefixes.iter().map(ToString::to_string).collect(),
            via: match &campus.via {
                Via::Local => "local".to_owned(),
                Via::Routing => "routing".to_owned(),
                Via::Peer(peer) => config
                    .peers
                    .get(peer.0)
                    .map_or_else(String::new, |peer| peer.name.clone()),
            },
            leg: config.leg(campus.leg).name.clone(),
        });
        let automatic = config
            .legs
            .iter()
            .filter(|leg| leg.buffer == Some(Buffer::Auto));
        let legs = config.legs.iter().map(|leg| LegFacts {
            name: leg.name.clone(),
            congestion: leg.congestion.as_ref().map(|it| it.as_str().to_owned()),
            buffer: leg.buffer.and_then(Buffer::size).map(|bytes| bytes.0),
            automatic: leg.buffer == Some(Buffer::Auto),
            rate: leg.rate.map(|rate| rate.0),
        });
        Self {
            node: config.node.name.clone(),
            drain: config.node.drain,
            pending: config.limits.pending.into(),
            campuses: campuses.collect(),
            legs: legs.collect(),
            automatic: automatic.map(|leg| leg.name.clone()).collect(),
        }
    }
}
