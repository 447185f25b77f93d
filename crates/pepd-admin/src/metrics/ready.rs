//! Whether connections are best led to this box, as metrics.

use std::fmt;

use super::families::{Families, Family, Labels};
use crate::wire::{Fit, Readiness};

/// Writes whether the box is fit, and for which campuses.
pub(super) fn write(families: &mut Families<'_>, ready: Option<&Readiness>) -> fmt::Result {
    let Some(ready) = ready else {
        return Ok(());
    };
    families.gauges(
        &Family::new(
            "pepd_ready",
            "1 where connections are best led to this box, 0 where not: new ones, and those that it has (live).",
        ),
        both(&ready.new, &ready.live, &[]),
    )?;
    families.gauges(
        &Family::new(
            "pepd_campus_ready",
            "The same for the connections of one campus.",
        ),
        ready.campuses.iter().flat_map(|campus| {
            both(
                &campus.new,
                &campus.live,
                &[("campus", campus.name.as_str())],
            )
        }),
    )
}

fn both<'l>(new: &Fit, live: &Fit, more: &[(&'static str, &'l str)]) -> [(Labels<'l>, f64); 2] {
    [("new", new), ("live", live)].map(|(connections, fit)| {
        let mut labels = more.to_vec();
        labels.push(("connections", connections));
        (labels, f64::from(u8::from(fit.fit)))
    })
}
