//! The keeper of the gate: new connections are split only while it says, again and again, that all
//! is well.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_net::{ASYMMETRIC_ROUTES, FLOODED_DESTINATIONS, FULL_SOURCES, Gate, GateError};
use pepd_packet::Source;
use pepd_relay::{AsymmetricRoute, Pressure, Relay};
use pepd_telemetry::{Counters, Throttle};

use crate::daemon::asymmetric_pairs::{AsymmetricPairs, PairChanges};
use crate::daemon::fitness::{Fitness, Trouble, Vitals};
use crate::daemon::flooded_destinations::FloodedDestinations;
use crate::daemon::health::Health;
use crate::daemon::peers::Probes;
use crate::daemon::systemd::Notifier;
use crate::daemon::ticks;

/// The interval at which the gate is renewed.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(1);

/// The time for which the gate stays open by itself: a daemon that is paused or hung for so long
/// has its new connections routed.
const GATE_TTL: Duration = Duration::from_secs(5);

/// The time for which a pair of addresses whose answers take another route is not split: long
/// enough to cost little, and short enough that a path that has been mended is used.
const ASYMMETRIC_TTL: Duration = Duration::from_secs(600);

/// The time for which what leads to a destination that is flooded is not split. Then SYNs are held
/// again, until it shows that it still is.
const FLOODED_TTL: Duration = Duration::from_secs(10);

/// Changes of the limits that are acted upon between two intervals; the kernel hears of others at
/// the next. Clients can cause any number.
const HURRIED_RENEWALS: u32 = 64;

/// Pairs of addresses with an asymmetric route that are taken in an interval; more are found again.
const PAIRS_PER_INTERVAL: usize = 1024;

/// The times that clients are let go when the gate has been closed: SYNs that had passed it by then
/// have reached their listener by the second.
const LAST_TO_LET_GO: u32 = 2;

/// The time for which a worker may be silent before new connections are no longer given to it.
const WORKER_TIMEOUT: Duration = Duration::from_millis(2500);

/// The gate, with what it depends on (the relay) and what hears of it (systemd).
pub struct GateKeeper {
    /// The relay, whose workers must respond for the gate to stay open.
    pub relay: Relay,
    /// The line to systemd, which hears how the daemon is.
    pub notifier: Notifier,
    /// The probes of the peers, for the same line.
    pub probes: Probes,
    /// The watch over whether split connections come through.
    pub health: Health,
    /// The judgement on the box, for those who lead connections to it.
    pub fitness: Fitness,
    counters: Arc<Counters>,
    lease: GateLease,
    tick: tokio::time::Interval,
    /// Renewals since the last interval began that were for a change of the limits.
    hurried: u32,
    /// Pairs that may still be taken in this interval.
    pairs_left: usize,
    /// How often clients whose handshakes cannot be finished have been let go since the gate was
    /// closed because of that.
    let_go: u32,
    /// Whether a worker did not respond at the last renewal.
    is_unresponsive: bool,
}

impl GateKeeper {
    /// Takes the gate, which stays as it was found until its first renewal.
    pub fn new(
        gate: Gate,
        relay: Relay,
        notifier: Notifier,
        probes: Probes,
        health: Health,
        fitness: Fitness,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            relay,
            notifier,
            probes,
            health,
            fitness,
            counters,
            lease: GateLease::new(gate),
            tick: ticks::interval(RENEWAL_INTERVAL),
            hurried: 0,
            pairs_left: PAIRS_PER_INTERVAL,
            let_go: 0,
            is_unresponsive: false,
        }
    }

    /// Waits until the gate is to be renewed: its time has come, or a limit is reached or no longer
    /// reached.
    pub async fn renewal_due(&mut self) {
        tokio::select! {
            _ = self.tick.tick() => {
                self.hurried = 0;
                self.pairs_left = PAIRS_PER_INTERVAL;
            }
            () = self.relay.admission().changed(), if self.hurried < HURRIED_RENEWALS => {
                self.hurried += 1;
            }
        }
    }

    /// Renews the gate if all is well, and tells systemd.
    ///
    /// # Errors
    ///
    /// If the kernel does not take it: its table may be gone.
    pub fn renew(&mut self) -> Result<(), GateError> {
        if !self.relay.responsive(WORKER_TIMEOUT) {
            self.is_unresponsive = true;
            report_unresponsive_worker();
            self.look(false, None);
            return Ok(());
        }
        if std::mem::take(&mut self.is_unresponsive) {
            tracing::info!("the workers respond again");
        }
        self.health.tick(Instant::now());
        let set = self.set();
        let trouble = set
            .as_ref()
            .err()
            .map(|error| match error.is_of_no_table() {
                true => Trouble::Broken(error.to_string()),
                false => Trouble::Unseen(error.to_string()),
            });
        self.look(true, trouble);
        let mut found = self.relay.admission().take_asymmetric_routes();
        found.truncate(self.pairs_left);
        self.pairs_left -= found.len();
        self.lease.route_asymmetric(&found);
        let flooded = self.relay.admission().take_flooded();
        self.lease.route_flooded(flooded);
        self.notifier.alive(self.status_line());
        set
    }

    /// Opens the gate of a table that is new and empty.
    pub fn reopen(&mut self) {
        self.lease.reset();
        if let Err(error) = self.set() {
            report_error(&error);
        }
    }

    /// Closes the gate for good.
    pub fn close(&mut self) {
        self.relay.gate().shut();
        self.lease.close();
    }

    /// Renews the mark that held SYNs are read, although the gate is closed for good: those that
    /// repeat them are held as well. And tells systemd, and the keeper, if all is well.
    pub fn go_on_ending(&self) {
        if self.relay.responsive(WORKER_TIMEOUT) {
            self.lease.renew_readers();
            self.notifier.alive(self.status_line());
        } else {
            report_unresponsive_worker();
        }
    }

    /// Describes the daemon in a line, for systemd.
    pub fn status_line(&self) -> String {
        let mut line = self.counters.to_string();
        if let Some(peers) = self.probes.states().silent() {
            line = format!("{line}; silent peers: {peers}");
        }
        match self.health.status_line() {
            Some(alarm) => format!("ALARM: {alarm}; {line}"),
            None => line,
        }
    }

    /// Judges the box, given whether its workers respond, and why the gate could not be set.
    fn look(&mut self, workers: bool, gate: Option<Trouble>) {
        let vitals = Vitals {
            workers,
            admission: self.relay.admission(),
            blocked: self.health.blocked(),
            forwards: self.health.forwards(),
            gate,
        };
        self.fitness
            .look(vitals, &self.probes.states(), Instant::now());
    }

    /// Opens or closes the gate as the limits have it, and tells the relay.
    fn set(&mut self) -> Result<(), GateError> {
        let Pressure {
            full,
            memory,
            exhausted,
            flooded,
            sources,
        } = self.relay.admission().pressure(Instant::now());
        let reason = if full {
            Some(Closed::Connections)
        } else if memory {
            Some(Closed::Memory)
        } else if exhausted {
            Some(Closed::Descriptors)
        } else if flooded {
            Some(Closed::Flood)
        } else {
            (!self.health.allows()).then_some(Closed::Blocked)
        };
        let for_everyone = reason.is_none() && sources.is_empty();
        if !for_everyone {
            self.relay.gate().shut();
        }
        let asked = Instant::now();
        let set = self.lease.set(reason, &sources);
        if reason == Some(Closed::Blocked) {
            self.let_go();
        } else {
            self.let_go = 0;
        }
        if set.is_ok() {
            self.lease.renew_readers();
        }
        match &set {
            Ok(()) if for_everyone => self.relay.gate().renewed(asked, GATE_TTL),
            Ok(()) => {}
            Err(_) => self.relay.gate().shut(),
        }
        set
    }

    /// Lets go those whose handshakes cannot be finished, because split connections do not come
    /// through.
    fn let_go(&mut self) {
        self.relay.let_go();
        if self.let_go < LAST_TO_LET_GO {
            self.let_go += 1;
            if let Err(error) = self.lease.gate.forget_half_open() {
                report_error(&error);
            }
            self.health.end_half_open();
        }
    }
}

/// The reason why the gate is closed although the daemon is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closed {
    /// There are as many connections as there may be.
    Connections,
    /// They hold as much as they may together.
    Memory,
    /// There is no descriptor for another connection.
    Descriptors,
    /// More SYNs come than can be held, to many destinations.
    Flood,
    /// Split connections do not come through; the log has been told why.
    Blocked,
}

/// The lease on the gate: what the kernel was last told, which runs out by itself.
struct GateLease {
    gate: Gate,
    is_open: bool,
    /// The sources whose connections are routed.
    full_sources: HashSet<Source>,
    /// The pairs of addresses that are routed.
    pairs: AsymmetricPairs,
    /// The destinations that are routed.
    flooded: FloodedDestinations,
}

impl GateLease {
    fn new(gate: Gate) -> Self {
        Self {
            gate,
            is_open: false,
            full_sources: HashSet::new(),
            pairs: AsymmetricPairs::new(ASYMMETRIC_ROUTES, ASYMMETRIC_TTL),
            flooded: FloodedDestinations::new(FLOODED_DESTINATIONS, FLOODED_TTL),
        }
    }

    /// Opens or closes the gate for everyone, and for single sources.
    fn set(&mut self, closed: Option<Closed>, full: &[Source]) -> Result<(), GateError> {
        let open = closed.is_none();
        if open {
            self.gate.renew(GATE_TTL)?;
        } else {
            self.gate.close()?;
        }
        if self.is_open != open {
            report_gate(closed);
        }
        self.is_open = open;
        let full: HashSet<Source> = full.iter().copied().collect();
        // First: one of another prefix may begin with the same address.
        let gone: Vec<_> = self.full_sources.difference(&full).copied().collect();
        for source in gone {
            self.gate.let_in(source)?;
            self.full_sources.remove(&source);
        }
        // Where there are more than there is room for, those that are shut out stay.
        let room = FULL_SOURCES.saturating_sub(self.full_sources.len());
        let new: Vec<_> = full
            .difference(&self.full_sources)
            .take(room)
            .copied()
            .collect();
        for source in new {
            report_full_source(source);
            self.full_sources.insert(source);
        }
        let shut_out: Vec<_> = self.full_sources.iter().copied().collect();
        self.gate.shut_out(&shut_out, GATE_TTL)
    }

    /// Says that the workers read what is held.
    fn renew_readers(&self) {
        if let Err(error) = self.gate.attend(GATE_TTL) {
            report_error(&error);
        }
    }

    /// Routes what goes from these sources to these destinations, for a while.
    fn route_asymmetric(&mut self, found: &[AsymmetricRoute]) {
        let Some(first) = found.first() else {
            return;
        };
        report_asymmetric_route(first.source, first.destination);
        let pairs = found.iter().map(|route| (route.source, route.destination));
        let PairChanges { added, dropped } = self.pairs.learn(pairs, Instant::now());
        let told = self
            .gate
            .split_again(&dropped)
            .and_then(|()| self.gate.route_asymmetric(&added, ASYMMETRIC_TTL));
        if let Err(error) = told {
            report_error(&error);
        }
    }

    /// Routes what goes to these destinations, for a while.
    fn route_flooded(&mut self, found: Vec<IpAddr>) {
        let new = self.flooded.learn(found, Instant::now());
        let Some(first) = new.first() else {
            return;
        };
        report_flood(*first);
        if let Err(error) = self.gate.route_flooded(&new, FLOODED_TTL) {
            report_error(&error);
        }
    }

    /// Closes the gate for good.
    fn close(&mut self) {
        if let Err(error) = self.gate.close() {
            report_error(&error);
        }
    }

    /// Forgets what was told: the kernel's table is new and empty.
    fn reset(&mut self) {
        self.is_open = false;
        self.full_sources.clear();
        self.pairs.clear();
        self.flooded.clear();
    }
}

/// Logs that the gate has opened, or closed and why. Every connection may do so where
/// `[limits] connections` is small.
fn report_gate(closed: Option<Closed>) {
    static OPENED: Throttle = Throttle::new(Duration::from_secs(10));
    static FLOOD: Throttle = Throttle::new(Duration::from_secs(10));
    let now = Instant::now();
    match closed {
        None => {
            if OPENED.admit(now).is_some() {
                tracing::info!("new connections are split");
            }
        }
        Some(Closed::Connections) => report_limit("[limits] connections", now),
        Some(Closed::Memory) => report_limit("[limits] memory", now),
        Some(Closed::Descriptors) => report_limit("descriptors (LimitNOFILE)", now),
        Some(Closed::Flood) => {
            if let Some(held_back) = FLOOD.admit(now) {
                tracing::warn!(
                    held_back,
                    "a flood of SYNs to many destinations: new connections are routed unsplit \
                     for a second"
                );
            }
        }
        // Whoever found it out has told the log.
        Some(Closed::Blocked) => {}
    }
}

fn report_limit(which: &str, now: Instant) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(now) {
        tracing::warn!(
            held_back,
            "a limit is reached, {which}: new connections are routed unsplit"
        );
    }
}

fn report_unresponsive_worker() {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::error!(
            held_back,
            "a worker does not respond: new connections are routed unsplit"
        );
    }
}

fn report_full_source(source: Source) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::warn!(
            %source, held_back,
            "connections_per_source is reached: more from there are routed unsplit"
        );
    }
}

fn report_flood(destination: IpAddr) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::warn!(
            %destination, held_back, time = ?FLOODED_TTL,
            "a flood of SYNs: more lead there than can be held, and connections to there are \
             routed unsplit for a time"
        );
    }
}

fn report_asymmetric_route(source: IpAddr, destination: IpAddr) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::warn!(
            %source, %destination, held_back, time = ?ASYMMETRIC_TTL,
            "what the destination answers does not come back through this box: connections are \
             routed unsplit for a time; see to it that both ways lead through it"
        );
    }
}

/// Logs that the gate, or the kernel state that it stands in, is not as it should be.
pub fn report_error(error: &impl std::fmt::Display) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::error!(%error, held_back, "set the gate; without it connections are unsplit");
    }
}
