//! From the configuration to a daemon that splits connections.

use std::num::NonZeroUsize;
use std::sync::Arc;

use pepd_admin::View;
use pepd_config::Config;
use pepd_net::{Gate, Installed, Plan, Watch};
use pepd_relay::{Prepared, Relay, Settings, Slots};
use pepd_telemetry::Counters;

use crate::cli::File;
use crate::daemon::admin::Admin;
use crate::daemon::gate_keeper::GateKeeper;
use crate::daemon::health::{Alarms, Health, Look};
use crate::daemon::holding::Holding;
use crate::daemon::links::Links;
use crate::daemon::peers::Probes;
use crate::daemon::requests::{GivenUp, Requests};
use crate::daemon::resources::{self, Descriptors};
use crate::daemon::signals::Signals;
use crate::daemon::status_view::{Sources, StatusView};
use crate::daemon::systemd::Notifier;
use crate::daemon::{Daemon, Made, Privileged, drain, prepare};
use crate::exit::{Failure, Result};

impl Daemon {
    /// Brings everything up, or nothing; none if it was asked to end before it was up.
    ///
    /// # Errors
    ///
    /// Whatever the kernel or the host lacks; nothing of pepd's is then left behind.
    pub async fn start(
        file: File,
        config: Config,
        mut privileged: Privileged,
    ) -> Result<Option<Self>> {
        let mut requests = requests()?;
        let notifier = notifier()?;
        privileged.report(&config, &file);
        privileged.controls.find(&config)?;
        let workers = resources::workers(&config);
        let descriptors = resources::share_descriptors(&config, workers)?;
        let settings = prepare::settings(&config, &privileged.controls, descriptors)?;
        let up = bring_up(&config, settings, workers);
        let (prepared, plan, installed, look) = match requests.unless_ended(up).await {
            Ok(up) => up?,
            Err(why) => return give_up(why, &config).await.map(|()| None),
        };
        let probes = probes(&config);
        let counters = Arc::new(Counters::default());
        let alarms = Arc::new(Alarms::default());
        let sources = Sources {
            counters: Arc::clone(&counters),
            workers,
            descriptors,
            peers: probes.states(),
            controls: privileged.controls.names(),
            finders: privileged.controls.finders(),
            alarms: Arc::clone(&alarms),
            confinement: privileged.in_force.for_status(),
        };
        let serving = match serve(&config, prepared, sources, privileged.made) {
            Ok(serving) => serving,
            Err(failure) => {
                undo(installed).await;
                return Err(failure);
            }
        };
        report_start(&config, workers, descriptors);
        let health = Health::new(serving.watch, &plan, look, Arc::clone(&counters), alarms);
        requests.hear_admin(serving.admin, Arc::clone(&serving.view));
        requests.tell_links(serving.links.teller());
        Ok(Some(Self {
            file,
            config,
            controls: privileged.controls,
            descriptors,
            workers,
            plan,
            installed,
            keeper: GateKeeper::new(
                serving.gate,
                serving.relay,
                notifier,
                probes,
                health,
                Arc::clone(&counters),
            ),
            counters,
            view: serving.view,
            requests,
            links: serving.links,
            holding: serving.holding,
        }))
    }
}

fn requests() -> Result<Requests> {
    let signals = Signals::new().map_err(|error| Failure::internal("signals", error))?;
    Ok(Requests::new(signals))
}

fn notifier() -> Result<Notifier> {
    Notifier::start().map_err(|error| Failure::internal("start a thread", error))
}

fn probes(config: &Config) -> Probes {
    let mut probes = Probes::default();
    probes.follow(config);
    probes
}

fn report_start(config: &Config, workers: NonZeroUsize, descriptors: Descriptors) {
    tracing::info!(
        node = config.node.name,
        workers,
        connections = descriptors.connections,
        descriptors = descriptors.limit,
        "started"
    );
}

/// Opens the listeners, installs the kernel state, and looks what is in its way.
async fn bring_up(
    config: &Config,
    settings: Settings,
    workers: NonZeroUsize,
) -> Result<(Prepared, Plan, Installed, Look)> {
    prepare::probe(&settings).await?;
    let prepared = Prepared::new(settings, workers)?;
    let backend = resources::queue_backend(config).await?;
    let plan = prepare::plan(config, &prepared, workers, backend);
    let installed = install(&plan).await?;
    let look = Look::first(&plan).await;
    Ok((prepared, plan, installed, look))
}

/// Removes what a start that is given up has installed by then. It is no failure if it was asked to
/// end.
async fn give_up(why: GivenUp, config: &Config) -> Result {
    tracing::warn!("not started: {why}");
    if config.peers.iter().any(|peer| peer.keep) {
        return Err(Failure::temporary(
            "it was ended while it was starting; what it had installed stays, for the sake of the \
             tunnels that are to be kept: `pepd down` removes all, the next start adopts it",
        ));
    }
    let table = pepd_net::RouteTable(config.capture.table.0);
    pepd_net::remove(table, config.capture.mark).await?;
    match why {
        GivenUp::Ending => Ok(()),
        GivenUp::TimedOut => Err(why.into()),
    }
}

async fn install(plan: &Plan) -> Result<Installed> {
    let installed = pepd_net::install(plan).await?;
    for warning in installed.warnings() {
        tracing::warn!("{warning}");
    }
    Ok(installed)
}

/// The services that are started once the kernel state is there.
struct Serving {
    links: Links,
    holding: Holding,
    gate: Gate,
    watch: Watch,
    relay: Relay,
    view: Arc<StatusView>,
    admin: Admin,
}

fn serve(config: &Config, prepared: Prepared, sources: Sources, made: Made) -> Result<Serving> {
    let gate = Gate::open()?;
    let watch = Watch::open()?;
    let pipes = sources.descriptors.pipes;
    let counters = Arc::clone(&sources.counters);
    let slots = Slots::unshared(usize::try_from(sources.descriptors.connections).unwrap_or(0));
    let relay = Relay::start(prepared, pipes, counters, made.injector.clone(), slots)
        .map_err(|error| Failure::internal("start the workers", error))?;
    let mut holding = Holding::new(made.injector);
    let opened = holding.prepare(config)?;
    holding.follow(config, opened);
    let teller = holding.teller();
    let links = Links::start(config, relay.links(), teller, sources.peers.clone());
    let view = Arc::new(StatusView::new(
        config,
        relay.observer(),
        links.states(),
        holding.figures(),
        sources,
    ));
    let shown = Arc::clone(&view) as Arc<dyn View>;
    let admin = Admin::start(made.socket, made.page, shown)?;
    Ok(Serving {
        links,
        holding,
        gate,
        watch,
        relay,
        view,
        admin,
    })
}

async fn undo(installed: Installed) {
    if let Err(error) = drain::remove(installed).await {
        tracing::error!("{error}");
    }
}
