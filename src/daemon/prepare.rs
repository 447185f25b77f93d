//! What a start and a reload do alike: a configuration becomes settings that the kernel grants, and
//! a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use pepd_config::Config;
use pepd_net::{Family, Moving, Plan, QueueBackend};
use pepd_relay::{ListenerAddress, Observer, Settings};

use crate::daemon::controls::Controls;
use crate::daemon::resources::Descriptors;
use crate::daemon::wiring;
use crate::exit::{Failure, Result};
use crate::time_limit;

/// The time that the kernel may take to load the modules of congestion controls.
const PROBE_LIMIT: Duration = Duration::from_secs(15);

/// What is logged of a configuration and, at a reload, told to whoever has asked for it.
#[derive(Debug, Default)]
pub struct Notes(pub Vec<String>);

impl Notes {
    /// Logs a warning, and keeps it.
    pub fn warn(&mut self, text: String) {
        tracing::warn!("{text}");
        self.0.push(text);
    }
}

/// Keeps what only a start can change as it is in what is `running`, and notes what that was.
pub fn keep_start_only_keys(config: &mut Config, running: &Config, notes: &mut Notes) {
    let keys = [
        ("[admin]", config.admin != running.admin),
        (
            "[node] workers",
            config.node.workers != running.node.workers,
        ),
        ("[node] user", config.node.user != running.node.user),
        ("[node] state", config.node.state != running.node.state),
        ("[move] and [[neighbor]]", config.moves != running.moves),
        ("[log] format", config.log.format != running.log.format),
    ];
    for (key, _) in keys.iter().filter(|(_, differs)| *differs) {
        notes.warn(format!("{key} takes effect at the next start"));
    }
    config.admin = running.admin.clone();
    config.moves.clone_from(&running.moves);
    config.node.workers = running.node.workers;
    config.node.user.clone_from(&running.node.user);
    config.node.state.clone_from(&running.node.state);
    config.log.format = running.log.format;
}

/// Derives the relay's settings, with no more connections than there are descriptors for.
///
/// # Errors
///
/// If a leg asks for what a daemon has only at its start.
pub fn settings(
    config: &Config,
    controls: &Controls,
    descriptors: Descriptors,
    notes: &mut Notes,
) -> Result<Settings> {
    controls.require(config)?;
    let mut settings = wiring::settings(config, controls);
    let wanted = settings.limits.connections;
    if wanted > descriptors.connections {
        settings.limits.connections = descriptors.connections;
        notes.warn(format!(
            "[limits] connections = {wanted} needs more descriptors than the {} there are, which are \
             enough for {}; raise the limit of open files (LimitNOFILE= in the unit) to {} or more",
            descriptors.limit,
            descriptors.connections,
            5 * u64::from(wanted) / 2
        ));
    }
    Ok(settings)
}

/// Tries the legs' options on this kernel, and logs where it grants a leg something other than what
/// the file asks for. It may have to load a module, so it has a thread of its own and a time limit.
///
/// # Errors
///
/// If the kernel lacks what a leg asks for.
pub async fn probe(settings: &Settings, notes: &mut Notes) -> Result {
    let legs = settings.legs.clone();
    let probed = time_limit::run_async(PROBE_LIMIT, move || pepd_relay::probe(&legs)).await;
    let differences = probed.map_err(|why| {
        Failure::temporary(format!(
            "try the legs' options: {why}; does modprobe hang? Load the modules of the legs' \
             congestion controls by hand"
        ))
    })??;
    for difference in differences {
        notes.warn(format!(
            "leg {}: the kernel gives {} for {} where the configuration asks for {}",
            difference.leg,
            difference.given,
            difference.option.name(),
            difference.asked
        ));
    }
    Ok(())
}

/// Gives the families of what comes here and is sent on to other boxes, as the kernel has it.
fn sent_on(config: &Config) -> BTreeSet<Family> {
    let all = match config.moves.neighbors.len() {
        0 => return BTreeSet::new(),
        neighbors => Moving::open(neighbors).and_then(|moving| moving.sent_on()),
    };
    let flows = all.unwrap_or_else(|error| {
        tracing::warn!(%error, "whether anything is sent on to other boxes is not known");
        BTreeMap::new()
    });
    flows.keys().map(|it| Family::of(it.client.ip())).collect()
}

/// Plans the kernel state that goes with the relay's listeners, with the connections that it goes on with, and with those
/// that have moved to other boxes.
pub fn plan(
    config: &Config,
    listeners: &[ListenerAddress],
    workers: NonZeroUsize,
    backend: Option<QueueBackend>,
    live: Option<&Observer>,
) -> Plan {
    let flows = live.map(|it| it.flows().flows(Instant::now()));
    let families = flows.iter().flatten().map(|it| Family::of(it.client.ip()));
    let mut families: BTreeSet<_> = families.collect();
    families.extend(live.iter().flat_map(|_| sent_on(config)));
    Plan::new(&wiring::request(config, listeners, workers, backend)).keeping(&families)
}
