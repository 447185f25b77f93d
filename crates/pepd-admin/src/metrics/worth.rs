//! What splitting is worth, as metrics.

use std::fmt;

use super::collect::{campuses, float};
use super::families::{Families, Family, Labels};
use crate::wire::{Compared, PairWorth, Worth};

/// Writes how connections that were split compare with some that were not.
pub(super) fn write(families: &mut Families<'_>, worth: Option<&Worth>) -> fmt::Result {
    let Some(worth) = worth else {
        return Ok(());
    };
    let all = || {
        worth.pairs.iter().flat_map(|pair| {
            let compared = pair.compared.iter();
            compared.map(move |compared| (labels(pair, compared), compared))
        })
    };
    families.gauges(
        &Family::new(
            "pepd_worth_connections",
            "Connections that are compared, by whether they were split.",
        ),
        all().flat_map(|(labels, compared)| {
            let kinds = [("split", compared.split), ("unsplit", compared.unsplit)];
            kinds.map(|(kind, of)| {
                let labels = [&labels[..], &[("kind", kind)]].concat();
                (labels, float(of.connections))
            })
        }),
    )?;
    families.gauges(
        &Family::new(
            "pepd_auto_splits",
            "Whether most new connections between two campuses are split, where that depends on what splitting is \
             worth there.",
        ),
        worth.pairs.iter().filter_map(|pair| {
            let labels = campuses(&pair.client_campus, &pair.server_campus);
            Some((labels, f64::from(u8::from(pair.choice?.splits))))
        }),
    )?;
    families.gauges(
        &Family::new(
            "pepd_worth_ratio",
            "How many times as fast connections are that are split: the estimate, and the ends of its 95 % \
             interval.",
        ),
        all().flat_map(|(labels, compared)| {
            compared.gain.into_iter().flat_map(move |gain| {
                let values = [("low", gain.low), ("middle", gain.factor), ("high", gain.high)];
                let labels = labels.clone();
                values.map(move |(bound, value)| ([&labels[..], &[("bound", bound)]].concat(), value))
            })
        }),
    )
}

fn labels<'w>(pair: &'w PairWorth, compared: &'w Compared) -> Labels<'w> {
    let mut labels = campuses(&pair.client_campus, &pair.server_campus);
    labels.push(("quantity", &compared.quantity));
    labels
}
