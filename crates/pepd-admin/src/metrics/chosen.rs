//! The congestion controls that are chosen, as metrics.

use std::fmt;

use super::families::{Families, Family};
use crate::wire::ChosenControl;

/// Writes what is chosen for the legs that ask for that.
pub(super) fn write(families: &mut Families<'_>, chosen: &[ChosenControl]) -> fmt::Result {
    let each = chosen.iter().flat_map(|leg| {
        leg.of.iter().map(|congestion| {
            let labels = vec![("leg", &*leg.leg), ("congestion", &**congestion)];
            (labels, f64::from(u8::from(*congestion == leg.congestion)))
        })
    });
    families.gauges(
        &Family::new(
            "pepd_auto_congestion",
            "What the new connections of a leg have as their congestion control, where that is chosen: 1 for the one \
             of those that there are.",
        ),
        each,
    )?;
    families.counts(
        &Family::new(
            "pepd_auto_congestion_changes",
            "How often another one was chosen.",
        ),
        chosen
            .iter()
            .map(|leg| (vec![("leg", &*leg.leg)], leg.changes)),
    )
}
