//! The wiring: configuration, kernel state, relay, gate and signals.

use std::collections::HashSet;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_config::Config;
use pepd_net::{Gate, Installed, Plan};
use pepd_observe::api::Order;
use pepd_observe::{Counters, Throttle, View};
use pepd_relay::{Prepared, Pressure, Relay, Settings};

use crate::admin::{Admin, Page, Socket};
use crate::cli::File;
use crate::exit::{Failure, Result};
use crate::host::{self, Descriptors};
use crate::life::{Notifier, Request, Signals};
use crate::observatory::Observatory;
use crate::peers::Probes;
use crate::{source, translate};

/// How often the gate is renewed.
const TICK: Duration = Duration::from_secs(1);

/// How often the kernel state is looked at, beyond the table that each renewal needs.
const INSPECTION: Duration = Duration::from_secs(10);

/// How long the gate stays open by itself: a daemon that is paused or hung for so long has its
/// new connections routed.
const GATE_TTL: Duration = Duration::from_secs(5);

/// How long a pair of addresses whose answers take another way is routed: long enough to cost
/// little, and short enough that a path that has been mended is used.
const DETOUR_TTL: Duration = Duration::from_secs(600);

/// How long a worker may be silent before new connections are no longer given to it.
const SILENCE: Duration = Duration::from_millis(2500);

/// How often the end looks whether the last connection has finished.
const LOOK: Duration = Duration::from_millis(50);

/// How long the end waits for handshakes that were under way when the gate closed.
const LAST_HANDSHAKES: Duration = Duration::from_millis(500);

/// A running daemon.
pub struct Daemon {
    file: File,
    config: Config,
    descriptors: Descriptors,
    plan: Plan,
    installed: Installed,
    relay: Relay,
    door: Door,
    signals: Signals,
    notifier: Notifier,
    counters: Arc<Counters>,
    observatory: Arc<Observatory>,
    workers: NonZeroUsize,
    admin: Admin,
    probes: Probes,
}

impl Daemon {
    /// Brings everything up, or nothing.
    pub async fn start(
        file: File,
        config: Config,
        socket: Option<Socket>,
        page: Option<Page>,
    ) -> Result<Self> {
        let signals = Signals::new().map_err(|error| Failure::internal("signals", error))?;
        let notifier =
            Notifier::start().map_err(|error| Failure::internal("start a thread", error))?;
        let workers = host::workers(&config);
        // One per leg and family.
        let listeners = config.legs.len() * 2;
        let descriptors = host::share_descriptors(&config, workers.get(), listeners)?;
        let settings = settings(&config, descriptors);
        probe(&settings)?;
        let prepared = Prepared::new(settings, workers)?;
        let holder = host::holder(&config).await?;
        let plan = Plan::new(&translate::request(
            &config,
            prepared.addresses(),
            workers,
            holder,
        ));
        let installed = pepd_net::install(&plan).await?;
        for warning in installed.warnings() {
            tracing::warn!("{warning}");
        }
        let counters = Arc::new(Counters::default());
        let mut probes = Probes::default();
        probes.follow(&config);
        let up = (|| {
            let gate = Gate::open()?;
            let relay = Relay::start(prepared, descriptors.pipes, Arc::clone(&counters))
                .map_err(|error| Failure::internal("start the workers", error))?;
            let observatory = Arc::new(Observatory::new(
                &config,
                relay.observer(),
                Arc::clone(&counters),
                workers.get(),
                descriptors,
                probes.states(),
            ));
            let admin = Admin::start(socket, page, Arc::clone(&observatory) as Arc<dyn View>)?;
            Ok::<_, Failure>((relay, Door::new(gate), observatory, admin))
        })();
        let (relay, door, observatory, admin) = match up {
            Ok(up) => up,
            Err(failure) => {
                undo(installed).await;
                return Err(failure);
            }
        };
        tracing::info!(
            node = config.node.name,
            workers,
            connections = descriptors.connections,
            descriptors = descriptors.limit,
            "splitting"
        );
        Ok(Self {
            file,
            config,
            descriptors,
            plan,
            installed,
            relay,
            door,
            signals,
            notifier,
            counters,
            observatory,
            workers,
            admin,
            probes,
        })
    }

    /// Runs until a signal ends it, and removes all kernel state.
    pub async fn run(mut self) -> Result {
        let mut tick = interval(TICK);
        let mut inspection = interval(INSPECTION);
        // The first renewal opens the gate, and only then is pepd ready.
        tick.tick().await;
        inspection.tick().await;
        self.tend().await;
        self.notifier.ready();
        loop {
            tokio::select! {
                _ = tick.tick() => self.tend().await,
                () = self.relay.admission().changed() => self.tend().await,
                _ = inspection.tick() => {
                    self.mend().await;
                    self.look_at_guards().await;
                }
                () = self.installed.routes_changed() => if let Err(error) = self.installed.follow().await {
                    complain(&error);
                },
                request = self.signals.next() => match request {
                    Request::Reload => _ = self.reload().await,
                    Request::End => break,
                },
                order = self.admin.order() => match order {
                    // Who gave an order may have gone since.
                    Order::Reload(answer) => _ = answer.send(self.reload().await),
                    Order::Drain(answer) => {
                        _ = answer.send(());
                        break;
                    }
                },
            }
        }
        self.end().await
    }

    /// Renews the gate if all is well, and tells systemd.
    async fn tend(&mut self) {
        if !self.relay.responsive(SILENCE) {
            report_silence();
            return;
        }
        let Pressure { full, sources } = self.relay.admission().pressure();
        let for_everyone = !full && sources.is_empty();
        if !for_everyone {
            self.relay.gate().shut();
        }
        let asked = Instant::now();
        match self.door.set(!full, &sources) {
            Ok(()) if for_everyone => self.relay.gate().renewed(asked, GATE_TTL),
            Ok(()) => {}
            Err(error) => {
                self.relay.gate().shut();
                complain(&error);
                self.mend().await;
            }
        }
        for (source, destination) in self.relay.admission().take_detours() {
            self.door.detour(source, destination);
        }
        self.notifier.alive(self.standing());
    }

    /// How it stands, in a line.
    fn standing(&self) -> String {
        match self.probes.states().silent() {
            Some(peers) => format!("{}; silent peers: {peers}", self.counters),
            None => self.counters.to_string(),
        }
    }

    /// Installs the kernel state again where it is gone. `nft flush ruleset`, with which a
    /// reload of the operator's own firewall often begins, takes pepd's table along, and
    /// a restart of systemd-networkd takes the rules; then even the packets of live
    /// connections no longer reach their sockets.
    async fn mend(&mut self) {
        match self.installed.verify().await {
            Ok(()) => return,
            Err(error @ pepd_net::Error::Drift { .. }) => tracing::warn!("{error}"),
            Err(error) => return complain(&error),
        }
        match self.installed.replace(&self.plan).await {
            Ok(()) => {
                tracing::warn!("somebody removed pepd's kernel state; it is there again");
                self.door.forget();
                let Pressure { full, sources } = self.relay.admission().pressure();
                if let Err(error) = self.door.set(!full, &sources) {
                    complain(&error);
                }
            }
            Err(error) => complain(&error),
        }
    }

    /// Reads the configuration again; the error says why not.
    /// Reads what the tunnels' guards have dropped, for whoever asks.
    async fn look_at_guards(&self) {
        if self.config.peers.is_empty() {
            return self.observatory.guarded(Vec::new());
        }
        match pepd_net::guards().await {
            Ok(guards) => self.observatory.guarded(guards),
            Err(error) => tracing::debug!(%error, "read the guards' counters"),
        }
    }

    async fn reload(&mut self) -> std::result::Result<(), String> {
        self.notifier.reloading();
        let result = self.try_reload().await.map_err(|why| why.to_string());
        match &result {
            Ok(()) => tracing::info!("reloaded"),
            Err(message) => tracing::error!("reload refused, nothing has changed:\n{message}"),
        }
        self.tend().await;
        self.notifier.ready();
        result
    }

    async fn try_reload(&mut self) -> std::result::Result<(), Failure> {
        let config = source::read_again(&self.file)?;
        if config.admin != self.config.admin {
            tracing::warn!("[admin] takes effect at the next start");
        }
        if config.node.workers != self.config.node.workers {
            tracing::warn!("[node] workers takes effect at the next start");
        }
        let settings = settings(&config, self.descriptors);
        probe(&settings)?;
        let prepared = self.relay.prepare(settings)?;
        let holder = host::holder(&config).await?;
        let plan = Plan::new(&translate::request(
            &config,
            prepared.addresses(),
            self.workers,
            holder,
        ));
        self.installed.replace(&plan).await?;
        self.relay.reload(prepared);
        self.observatory.reloaded(&config);
        self.probes.follow(&config);
        self.config = config;
        self.plan = plan;
        Ok(())
    }

    /// Drains: new connections are routed, those that there are may finish.
    async fn end(mut self) -> Result {
        let drain = self.config.node.drain;
        self.notifier.stopping(drain);
        self.door.close();
        self.observatory.draining();
        let live = self.relay.admission().live();
        tracing::info!(live, ?drain, "ending: new connections are routed");
        let deadline = Instant::now() + drain;
        let mut tick = interval(TICK);
        let mut look = interval(LOOK);
        let handshakes = Instant::now() + LAST_HANDSHAKES.min(drain);
        loop {
            let now = Instant::now();
            let live = self.relay.admission().live();
            if now >= deadline || (live == 0 && now >= handshakes) {
                break;
            }
            tokio::select! {
                _ = tick.tick() => self.notifier.alive(self.standing()),
                _ = look.tick() => {}
                request = self.signals.next() => if request == Request::End { break },
                order = self.admin.order() => match order {
                    Order::Reload(answer) => {
                        _ = answer.send(Err("pepd: the daemon is draining".to_owned()));
                    }
                    Order::Drain(answer) => _ = answer.send(()),
                },
            }
        }
        let cut = self.relay.admission().live();
        self.relay.stop();
        let removed = self.installed.remove().await;
        tracing::info!(cut, "ended: {}", self.counters);
        Ok(removed?)
    }
}

/// Ticks that do not pile up while the daemon was paused.
fn interval(period: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    interval
}

/// The relay's settings, with no more connections than there are descriptors for.
fn settings(config: &Config, descriptors: Descriptors) -> Settings {
    let mut settings = translate::settings(config);
    let wanted = settings.limits.connections;
    if wanted > descriptors.connections {
        settings.limits.connections = descriptors.connections;
        tracing::warn!(
            wanted,
            possible = descriptors.connections,
            "[limits] connections needs more descriptors than the {} there are; raise the limit \
             of open files (LimitNOFILE= in the unit) to {} or more",
            descriptors.limit,
            5 * u64::from(wanted) / 2
        );
    }
    settings
}

fn probe(settings: &Settings) -> Result {
    for difference in pepd_relay::probe(&settings.legs)? {
        tracing::warn!(
            leg = difference.leg,
            option = difference.option,
            asked = difference.asked,
            given = difference.given,
            "the kernel gave something else than the configuration asks for"
        );
    }
    Ok(())
}

async fn undo(installed: Installed) {
    if let Err(error) = installed.remove().await {
        tracing::error!(%error, "remove the kernel state; `pepd down` tries again");
    }
}

/// The gate, with what it was last told.
struct Door {
    gate: Gate,
    open: bool,
    shut_out: HashSet<IpAddr>,
}

impl Door {
    fn new(gate: Gate) -> Self {
        Self {
            gate,
            open: false,
            shut_out: HashSet::new(),
        }
    }

    /// Opens or closes the gate for everyone, and for single sources.
    fn set(&mut self, open: bool, full: &[IpAddr]) -> std::result::Result<(), pepd_net::Error> {
        if open {
            self.gate.renew(GATE_TTL)?;
        } else {
            self.gate.close()?;
        }
        if self.open != open {
            report_gate(open);
        }
        self.open = open;
        for source in full {
            self.gate.shut_out(*source, GATE_TTL)?;
            if self.shut_out.insert(*source) {
                report_full_source(*source);
            }
        }
        let gone: Vec<_> = self
            .shut_out
            .iter()
            .filter(|ip| !full.contains(ip))
            .copied()
            .collect();
        for source in gone {
            self.gate.let_in(source)?;
            self.shut_out.remove(&source);
        }
        Ok(())
    }

    /// Routes what goes from `source` to `destination`, for a while.
    fn detour(&self, source: IpAddr, destination: IpAddr) {
        report_detour(source, destination);
        if let Err(error) = self.gate.detour(source, destination, DETOUR_TTL) {
            complain(&error);
        }
    }

    /// Closes the gate for good.
    fn close(&mut self) {
        if let Err(error) = self.gate.close() {
            complain(&error);
        }
    }

    /// The kernel's table is new and empty.
    fn forget(&mut self) {
        self.open = false;
        self.shut_out.clear();
    }
}

/// Every connection may open or close the gate where `[limits] connections` is small.
fn report_gate(open: bool) {
    static OPENED: Throttle = Throttle::new(Duration::from_secs(10));
    static CLOSED: Throttle = Throttle::new(Duration::from_secs(10));
    let throttle = if open { &OPENED } else { &CLOSED };
    match throttle.admit(Instant::now()) {
        Some(_) if open => tracing::info!("new connections are split"),
        Some(held_back) => {
            tracing::warn!(
                held_back,
                "a limit is reached: new connections are routed unsplit"
            );
        }
        None => {}
    }
}

fn report_silence() {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::error!(
            held_back,
            "a worker does not respond: new connections are routed unsplit"
        );
    }
}

fn report_full_source(source: IpAddr) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::warn!(
            %source, held_back,
            "connections_per_source is reached: more from there are routed unsplit"
        );
    }
}

fn report_detour(source: IpAddr, destination: IpAddr) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::warn!(
            %source, %destination, held_back, time = ?DETOUR_TTL,
            "what the destination answers does not come back through this box: connections are \
             routed unsplit for a time; see to it that both ways lead through it"
        );
    }
}

fn complain(error: &pepd_net::Error) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::error!(%error, held_back, "set the gate; without it connections are unsplit");
    }
}
