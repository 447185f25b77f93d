//! From the configuration to a daemon that splits connections.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use pepd_admin::View;
use pepd_admin::wire::Takeover;
use pepd_config::Config;
use pepd_net::{Gate, Installed, Plan, Watch};
use pepd_relay::{ListenerAddress, LostConnection, Prepared, Relay, Remains, Settings};
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
use crate::daemon::{Daemon, Made, Privileged, Survival, drain, prepare};
use crate::exit::{Failure, Result};
use crate::keeper::board::Board;

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
        let Survival {
            board,
            slots,
            remains,
        } = privileged.survival;
        let notifier = notifier(&board)?;
        let workers = resources::workers(&config);
        let descriptors = resources::share_descriptors(&config, workers)?;
        let settings = prepare::settings(&config, &privileged.controls, descriptors)?;
        let counters = Arc::new(Counters::default());
        let injector = privileged.made.injector.clone();
        let start = |prepared| {
            let counters = Arc::clone(&counters);
            Relay::start(prepared, descriptors.pipes, counters, injector, slots)
                .map_err(|error| Failure::internal("start the workers", error))
        };
        // Connections that are there go on before anything else.
        let (relay, takeover) = match remains {
            Some(remains) => {
                let (begun, takeover) = go_on(remains, &board, settings, workers, start)?;
                (Begun::Before(begun), takeover)
            }
            None => (Begun::Not(settings, start), None),
        };
        privileged.in_force.report(&config, &file.path);
        privileged.controls.report();
        privileged.made.report(&config);
        privileged.controls.find(&config)?;
        let up = bring_up(&config, relay, workers);
        let (relay, plan, installed, look) = match requests.unless_ended(up).await {
            Ok(up) => up?,
            Err(why) => return give_up(why, &config).await.map(|()| None),
        };
        let probes = probes(&config);
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
            board: Arc::clone(&board),
            takeover,
        };
        let serving = match serve(&config, relay, sources, privileged.made) {
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
            board,
        }))
    }
}

fn requests() -> Result<Requests> {
    let signals = Signals::new().map_err(|error| Failure::internal("signals", error))?;
    Ok(Requests::new(signals))
}

fn notifier(board: &Arc<Board>) -> Result<Notifier> {
    Notifier::start(Arc::clone(board)).map_err(|error| Failure::internal("start a thread", error))
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

/// A relay that has begun before the kernel state is there, or has not.
enum Begun<S> {
    Before((Relay, Vec<ListenerAddress>)),
    Not(Settings, S),
}

/// Goes on with the connections of a daemon that has died, and says so.
fn go_on(
    mut remains: Remains,
    board: &Board,
    settings: Settings,
    workers: NonZeroUsize,
    start: impl FnOnce(Prepared) -> Result<Relay>,
) -> Result<((Relay, Vec<ListenerAddress>), Option<Takeover>)> {
    let (connections, clients) = (remains.connections(), remains.clients());
    let lost = remains.take_lost();
    let prepared = Prepared::taking_over(remains, settings, workers)?;
    let addresses = prepared.addresses().to_vec();
    let relay = start(prepared)?;
    let takeover = board.last_death().map(|(death, died)| {
        let pause = pepd_sys::clock::monotonic().saturating_sub(died);
        tracing::error!(
            connections,
            clients,
            lost = lost.len(),
            ?pause,
            "the daemon's process has died, {death}; this one goes on"
        );
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Takeover {
            why: death.to_string(),
            time: now.unwrap_or_default().as_secs_f64(),
            pause: pause.as_secs_f64(),
            connections: connections as u64,
            lost: lost.len() as u64,
        }
    });
    for LostConnection {
        client,
        server,
        why,
    } in lost
    {
        tracing::error!(%client, %server, "a connection is reset: {why}");
    }
    Ok(((relay, addresses), takeover))
}

/// Opens the listeners, installs the kernel state, and looks what is in its way; then has the relay
/// begin, where it has not.
async fn bring_up(
    config: &Config,
    relay: Begun<impl FnOnce(Prepared) -> Result<Relay>>,
    workers: NonZeroUsize,
) -> Result<(Relay, Plan, Installed, Look)> {
    let (relay, addresses) = match relay {
        Begun::Before((relay, addresses)) => (Ok(relay), addresses),
        Begun::Not(settings, start) => {
            prepare::probe(&settings).await?;
            let prepared = Prepared::new(settings, workers)?;
            let addresses = prepared.addresses().to_vec();
            (Err((prepared, start)), addresses)
        }
    };
    let backend = resources::queue_backend(config).await?;
    let plan = prepare::plan(config, &addresses, workers, backend);
    let installed = install(&plan).await?;
    let look = Look::first(&plan).await;
    let begun = relay.or_else(|(prepared, start)| start(prepared));
    match begun {
        Ok(relay) => Ok((relay, plan, installed, look)),
        Err(failure) => {
            undo(installed).await;
            Err(failure)
        }
    }
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

fn serve(config: &Config, relay: Relay, sources: Sources, made: Made) -> Result<Serving> {
    let gate = Gate::open()?;
    let watch = Watch::open()?;
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
