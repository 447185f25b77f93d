//! The metrics of the rates that legs were found to have.

use std::fmt;

use super::collect::float;
use super::families::{Families, Family};
use crate::wire::{FoundRate, RateLimit, RateState};

/// What is shown of a path; none where it is not known.
type Figure = fn(&FoundRate) -> Option<f64>;

/// Writes what is known of the paths of legs whose rate is found.
pub(super) fn write(families: &mut Families<'_>, rates: &[FoundRate]) -> fmt::Result {
    let figures: [(Family, Figure); 7] = [
        (
            Family::new(
                "pepd_path_rate_bytes_per_second",
                "What a leg with the congestion control find-rate may send just now, in bytes of IP packets.",
            ),
            |rate| Some(float(rate.rate) / 8.0),
        ),
        (
            Family::new(
                "pepd_path_capacity_bytes_per_second",
                "What the path of such a leg is taken to carry.",
            ),
            |rate| Some(float(rate.capacity) / 8.0),
        ),
        (
            Family::new(
                "pepd_path_loss_ratio",
                "The share of packets that is lost on the path of such a leg, at whatever rate.",
            ),
            |rate| Some(rate.loss),
        ),
        (
            Family::new(
                "pepd_path_queue_seconds",
                "The time that its packets wait before the narrowest place.",
            ),
            |rate| Some(rate.queue),
        ),
        (
            Family::new(
                "pepd_path_least_rtt_seconds",
                "Its least round trip lately.",
            ),
            |rate| rate.rtt,
        ),
        (
            Family::new(
                "pepd_path_narrow_connections",
                "Its connections whose own path behind it is narrower than their share, and which are kept to that.",
            ),
            |rate| Some(float(rate.narrow)),
        ),
        (
            Family::new("pepd_path_used", "Whether something was sent by it lately."),
            |rate| Some(f64::from(u8::from(rate.state != RateState::Idle))),
        ),
    ];
    for (family, figure) in &figures {
        let values = rates.iter().filter_map(|rate| {
            let labels = vec![("leg", rate.leg.as_str())];
            Some((labels, figure(rate)?))
        });
        families.gauges(family, values)?;
    }
    limits(families, rates)
}

fn limits(families: &mut Families<'_>, rates: &[FoundRate]) -> fmt::Result {
    let limits = rates.iter().flat_map(|rate| {
        RateLimit::ALL.map(|limit| {
            let labels = vec![("leg", rate.leg.as_str()), ("limit", limit.name())];
            (labels, f64::from(u8::from(rate.limit == Some(limit))))
        })
    });
    families.gauges(
        &Family::new(
            "pepd_path_limit",
            "What limits the rate of such a leg: 1 for what does, all 0 while nothing is sent.",
        ),
        limits,
    )
}
