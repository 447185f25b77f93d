//! From a [`View`] to metric families.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::families::{Families, Family, Labels};
use super::{buffers, chosen, legs, links, moves, process, rates, ready, survival, worth};
use crate::view::View;
use crate::wire::{
    Alarm, CountedReason, DaemonState, GuardDrops, Liveness, PairDirection, PairSnapshot,
    PeerState, Phase, Side, Status,
};
use pepd_telemetry::{Counters, CountersBy, LegMeasurements, Measurements, Reason};

/// Reads the daemon's figures each time that it is asked.
pub(super) struct Collect(Arc<dyn View>);

impl Collect {
    pub(super) fn new(view: Arc<dyn View>) -> Self {
        Self(view)
    }
}

impl fmt::Debug for Collect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collect").finish_non_exhaustive()
    }
}

impl Collector for Collect {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = self.0.status();
        let counters = self.0.counters();
        let families = &mut Families(encoder);
        daemon(families, &status)?;
        ready::write(families, status.ready.as_ref())?;
        outcomes(families, counters, &status)?;
        pairs(families, &status.pairs)?;
        sides(families, &counters.measurements)?;
        handshakes(families, counters)?;
        routed(families, &status.routed)?;
        shortages(families, counters)?;
        survival::write(families, status.survival.as_ref())?;
        worth::write(families, status.worth.as_ref())?;
        moves::write(families, status.moves.as_ref())?;
        peers(families, &status.peers)?;
        guards(families, &status.guards)?;
        links::write(families, counters, &status)?;
        legs::write(families, &status.legs, &counters.measurements)?;
        rates::write(families, &status.rates)?;
        chosen::write(families, &status.chosen)?;
        buffers::write(families, &status.buffers)?;
        process::write(families)
    }
}

fn daemon(families: &mut Families<'_>, status: &Status) -> fmt::Result {
    families.gauges(
        &Family::new("pepd_build_info", "The daemon's version; always 1."),
        [(
            vec![
                ("version", status.version.as_str()),
                ("node", status.node.as_str()),
            ],
            1.0,
        )],
    )?;
    families.gauges(
        &Family::new(
            "pepd_state",
            "What the daemon does: 1 for the state it is in.",
        ),
        DaemonState::ALL.map(|state| {
            let is = if state == status.state { 1.0 } else { 0.0 };
            (vec![("state", state.name())], is)
        }),
    )?;
    alarms(families, &status.alarms)?;
    let limits = || {
        status
            .limits
            .iter()
            .map(|limit| (named(&limit.name), limit))
    };
    families.gauges(
        &Family::new("pepd_resource_used", "How much is used of what is limited."),
        limits().map(|(labels, limit)| (labels, float(limit.used))),
    )?;
    families.gauges(
        &Family::new("pepd_resource_limit", "The most that may be used of it."),
        limits().map(|(labels, limit)| (labels, float(limit.limit))),
    )
}

fn alarms(families: &mut Families<'_>, alarms: &[Alarm]) -> fmt::Result {
    families.gauges(
        &Family::new(
            "pepd_alarm",
            "What stands in the way of connections: 1 for each cause that does, 0 for the others.",
        ),
        Alarm::CAUSES.map(|cause| {
            let stands = alarms.iter().any(|alarm| alarm.cause == cause);
            (vec![("cause", cause)], f64::from(u8::from(stands)))
        }),
    )
}

fn named(resource: &str) -> Labels<'_> {
    vec![("resource", resource)]
}

/// Connections by how they ended. The part of a counter that has no errno is given without one, so
/// that the samples add up to the connections.
fn outcomes(families: &mut Families<'_>, counters: &Counters, status: &Status) -> fmt::Result {
    let mut samples: Vec<(Labels<'_>, u64)> = Vec::new();
    let mut ended = |outcome, side, errno, count| {
        samples.push((
            vec![("outcome", outcome), ("side", side), ("errno", errno)],
            count,
        ));
    };
    ended("closed", "", "", counters.closed.get());
    for (side, all) in [
        (Side::Client, &counters.client_failed),
        (Side::Upstream, &counters.upstream_failed),
    ] {
        let name = side.name();
        let mut rest = all.get();
        for failure in status
            .failures
            .iter()
            .filter(|failure| failure.side == side)
        {
            ended("failed", name, failure.errno.as_str(), failure.count);
            rest = rest.saturating_sub(failure.count);
        }
        ended("failed", name, "", rest);
    }
    ended("cut", "", "", counters.cut.get());
    ended(
        "unreachable",
        Side::Upstream.name(),
        "",
        counters.unreachable.get(),
    );
    ended("refused", "", "", counters.refused.get());
    ended("source_full", "", "", counters.source_full.get());
    families.counts(
        &Family::new(
            "pepd_connections_ended",
            "Connections that ended, by how, on which leg and with which error.",
        ),
        samples,
    )?;
    families.counts(
        &Family::new("pepd_connections_accepted", "Connections accepted."),
        [(vec![], counters.accepted.get())],
    )?;
    families.gauges(
        &Family::new("pepd_connections", "Connections being split now."),
        [(vec![], float(counters.live.get()))],
    )
}

/// A direction of a pair, by name.
type Direction = (&'static str, fn(&PairSnapshot) -> &PairDirection);

const DIRECTIONS: [Direction; 2] = [("up", |pair| &pair.up), ("down", |pair| &pair.down)];

fn pairs(families: &mut Families<'_>, pairs: &[PairSnapshot]) -> fmt::Result {
    let directed = || {
        pairs.iter().flat_map(|pair| {
            DIRECTIONS.map(|(name, of)| {
                let mut labels = campuses(&pair.client_campus, &pair.server_campus);
                labels.push(("direction", name));
                (labels, of(pair))
            })
        })
    };
    families.gauges(
        &Family::new("pepd_pair_connections", "Connections of a campus pair now."),
        pairs.iter().map(|pair| {
            let labels = campuses(&pair.client_campus, &pair.server_campus);
            (labels, float(pair.live))
        }),
    )?;
    families.counts(
        &Family::new(
            "pepd_pair_connections_accepted",
            "Connections of a campus pair accepted.",
        ),
        pairs.iter().map(|pair| {
            let labels = campuses(&pair.client_campus, &pair.server_campus);
            (labels, pair.accepted)
        }),
    )?;
    families.counts(
        &Family::bytes(
            "pepd_relayed",
            "Payload that the far end of the outgoing leg has acknowledged; up is from client to server.",
        ),
        directed().map(|(labels, direction)| (labels, direction.bytes)),
    )?;
    families.sums(
        &Family::seconds(
            "pepd_phase",
            "Connection time by what limited the direction: free is neither leg, starved the \
             incoming one, backpressured the outgoing one.",
        ),
        directed().flat_map(|(labels, direction)| {
            let phases = direction.phases;
            Phase::ALL.map(|phase| {
                let mut labels = labels.clone();
                labels.push(("phase", phase.name()));
                (labels, phases.of(phase))
            })
        }),
    )
}

pub(super) fn campuses<'l>(client: &'l str, server: &'l str) -> Labels<'l> {
    vec![("client_campus", client), ("server_campus", server)]
}

fn sides(families: &mut Families<'_>, measurements: &Measurements) -> fmt::Result {
    let pairs = measurements.pairs();
    let legs = |of: fn(&LegMeasurements) -> _| {
        pairs
            .iter()
            .flat_map(move |((client, server), measured)| {
                Side::ALL.map(|side| {
                    let mut labels = campuses(client, server);
                    labels.push(("leg", side.name()));
                    (labels, of(measured.leg(side)))
                })
            })
            .collect::<Vec<_>>()
    };
    families.histograms(
        &Family::seconds(
            "pepd_leg_rtt",
            "Smoothed round-trip time of a leg, sampled each second in which its connection was active.",
        ),
        legs(|leg| leg.rtt.snapshot()),
    )?;
    families.histograms(
        &Family::new(
            "pepd_leg_retransmitted_ratio",
            "Share of what a leg sent that was sent again, counted when the leg ended.",
        ),
        legs(|leg| leg.retransmitted.snapshot()),
    )
}

fn handshakes(families: &mut Families<'_>, counters: &Counters) -> fmt::Result {
    families.gauges(
        &Family::new(
            "pepd_held_syns_pending",
            "SYNs held until their destination answers, and upstream legs waiting for their clients.",
        ),
        [(vec![], float(counters.pending.get()))],
    )?;
    families.counts(
        &Family::new("pepd_held_syns", "Flows whose SYN was held."),
        [(vec![], counters.held.get())],
    )?;
    families.counts(
        &Family::new(
            "pepd_held_syns_failed",
            "Held SYNs that became no connection, by what their destination or client did.",
        ),
        by_reason("fate", &counters.held_syns_failed),
    )?;
    families.counts(
        &Family::new(
            "pepd_bypasses",
            "Connections that were to be split and were routed instead, by reason.",
        ),
        by_reason("reason", &counters.unsplit),
    )
}

/// Returns the counts of all reasons, each with its name as the value of `label`.
fn by_reason<R: Reason>(
    label: &'static str,
    counters: &CountersBy<R>,
) -> impl Iterator<Item = (Labels<'static>, u64)> {
    let counts = counters.iter();
    counts.map(move |(reason, count)| (vec![(label, reason.name())], count))
}

fn routed(families: &mut Families<'_>, routed: &[CountedReason]) -> fmt::Result {
    families.counts(
        &Family::new(
            "pepd_routed_syns",
            "SYNs between campuses that the kernel routed without the daemon, by reason.",
        ),
        routed
            .iter()
            .map(|syns| (vec![("reason", syns.name.as_str())], syns.count)),
    )
}

fn shortages(families: &mut Families<'_>, counters: &Counters) -> fmt::Result {
    families.counts(
        &Family::new(
            "pepd_upstream_port_changes",
            "Upstream legs that could not use the client's port and took another of its address.",
        ),
        [(vec![], counters.other_port.get())],
    )?;
    families.counts(
        &Family::new(
            "pepd_accept_pauses",
            "Times that accepting paused because descriptors had run out.",
        ),
        [(vec![], counters.accept_pauses.get())],
    )?;
    families.counts(
        &Family::new(
            "pepd_copies_without_pipe",
            "Times that a direction had to copy: no pipe, or no memory for splice.",
        ),
        [(vec![], counters.copied_without_pipe.get())],
    )
}

fn peers(families: &mut Families<'_>, peers: &[PeerState]) -> fmt::Result {
    let labels = |peer| vec![("peer", peer)];
    families.gauges(
        &Family::new(
            "pepd_peer_up",
            "Whether a helper box answers through its tunnel; absent while that is not known.",
        ),
        peers.iter().filter_map(|peer| {
            let up = match peer.liveness {
                Liveness::Answering => 1.0,
                Liveness::Silent => 0.0,
                Liveness::Unknown | Liveness::Unprobed => return None,
            };
            Some((labels(peer.name.as_str()), up))
        }),
    )?;
    families.gauges(
        &Family::seconds(
            "pepd_peer_rtt",
            "Round-trip time of the last probe through the tunnel that was answered.",
        ),
        peers
            .iter()
            .filter_map(|peer| Some((labels(peer.name.as_str()), peer.rtt?))),
    )?;
    families.counts(
        &Family::new("pepd_peer_probes", "Probes sent through the tunnel."),
        peers
            .iter()
            .map(|peer| (labels(peer.name.as_str()), peer.probes)),
    )?;
    families.counts(
        &Family::new("pepd_peer_probes_lost", "Probes that were not answered."),
        peers
            .iter()
            .map(|peer| (labels(peer.name.as_str()), peer.lost)),
    )
}

fn guards(families: &mut Families<'_>, guards: &[GuardDrops]) -> fmt::Result {
    families.counts(
        &Family::new(
            "pepd_guard_dropped_packets",
            "Packets out of a tunnel that were not from a campus behind it, or not for one.",
        ),
        guards
            .iter()
            .filter_map(|guard| Some((vec![("peer", guard.peer.as_deref()?)], guard.packets))),
    )?;
    families.counts(
        &Family::new(
            "pepd_guard_unreachable_packets",
            "ICMP errors, dropped, that said of a tunnel's peer that it cannot be reached.",
        ),
        guards
            .iter()
            .filter_map(|guard| Some((vec![("peer", guard.peer.as_deref()?)], guard.unreachable))),
    )?;
    families.counts(
        &Family::new(
            "pepd_guard_strangers_packets",
            "IP in IP to this box that came from no peer.",
        ),
        guards
            .iter()
            .filter(|guard| guard.peer.is_none())
            .map(|guard| (vec![], guard.packets)),
    )
}

/// Converts a count: exact up to 2^53, and Prometheus holds every value like this.
#[allow(clippy::cast_precision_loss, reason = "as said")]
pub(super) fn float(n: u64) -> f64 {
    n as f64
}
