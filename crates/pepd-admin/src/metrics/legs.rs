//! The metrics of legs by their names: what is sent over them, and their round trips.

use std::fmt;

use pepd_telemetry::Measurements;

use super::families::{Families, Family, Labels};
use crate::wire::LegState;

/// Writes what is seen of the legs.
pub(super) fn write(
    families: &mut Families<'_>,
    legs: &[LegState],
    measurements: &Measurements,
) -> fmt::Result {
    families.counts(
        &Family::bytes(
            "pepd_path_sent",
            "Payload sent over a leg by all its connections, what was sent again included.",
        ),
        legs.iter().map(|leg| (of(leg), leg.sent_bytes)),
    )?;
    families.counts(
        &Family::bytes("pepd_path_resent", "The part of it that was sent again."),
        legs.iter().map(|leg| (of(leg), leg.resent_bytes)),
    )?;
    families.sums(
        &Family::seconds(
            "pepd_path_busy",
            "The time for which more was to be sent over a leg than it took, or nearly what it carries.",
        ),
        legs.iter().map(|leg| (of(leg), leg.busy_seconds)),
    )?;
    families.gauges(
        &Family::new(
            "pepd_path_idle_rtt_seconds",
            "The least round trip of a leg's connections in the last five minutes.",
        ),
        legs.iter()
            .filter_map(|leg| Some((of(leg), leg.least_rtt?))),
    )?;
    let loaded = measurements.loaded_rtts();
    families.histograms(
        &Family::seconds(
            "pepd_path_loaded_rtt",
            "Round trips of a leg's connections while the leg is busy, sampled each second in which they sent \
             something.",
        ),
        loaded
            .iter()
            .map(|(leg, rtts)| (vec![("leg", leg.as_str())], rtts.snapshot())),
    )
}

fn of(leg: &LegState) -> Labels<'_> {
    vec![("leg", leg.leg.as_str())]
}
