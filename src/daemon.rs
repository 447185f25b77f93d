//! The wiring: configuration, kernel state, relay, gate and signals.

use std::collections::HashSet;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_config::Config;
use pepd_net::{Gate, Installed, Plan};
use pepd_observe::{Counters, Throttle};
use pepd_relay::{Prepared, Relay, Settings};

use crate::exit::{Failure, Result};
use crate::host::{self, Descriptors};
use crate::life::{self, Request, Signals};
use crate::{source, translate};

/// How often the gate is renewed.
const TICK: Duration = Duration::from_secs(1);

/// How long the gate stays open by itself: a daemon that is paused or hung for so long has its
/// new connections routed.
const GATE_TTL: Duration = Duration::from_secs(5);

/// How long a worker may be silent before new connections are no longer given to it.
const SILENCE: Duration = Duration::from_millis(2500);

/// How long the end waits for handshakes that were under way when the gate closed.
const LAST_HANDSHAKES: Duration = Duration::from_millis(500);

/// A running daemon.
pub struct Daemon {
    path: PathBuf,
    config: Config,
    descriptors: Descriptors,
    installed: Installed,
    relay: Relay,
    door: Door,
    signals: Signals,
    counters: Arc<Counters>,
}

impl Daemon {
    /// Brings everything up, or nothing.
    pub async fn start(path: PathBuf, config: Config) -> Result<Self> {
        let signals = Signals::new().map_err(|error| Failure::internal("signals", error))?;
        let workers = config.node.workers.unwrap_or_else(one_per_core);
        // A listener per leg, family and worker.
        let listeners = config.legs.len() * 2 * workers.get();
        let descriptors = host::share_descriptors(config.limits.connections, listeners)?;
        let settings = settings(&config, descriptors);
        probe(&settings)?;
        let prepared = Prepared::new(settings, workers)?;
        let plan = Plan::new(&translate::request(&config, prepared.addresses()));
        let installed = pepd_net::install(&plan).await?;
        for warning in installed.warnings() {
            tracing::warn!("{warning}");
        }
        let counters = Arc::new(Counters::default());
        let up = (|| {
            let gate = Gate::open()?;
            let relay = Relay::start(prepared, descriptors.pipes, Arc::clone(&counters))
                .map_err(|error| Failure::internal("start the workers", error))?;
            Ok::<_, Failure>((relay, Door::new(gate)))
        })();
        let (relay, door) = match up {
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
            path,
            config,
            descriptors,
            installed,
            relay,
            door,
            signals,
            counters,
        })
    }

    /// Runs until a signal ends it, and removes all kernel state.
    pub async fn run(mut self) -> Result {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        // The first renewal opens the gate, and only then is pepd ready.
        tick.tick().await;
        self.tend();
        life::ready();
        loop {
            tokio::select! {
                _ = tick.tick() => self.tend(),
                () = self.relay.admission().changed() => self.tend(),
                request = self.signals.next() => match request {
                    Request::Reload => self.reload().await,
                    Request::End => break,
                },
            }
        }
        self.end().await
    }

    /// Renews the gate if all is well, and tells systemd.
    fn tend(&mut self) {
        if !self.relay.responsive(SILENCE) {
            tracing::error!("a worker does not respond: new connections are routed unsplit");
            return;
        }
        let pressure = self.relay.admission().pressure();
        self.door.set(!pressure.full, &pressure.sources);
        life::alive(&self.counters.to_string());
    }

    async fn reload(&mut self) {
        life::reloading();
        match self.try_reload().await {
            Ok(()) => tracing::info!("reloaded"),
            Err(message) => tracing::error!("reload refused, nothing has changed:\n{message}"),
        }
        self.tend();
        life::ready();
    }

    async fn try_reload(&mut self) -> std::result::Result<(), Failure> {
        let config = source::read(&self.path)?;
        if config.node.workers != self.config.node.workers {
            tracing::warn!("[node] workers takes effect at the next start");
        }
        let settings = settings(&config, self.descriptors);
        probe(&settings)?;
        let prepared = self.relay.prepare(settings)?;
        let plan = Plan::new(&translate::request(&config, prepared.addresses()));
        self.installed.replace(&plan).await?;
        self.relay.reload(prepared);
        self.config = config;
        // The new table's gate is closed and its sets are empty.
        self.door.forget();
        Ok(())
    }

    /// Drains: new connections are routed, those that there are may finish.
    async fn end(mut self) -> Result {
        let drain = self.config.node.drain;
        life::stopping(drain);
        self.door.close();
        let live = self.relay.admission().live();
        tracing::info!(live, ?drain, "ending: new connections are routed");
        let deadline = Instant::now() + drain;
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        let handshakes = Instant::now() + LAST_HANDSHAKES.min(drain);
        loop {
            let now = Instant::now();
            if now >= deadline || (self.relay.admission().live() == 0 && now >= handshakes) {
                break;
            }
            tokio::select! {
                _ = tick.tick() => life::alive(&self.counters.to_string()),
                request = self.signals.next() => if request == Request::End { break },
            }
        }
        let cut = self.relay.admission().live();
        self.relay.stop();
        let removed = self.installed.remove().await;
        tracing::info!(cut, "ended: {}", self.counters);
        Ok(removed?)
    }
}

fn one_per_core() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
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
    fn set(&mut self, open: bool, full: &[IpAddr]) {
        let result = if open {
            self.gate.renew(GATE_TTL)
        } else {
            self.gate.close()
        };
        if let Err(error) = result {
            complain(&error);
        }
        if self.open && !open {
            tracing::warn!("a limit is reached: new connections are routed unsplit");
        } else if open && !self.open {
            tracing::info!("new connections are split");
        }
        self.open = open;
        for source in full {
            match self.gate.shut_out(*source, GATE_TTL) {
                Ok(()) if self.shut_out.insert(*source) => {
                    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
                    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
                        tracing::warn!(
                            %source, held_back,
                            "connections_per_source is reached: more from there are routed unsplit"
                        );
                    }
                }
                Ok(()) => {}
                Err(error) => complain(&error),
            }
        }
        let gate = &self.gate;
        self.shut_out.retain(|source| {
            full.contains(source)
                || gate
                    .let_in(*source)
                    .map_err(|error| complain(&error))
                    .is_err()
        });
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

fn complain(error: &pepd_net::Error) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::error!(%error, held_back, "set the gate; without it connections are unsplit");
    }
}
