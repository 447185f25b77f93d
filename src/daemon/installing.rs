//! The kernel state of a daemon that begins: at once or not at all; or, where connections go on meanwhile,
//! again and again until it is there. They need no more than what the process before has left.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use pepd_config::Config;
use pepd_net::{Installed, Plan};
use pepd_relay::{ListenerAddress, Observer, Relay};

use crate::daemon::health::Look;
use crate::daemon::requests::Requests;
use crate::daemon::systemd::Notifier;
use crate::daemon::{prepare, resources};
use crate::exit::{Failure, Result};

/// The pause before it is tried again.
const PAUSE: Duration = Duration::from_secs(2);

/// What systemd is told meanwhile.
const STATUS: &str = "connections go on; the kernel state is being installed";

/// The kernel state as it should be and as it is, and what is in its way.
pub(super) type State = (Plan, Installed, Look);

/// Where the kernel state is to lead new connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) config: &'a Config,
    pub(super) listeners: &'a [ListenerAddress],
    pub(super) workers: NonZeroUsize,
    /// What knows the connections that go on, if any do.
    pub(super) live: Option<&'a Observer>,
}

/// Installs the kernel state, and looks what is in its way.
///
/// # Errors
///
/// Whatever the kernel or the host lacks.
pub(super) async fn install(wanted: Wanted<'_>) -> Result<State> {
    let Wanted {
        config,
        listeners,
        workers,
        live,
    } = wanted;
    let backend = resources::queue_backend(config).await?;
    let plan = prepare::plan(config, listeners, workers, backend, live);
    let installed = pepd_net::install(&plan).await?;
    for warning in installed.warnings() {
        tracing::warn!("{warning}");
    }
    let look = Look::first(&plan).await;
    Ok((plan, installed, look))
}

/// The same beside a relay that goes on with connections: where it fails it is tried again, and what is asked
/// of the daemon is heard once it is there. A program that is `on_trial` is to say at once that it fails.
///
/// # Errors
///
/// If it is on trial; or if the daemon is to end, and those connections have had their time.
pub(super) async fn install_beside(
    relay: &Relay,
    wanted: Wanted<'_>,
    (requests, notifier): (&mut Requests, &Notifier),
    on_trial: bool,
) -> Result<State> {
    let mut asked_to_end = None;
    let mut told = String::new();
    loop {
        let attempt = Requests::in_time(install(wanted));
        let failure = match notifier.during(STATUS, attempt).await {
            Ok(Ok(state)) => return Ok(state),
            Ok(Err(failure)) => failure,
            Err(why) => Failure::from(why),
        };
        if on_trial {
            return Err(failure);
        }
        let text = failure.to_string();
        if text != told {
            tracing::error!(
                "connections go on, new ones are routed, and it is tried again: {text}"
            );
            told = text;
        }
        notifier.during(STATUS, requests.hear_for(PAUSE)).await;
        if requests.to_end() {
            let since = *asked_to_end.get_or_insert_with(Instant::now);
            let is_over = since.elapsed() >= wanted.config.node.drain || requests.is_urgent();
            if is_over || relay.admission().live() == 0 {
                tracing::warn!(
                    "what there is of pepd in the kernel stays: `pepd down` removes it once that works"
                );
                notifier.stopping(Duration::ZERO);
                return Err(failure);
            }
        }
    }
}
