//! From the configuration to a daemon that splits connections.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;

use pepd_admin::View;
use pepd_config::Config;
use pepd_net::{Gate, Installed, Plan, Watch};
use pepd_relay::{Relay, Settings};
use pepd_telemetry::Counters;

use crate::cli::File;
use crate::daemon::admin::Admin;
use crate::daemon::beginning::{Beginning, Start};
use crate::daemon::choosing::{self, Choosing};
use crate::daemon::controls::Controls;
use crate::daemon::fitness::{Fitness, Published};
use crate::daemon::gate_keeper::GateKeeper;
use crate::daemon::health::{Alarms, Health, Look};
use crate::daemon::holding::Holding;
use crate::daemon::installing::{Wanted, install, install_beside};
use crate::daemon::links::Links;
use crate::daemon::measuring::Measuring;
use crate::daemon::moving::Moving;
use crate::daemon::peers::Probes;
use crate::daemon::prepare::Notes;
use crate::daemon::privileges::InForce;
use crate::daemon::requests::{GivenUp, Requests};
use crate::daemon::resources::{self, Descriptors};
use crate::daemon::signals::Signals;
use crate::daemon::status_view::{Sources, StatusView};
use crate::daemon::systemd::Notifier;
use crate::daemon::{Daemon, Made, Privileged, Survival, drain, prepare};
use crate::exit::{Failure, Result};
use crate::keeper;
use crate::keeper::board::Board;

impl Daemon {
    /// Brings everything up, or nothing; none if it was asked to end before it was up.
    ///
    /// # Errors
    ///
    /// Whatever the kernel or the host lacks; nothing of pepd's is then left behind.
    #[allow(
        clippy::too_many_lines,
        reason = "each thing that is brought up, in its order, and handed to who needs it"
    )]
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
            to_close,
            on_trial,
        } = privileged.survival;
        let notifier = notifier(&board)?;
        let workers = resources::workers(&config);
        let (descriptors, settings) = share_out(&config, &privileged.controls, workers)?;
        let counters = Arc::new(Counters::default());
        let start = Start {
            pipes: descriptors.pipes,
            counters: Arc::clone(&counters),
            injector: privileged.made.injector.clone(),
            resume: privileged.made.resume.clone(),
            slots,
        };
        let remembered = privileged.made.remembered.take();
        let learned = remembered.as_ref().map(|it| it.legs().clone());
        let learned = learned.unwrap_or_default();
        // Without an order they would be sent as fast as the interface is.
        privileged.controls.find(&config, &learned)?;
        // Connections that are there go on before anything else.
        let relay = start.begin(remains, settings, workers, &board)?;
        let takeover = relay.takeover();
        drop(to_close);
        report(&privileged.in_force, &privileged.controls, &config, &file);
        privileged.made.report(&config);
        let goes_on = takeover.is_some();
        let up = if goes_on {
            // Connections depend on it, also where the daemon is to drain.
            let ears = (&mut requests, &notifier);
            Ok(bring_up_beside(&config, relay, workers, ears, on_trial).await)
        } else {
            requests
                .unless_ended(bring_up(&config, relay, workers))
                .await
        };
        let (relay, plan, installed, look) = match up {
            Ok(up) => up?,
            Err(why) => return give_up(why, &config).await.map(|()| None),
        };
        let has_bbr = choosing::has_bbr(&config).await;
        let mut choosing = Choosing::new(&config, &privileged.controls, has_bbr, relay.observer());
        choosing.resume(&learned, &privileged.controls, &config);
        let probes = probes(&config);
        let alarms = Arc::new(Alarms::default());
        let published = Published::default();
        // Whoever asks from the first moment on hears what the process before would have said.
        let mut fitness = Fitness::new(&config, goes_on, Arc::clone(&board), published.clone());
        let sources = Sources {
            counters: Arc::clone(&counters),
            workers,
            descriptors,
            peers: probes.states(),
            controls: privileged.controls.names(),
            finders: privileged.controls.finders(),
            chosen: choosing.figures(),
            alarms: Arc::clone(&alarms),
            confinement: privileged.in_force.for_status(),
            board: Arc::clone(&board),
            takeover,
            fitness: published,
        };
        let ends_seconds = privileged.made.socket.is_none() && privileged.made.page.is_none();
        let serving = match serve(&config, &plan, relay, sources, privileged.made) {
            Ok(serving) => serving,
            // What is installed stays: the next process goes on with the connections.
            Err(failure) if goes_on => return Err(failure),
            Err(failure) => {
                undo(installed).await;
                return Err(failure);
            }
        };
        report_start(&config, workers, descriptors);
        let health = Health::new(serving.watch, &plan, look, Arc::clone(&counters), alarms);
        fitness.hear_links(serving.links.states());
        requests.hear_admin(serving.admin, Arc::clone(&serving.view));
        requests.tell_links(serving.links.teller());
        requests.move_connections(serving.moving.teller());
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
                fitness,
                Arc::clone(&counters),
            ),
            counters,
            view: serving.view,
            requests,
            links: serving.links,
            holding: serving.holding,
            measuring: serving.measuring,
            moving: serving.moving,
            choosing,
            remembered,
            ends_seconds,
            board,
        }))
    }
}

/// Shares the descriptors out, and derives the relay's settings from that.
fn share_out(
    config: &Config,
    controls: &Controls,
    workers: NonZeroUsize,
) -> Result<(Descriptors, Settings)> {
    let descriptors = resources::share_descriptors(config, workers)?;
    let settings = prepare::settings(config, controls, descriptors, &mut Notes::default())?;
    Ok((descriptors, settings))
}

fn requests() -> Result<Requests> {
    let failed = |error: io::Error| Failure::internal("signals", error);
    let signals = Signals::new().map_err(failed)?;
    keeper::hear_hangup().map_err(|error| failed(error.into()))?;
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

/// Logs what is left of the privileges, and what was taken while they were there.
fn report(in_force: &InForce, controls: &Controls, config: &Config, file: &File) {
    in_force.report(config, &file.path);
    controls.report();
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

/// Opens the listeners, installs the kernel state, and looks what is in its way; then has the relay
/// begin.
async fn bring_up(
    config: &Config,
    relay: Beginning,
    workers: NonZeroUsize,
) -> Result<(Relay, Plan, Installed, Look)> {
    let (relay, listeners) = relay.listen(workers).await?;
    let wanted = Wanted {
        config,
        listeners: &listeners,
        workers,
        live: None,
    };
    let (plan, installed, look) = install(wanted).await?;
    match relay.run() {
        Ok(relay) => Ok((relay, plan, installed, look)),
        Err(failure) => {
            undo(installed).await;
            Err(failure)
        }
    }
}

/// The same where the relay goes on with connections already.
async fn bring_up_beside(
    config: &Config,
    relay: Beginning,
    workers: NonZeroUsize,
    ears: (&mut Requests, &Notifier),
    on_trial: bool,
) -> Result<(Relay, Plan, Installed, Look)> {
    let (relay, listeners) = relay.listen(workers).await?;
    let relay = relay.run()?;
    let live = relay.observer();
    let wanted = Wanted {
        config,
        listeners: &listeners,
        workers,
        live: Some(&live),
    };
    let (plan, installed, look) = install_beside(&relay, wanted, ears, on_trial).await?;
    Ok((relay, plan, installed, look))
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

/// The services that are started once the kernel state is there.
struct Serving {
    links: Links,
    holding: Holding,
    measuring: Measuring,
    moving: Moving,
    gate: Gate,
    watch: Watch,
    relay: Relay,
    view: Arc<StatusView>,
    admin: Admin,
}

fn serve(
    config: &Config,
    plan: &Plan,
    relay: Relay,
    sources: Sources,
    made: Made,
) -> Result<Serving> {
    let gate = Gate::open()?;
    let watch = Watch::open()?;
    let mut holding = Holding::new(made.injector);
    let opened = holding.prepare(config)?;
    holding.follow(config, opened);
    let teller = holding.teller();
    let mut measuring = Measuring::default();
    measuring.begin(config, plan);
    let moving = Moving::start(config, made.keys, &relay)?;
    let links = Links::start(
        config,
        relay.links(),
        teller,
        sources.peers.clone(),
        &sources.board,
    );
    let view = Arc::new(StatusView::new(
        config,
        relay.observer(),
        links.states(),
        holding.figures(),
        (measuring.figures(), moving.figures()),
        sources,
    ));
    let shown = Arc::clone(&view) as Arc<dyn View>;
    let admin = Admin::start(made.socket, made.page, shown)?;
    Ok(Serving {
        links,
        holding,
        measuring,
        moving,
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
