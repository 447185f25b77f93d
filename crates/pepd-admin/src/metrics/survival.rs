//! What the daemon's processes have died of, as metrics.

use std::fmt;

use super::families::{Families, Family};
use crate::wire::Survival;

/// Writes how many have died, and how the last one was followed.
pub(super) fn write(families: &mut Families<'_>, survival: Option<&Survival>) -> fmt::Result {
    let Some(survival) = survival else {
        return Ok(());
    };
    families.counts(
        &Family::new(
            "pepd_relay_restarts",
            "Processes of the daemon that have died and were followed by another, by cause.",
        ),
        survival
            .deaths
            .iter()
            .map(|deaths| (vec![("cause", deaths.cause.as_str())], deaths.count)),
    )?;
    let last = || survival.last.iter();
    families.gauges(
        &Family::seconds(
            "pepd_takeover_pause",
            "The time from the last death of a process until its connections went on.",
        ),
        last().map(|last| (vec![], last.pause)),
    )?;
    families.gauges(
        &Family::new(
            "pepd_takeover_connections",
            "Connections at the last death of a process, by what became of them.",
        ),
        last().flat_map(|last| {
            [("adopted", last.connections), ("lost", last.lost)].map(|(fate, count)| {
                #[allow(clippy::cast_precision_loss, reason = "below 2^53")]
                let count = count as f64;
                (vec![("fate", fate)], count)
            })
        }),
    )
}
