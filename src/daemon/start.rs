//! From the configuration to a daemon that splits connections.

use std::sync::Arc;

use pepd_admin::View;
use pepd_config::Config;
use pepd_net::{Gate, Installed, Plan};
use pepd_relay::{Prepared, Relay};
use pepd_telemetry::Counters;

use crate::cli::File;
use crate::daemon::admin::{Admin, Page, Socket};
use crate::daemon::gate_keeper::GateKeeper;
use crate::daemon::peers::Probes;
use crate::daemon::signals::Signals;
use crate::daemon::status_view::{Sources, StatusView};
use crate::daemon::systemd::Notifier;
use crate::daemon::{Daemon, Privileged, prepare, resources};
use crate::exit::{Failure, Result};

impl Daemon {
    /// Brings everything up, or nothing.
    ///
    /// # Errors
    ///
    /// Whatever the kernel or the host lacks; nothing of pepd's is then left behind.
    pub async fn start(file: File, config: Config, privileged: Privileged) -> Result<Self> {
        let Privileged {
            controls,
            socket,
            page,
            in_force,
        } = privileged;
        let signals = Signals::new().map_err(|error| Failure::internal("signals", error))?;
        let notifier =
            Notifier::start().map_err(|error| Failure::internal("start a thread", error))?;
        in_force.report(&config, &file.path);
        controls.report();
        let workers = resources::workers(&config);
        let descriptors = resources::share_descriptors(&config, workers)?;
        let settings = prepare::settings(&config, &controls, descriptors)?;
        let prepared = Prepared::new(settings, workers)?;
        let backend = resources::queue_backend(&config).await?;
        let plan = prepare::plan(&config, &prepared, workers, backend);
        let installed = install(&plan).await?;
        let mut probes = Probes::default();
        probes.follow(&config);
        let counters = Arc::new(Counters::default());
        let sources = Sources {
            counters: Arc::clone(&counters),
            workers,
            descriptors,
            peers: probes.states(),
            fixed_rate: controls.names(),
            confinement: in_force.for_status(),
        };
        let serving = match serve(&config, prepared, sources, socket, page) {
            Ok(serving) => serving,
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
            workers,
            plan,
            installed,
            keeper: GateKeeper::new(
                serving.gate,
                serving.relay,
                notifier,
                probes,
                Arc::clone(&counters),
            ),
            counters,
            view: serving.view,
            signals,
            admin: serving.admin,
        })
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
    gate: Gate,
    relay: Relay,
    view: Arc<StatusView>,
    admin: Admin,
}

fn serve(
    config: &Config,
    prepared: Prepared,
    sources: Sources,
    socket: Option<Socket>,
    page: Option<Page>,
) -> Result<Serving> {
    let gate = Gate::open()?;
    let pipes = sources.descriptors.pipes;
    let relay = Relay::start(prepared, pipes, Arc::clone(&sources.counters))
        .map_err(|error| Failure::internal("start the workers", error))?;
    let view = Arc::new(StatusView::new(config, relay.observer(), sources));
    let admin = Admin::start(socket, page, Arc::clone(&view) as Arc<dyn View>)?;
    Ok(Serving {
        gate,
        relay,
        view,
        admin,
    })
}

async fn undo(installed: Installed) {
    if let Err(error) = installed.remove().await {
        tracing::error!(%error, "remove the kernel state; `pepd down` tries again");
    }
}
