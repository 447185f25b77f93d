//! The metrics of the links under the legs.

use std::fmt;

use pepd_telemetry::Counters;

use super::collect::float;
use super::families::{Families, Family};
use crate::wire::{Held, LinkReport, LinkState, Status};

/// Writes what is known of the links under the legs, and what is held while they are gone.
pub(super) fn write(
    families: &mut Families<'_>,
    counters: &Counters,
    status: &Status,
) -> fmt::Result {
    let links = &status.links;
    families.gauges(
        &Family::new(
            "pepd_link_state",
            "Whether the link under a leg is there: 1 for the state it is in.",
        ),
        links.iter().flat_map(|link| {
            LinkReport::ALL.map(|state| {
                let labels = vec![("leg", link.leg.as_str()), ("state", state.name())];
                (labels, f64::from(u8::from(state == link.state)))
            })
        }),
    )?;
    families.counts(
        &Family::new("pepd_link_changes", "Changes of the state of a leg's link."),
        links
            .iter()
            .map(|link| (vec![("leg", link.leg.as_str())], link.changes)),
    )?;
    families.gauges(
        &Family::new(
            "pepd_link_waiting",
            "New connections that wait until the link under a leg is there.",
        ),
        links
            .iter()
            .map(|link| (vec![("leg", link.leg.as_str())], float(link.waiting))),
    )?;
    modems(families, links)?;
    if let Some(now) = &status.held {
        held(families, now)?;
    }
    families.counts(
        &Family::new(
            "pepd_legs_restarted",
            "Legs that had stopped and were restarted when their link was back.",
        ),
        [(vec![], counters.restarted.get())],
    )
}

/// What modems say of the links under legs.
fn modems(families: &mut Families<'_>, links: &[LinkState]) -> fmt::Result {
    let told = |link: &LinkState| link.modem.clone();
    let told = links
        .iter()
        .filter_map(|link| Some((vec![("leg", link.leg.as_str())], told(link)?)));
    let told: Vec<_> = told.collect();
    families.gauges(
        &Family::new(
            "pepd_link_session",
            "Whether there is a DLEP session with the modem of a leg's link.",
        ),
        told.iter()
            .map(|(leg, modem)| (leg.clone(), f64::from(u8::from(modem.session.is_some())))),
    )?;
    families.gauges(
        &Family::new(
            "pepd_link_rate_bytes_per_second",
            "The rate at which a leg's link carries packets at present, as its modem says.",
        ),
        told.iter().flat_map(|(leg, modem)| {
            let rates = [("out", modem.transmit_rate), ("in", modem.receive_rate)];
            rates.into_iter().filter_map(|(direction, rate)| {
                let labels = [&leg[..], &[("direction", direction)]].concat();
                Some((labels, float(rate?) / 8.0))
            })
        }),
    )?;
    families.gauges(
        &Family::new(
            "pepd_link_latency_seconds",
            "The time that a packet takes over a leg's link, as its modem says.",
        ),
        told.iter()
            .filter_map(|(leg, modem)| Some((leg.clone(), modem.latency?))),
    )
}

/// What is held of connections that stay end to end.
fn held(families: &mut Families<'_>, held: &Held) -> fmt::Result {
    let gauges = [
        (
            Family::new(
                "pepd_held_connections",
                "Connections that stay end to end and of which something is held because a link is gone.",
            ),
            held.connections,
        ),
        (Family::new("pepd_held_acks", "ACKs that wait."), held.acks),
        (
            Family::new(
                "pepd_held_packets",
                "Packets that are kept for hosts behind a link that is gone.",
            ),
            held.packets,
        ),
        (
            Family::new("pepd_held_bytes", "The bytes of these packets."),
            held.bytes,
        ),
    ];
    for (family, value) in gauges {
        families.gauges(&family, [(vec![], float(value))])?;
    }
    families.counts(
        &Family::new(
            "pepd_held",
            "What has been held since the start: ACKs that waited, parts of ACKs that were made, packets that \
             were kept, those that were not because the same had arrived or was kept, and those for which \
             there was no room.",
        ),
        [
            ("acks", held.acks_total),
            ("parts", held.parts_total),
            ("packets", held.packets_total),
            ("repeated", held.repeated_total),
            ("beyond", held.beyond_total),
        ]
        .map(|(what, count)| (vec![("what", what)], count)),
    )
}
