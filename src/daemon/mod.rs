//! The wiring: configuration, kernel state, relay, gate and signals.

pub mod admin;
pub mod fixed_rate;
mod gate_keeper;
pub mod log;
pub mod peers;
pub mod privileges;
pub mod resources;
mod signals;
mod status_view;
pub mod wiring;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_admin::View;
use pepd_admin::api::Order;
use pepd_config::Config;
use pepd_net::{Gate, Installed, Plan};
use pepd_relay::{Prepared, Relay, Settings};
use pepd_telemetry::Counters;

use crate::cli::File;
use crate::config_file;
use crate::daemon::admin::{Admin, Page, Socket};
use crate::daemon::fixed_rate::Controls;
use crate::daemon::gate_keeper::{Doorkeeper, complain, interval};
use crate::daemon::peers::Probes;
use crate::daemon::resources::Descriptors;
use crate::daemon::signals::{Notifier, Request, Signals};
use crate::daemon::status_view::Observatory;
use crate::exit::{Failure, Result};

/// How often systemd hears that the daemon is still ending.
const TICK: Duration = Duration::from_secs(1);

/// How often the kernel state is looked at, beyond the table that each renewal of the gate needs.
const INSPECTION: Duration = Duration::from_secs(10);

/// How often the end looks whether the last connection has finished.
const LOOK: Duration = Duration::from_millis(50);

/// How long the end waits for handshakes that were under way when the gate closed.
const LAST_HANDSHAKES: Duration = Duration::from_millis(500);

/// A running daemon.
pub struct Daemon {
    file: File,
    config: Config,
    controls: Controls,
    descriptors: Descriptors,
    plan: Plan,
    installed: Installed,
    keeper: Doorkeeper,
    signals: Signals,
    counters: Arc<Counters>,
    observatory: Arc<Observatory>,
    workers: NonZeroUsize,
    admin: Admin,
}

impl Daemon {
    /// Brings everything up, or nothing.
    pub async fn start(
        file: File,
        config: Config,
        controls: Controls,
        socket: Option<Socket>,
        page: Option<Page>,
    ) -> Result<Self> {
        let signals = Signals::new().map_err(|error| Failure::internal("signals", error))?;
        let notifier =
            Notifier::start().map_err(|error| Failure::internal("start a thread", error))?;
        controls.report();
        let workers = resources::workers(&config);
        let descriptors = resources::share_descriptors(&config, workers.get(), listeners(&config))?;
        let settings = settings(&config, &controls, descriptors)?;
        probe(&settings)?;
        let prepared = Prepared::new(settings, workers)?;
        let holder = resources::holder(&config).await?;
        let plan = Plan::new(&wiring::request(
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
                controls.names(),
            ));
            let admin = Admin::start(socket, page, Arc::clone(&observatory) as Arc<dyn View>)?;
            Ok::<_, Failure>((gate, relay, observatory, admin))
        })();
        let (gate, relay, observatory, admin) = match up {
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
            controls,
            descriptors,
            plan,
            installed,
            keeper: Doorkeeper::new(gate, relay, notifier, probes, Arc::clone(&counters)),
            signals,
            counters,
            observatory,
            workers,
            admin,
        })
    }

    /// Runs until a signal ends it, and removes all kernel state.
    pub async fn run(mut self) -> Result {
        let mut inspection = interval(INSPECTION);
        // The first renewal opens the gate, and only then is pepd ready.
        inspection.tick().await;
        self.keeper.due().await;
        self.tend().await;
        self.keeper.notifier.ready();
        loop {
            tokio::select! {
                () = self.keeper.due() => self.tend().await,
                _ = inspection.tick() => {
                    self.mend().await;
                    self.follow_paths().await;
                }
                () = self.installed.routes_changed() => {
                    let followed = self.keeper.tend_during(self.installed.follow()).await;
                    if let Err(error) = followed {
                        complain(&error);
                    }
                }
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

    /// Renews the gate, and what it stands in if that is gone.
    async fn tend(&mut self) {
        if let Err(error) = self.keeper.tend() {
            complain(&error);
            self.mend().await;
        }
    }

    /// Reads the kernel's counters, and installs its state again where it is gone. `nft flush
    /// ruleset`, with which a reload of the operator's own firewall often begins, takes pepd's table
    /// along, and a restart of systemd-networkd takes the rules; then even the packets of live
    /// connections no longer reach their sockets.
    async fn mend(&mut self) {
        match self.keeper.tend_during(self.installed.verify()).await {
            Ok(counts) => return self.observatory.counted(counts),
            // The cure that the error names is what comes next.
            Err(pepd_net::Error::Drift { what }) => tracing::warn!("{what}; putting it back"),
            Err(error) => return complain(&error),
        }
        let replaced = self.installed.replace(&self.plan);
        match self.keeper.tend_during(replaced).await {
            Ok(()) => {
                self.keeper.open_anew();
                tracing::warn!("somebody removed pepd's kernel state; it is there again");
            }
            Err(error) => complain(&error),
        }
    }

    /// Has the tunnels carry what their paths do.
    async fn follow_paths(&mut self) {
        let followed = self.installed.follow_paths();
        if let Err(error) = self.keeper.tend_during(followed).await {
            tracing::warn!(%error, "follow the tunnels' paths");
        }
    }

    /// Reads the configuration again; the error says why not.
    async fn reload(&mut self) -> std::result::Result<(), String> {
        self.keeper.notifier.reloading();
        let result = self.try_reload().await.map_err(|why| why.to_string());
        match &result {
            Ok(()) => tracing::info!("reloaded"),
            Err(message) => tracing::error!("reload refused, nothing has changed:\n{message}"),
        }
        self.tend().await;
        self.keeper.notifier.ready();
        result
    }

    async fn try_reload(&mut self) -> std::result::Result<(), Failure> {
        let mut config = config_file::read_again(&self.file)?;
        self.keep_until_the_next_start(&mut config);
        let descriptors = resources::shares(
            &config,
            self.workers.get(),
            listeners(&config),
            self.descriptors.limit,
        );
        let settings = settings(&config, &self.controls, descriptors)?;
        probe(&settings)?;
        let prepared = self.keeper.relay.prepare(settings)?;
        let holder = self.keeper.tend_during(resources::holder(&config)).await?;
        let plan = Plan::new(&wiring::request(
            &config,
            prepared.addresses(),
            self.workers,
            holder,
        ));
        let replaced = self.installed.replace(&plan);
        self.keeper.tend_during(replaced).await?;
        self.keeper.relay.reload(prepared, descriptors.pipes);
        self.observatory.reloaded(&config);
        self.keeper.probes.follow(&config);
        self.config = config;
        self.descriptors = descriptors;
        self.plan = plan;
        Ok(())
    }

    /// What only a start can change stays as it is, and the log says so.
    fn keep_until_the_next_start(&self, config: &mut Config) {
        let running = &self.config;
        let keys = [
            ("[admin]", config.admin != running.admin),
            (
                "[node] workers",
                config.node.workers != running.node.workers,
            ),
            ("[log] format", config.log.format != running.log.format),
        ];
        for (key, _) in keys.iter().filter(|(_, differs)| *differs) {
            tracing::warn!("{key} takes effect at the next start");
        }
        config.admin = running.admin.clone();
        config.node.workers = running.node.workers;
        config.log.format = running.log.format;
    }

    /// Drains: new connections are routed, those that there are may finish.
    async fn end(mut self) -> Result {
        let drain = self.config.node.drain;
        self.keeper.notifier.stopping(drain);
        self.keeper.close();
        self.observatory.draining();
        let live = self.keeper.relay.admission().live();
        tracing::info!(live, ?drain, "ending: new connections are routed");
        let deadline = Instant::now() + drain;
        let mut tick = interval(TICK);
        let mut look = interval(LOOK);
        let handshakes = Instant::now() + LAST_HANDSHAKES.min(drain);
        loop {
            let now = Instant::now();
            let live = self.keeper.relay.admission().live();
            if now >= deadline || (live == 0 && now >= handshakes) {
                break;
            }
            tokio::select! {
                _ = tick.tick() => {
                    self.keeper.attend();
                    self.keeper.notifier.alive(self.keeper.standing());
                }
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
        let cut = self.keeper.relay.admission().live();
        self.keeper.relay.stop();
        let removed = self.installed.remove().await;
        tracing::info!(cut, "ended: {}", self.counters);
        Ok(removed?)
    }
}

/// How many listeners a worker has: one per leg and family.
fn listeners(config: &Config) -> usize {
    config.legs.len() * 2
}

/// The relay's settings, with no more connections than there are descriptors for.
fn settings(config: &Config, controls: &Controls, descriptors: Descriptors) -> Result<Settings> {
    controls.require(config)?;
    let mut settings = wiring::settings(config, controls);
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
    Ok(settings)
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
