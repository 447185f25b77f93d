//! What a start and a reload do alike: a configuration becomes settings that the kernel grants, and
//! a plan.

use std::num::NonZeroUsize;

use pepd_config::Config;
use pepd_net::{Plan, QueueBackend};
use pepd_relay::{Prepared, Settings};

use crate::daemon::fixed_rate::Controls;
use crate::daemon::resources::Descriptors;
use crate::daemon::wiring;
use crate::exit::Result;

/// Derives the relay's settings, with no more connections than there are descriptors for, and logs
/// where the kernel grants a leg something other than what the file asks for.
///
/// # Errors
///
/// If the kernel lacks what a leg asks for.
pub fn settings(
    config: &Config,
    controls: &Controls,
    descriptors: Descriptors,
) -> Result<Settings> {
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
    probe(&settings)?;
    Ok(settings)
}

/// Plans the kernel state that goes with the relay's listeners.
pub fn plan(
    config: &Config,
    prepared: &Prepared,
    workers: NonZeroUsize,
    backend: Option<QueueBackend>,
) -> Plan {
    Plan::new(&wiring::request(
        config,
        prepared.addresses(),
        workers,
        backend,
    ))
}

fn probe(settings: &Settings) -> Result {
    for difference in pepd_relay::probe(&settings.legs)? {
        tracing::warn!(
            leg = difference.leg,
            option = difference.option.name(),
            asked = difference.asked,
            given = difference.given,
            "the kernel gave something else than the configuration asks for"
        );
    }
    Ok(())
}
