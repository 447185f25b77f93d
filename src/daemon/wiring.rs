//! The configuration in the terms of the relay and of the kernel state, which do not know it.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use pepd_config::{
    Action, Buffer, Config, Congestion, Dscp, Handshake, InitialWindow, Share, Split, Tos, Via,
    WhileGone,
};
use pepd_packet::{LogGroup, QueueNumber};
use pepd_relay::ListenerAddress;

use crate::daemon::controls::Controls;
use crate::daemon::resources;

/// The first NFQUEUE; each worker reads one.
const FIRST_QUEUE: QueueNumber = QueueNumber(7300);

/// The NFQUEUE of what is held while a link is away, before those of the workers: their number
/// follows the cores.
pub const HOLD_QUEUE: QueueNumber = QueueNumber(7299);

/// The NFQUEUE of what belongs to connections that come from other boxes.
pub const COMING_QUEUE: QueueNumber = QueueNumber(7298);

/// The group of NFLOG by which the headers of connections come that are watched.
pub const MEASURE_GROUP: LogGroup = LogGroup(7300);

/// Gives what the relay is told; `controls` are the legs' of pepd's own.
pub fn settings(config: &Config, controls: &Controls) -> pepd_relay::Settings {
    pepd_relay::Settings {
        port: config.capture.port,
        mark: config.capture.mark.value,
        limits: pepd_relay::Limits {
            connections: config.limits.connections,
            per_source: config.limits.connections_per_source,
            source_prefix: config.limits.ipv6_source_prefix,
            memory: config.limits.memory,
            tcp_memory: resources::tcp_memory(),
        },
        kernel_buffers: resources::kernel_buffers(),
        end_to_end: end_to_end(config),
        legs: config
            .legs
            .iter()
            .map(|of| leg(of, config, controls))
            .collect(),
        campuses: config
            .campuses
            .iter()
            .map(|campus| pepd_relay::Campus {
                name: campus.name.as_str().into(),
                prefixes: campus.prefixes.clone(),
                leg: campus.leg.0,
            })
            .collect(),
        weights: weights(config),
        ended_lines: config.log.connections,
    }
}

/// Gives how SYNs are held, if any are.
fn end_to_end(config: &Config) -> Option<pepd_relay::EndToEnd> {
    let marks = config.capture.mark.verdicts()?;
    config.holds_syns().then_some(pepd_relay::EndToEnd {
        first_queue: FIRST_QUEUE,
        pending: config.limits.pending,
        marks,
    })
}

/// Gives the NFQUEUEs that the daemon does not start without: the workers', and that of what is held while a link is away.
pub fn queues(config: &Config) -> impl Iterator<Item = QueueNumber> {
    let workers = match config.holds_syns() {
        true => resources::workers(config).get(),
        false => 0,
    };
    let away = config.holds_acks().then_some(HOLD_QUEUE);
    away.into_iter()
        .chain(FIRST_QUEUE.and_following().take(workers))
}

/// Gives the rules, if any of them has a weight: the first that matches decides, whatever it says.
fn weights(config: &Config) -> Vec<pepd_relay::WeightRule> {
    if config.rules.iter().all(|rule| rule.weight == 1) {
        return Vec::new();
    }
    let rule = |rule: &pepd_config::Rule| pepd_relay::WeightRule {
        source: rule.source.clone(),
        destination: rule.destination.clone(),
        destination_port: rule.destination_port.clone(),
        weight: rule.weight,
    };
    config.rules.iter().map(rule).collect()
}

/// Gives who shares the leg's rate, if its control shares one.
fn share(leg: &pepd_config::Leg, config: &Config) -> Option<pepd_relay::Share> {
    let congestion = leg.congestion.as_ref();
    let may_share = congestion.is_some_and(|it| it.is_own() || *it == Congestion::Auto);
    may_share.then_some(match leg.share {
        Share::Flow => pepd_relay::Share::Flow,
        Share::Source => pepd_relay::Share::Source(config.limits.ipv6_source_prefix),
    })
}

fn leg(leg: &pepd_config::Leg, config: &Config, controls: &Controls) -> pepd_relay::Leg {
    let marks = config.capture.mark.sockets();
    pepd_relay::Leg {
        name: leg.name.as_str().into(),
        congestion: controls.kernel_name(leg),
        chosen: controls.chosen(leg),
        buffer: leg.buffer.map(|buffer| match buffer {
            Buffer::Size(size) => pepd_relay::Buffer::Size(size),
            Buffer::Auto => pepd_relay::Buffer::Auto,
        }),
        rate: leg.rate,
        fast_open: leg.fast_open,
        mss: leg.mss,
        user_timeout: leg.user_timeout,
        rto_max: leg.rto_max,
        keepalive: pepd_relay::Keepalive {
            idle: leg.keepalive.idle,
            interval: leg.keepalive.interval,
            count: leg.keepalive.count,
        },
        dscp: match leg.dscp {
            Dscp::Copy => pepd_relay::Dscp::Copy,
            Dscp::Set(dscp) => pepd_relay::Dscp::Set(dscp),
        },
        thin: leg.thin,
        notsent_lowat: leg.notsent_lowat,
        connect_timeout: leg.connect_timeout,
        while_gone: match leg.while_gone {
            WhileGone::Wait => pepd_relay::WhileGone::Wait,
            WhileGone::Refuse => pepd_relay::WhileGone::Refuse,
            WhileGone::Route => pepd_relay::WhileGone::Route,
        },
        share: share(leg, config),
        learns_window: leg.initial_window == Some(InitialWindow::Auto),
        client_mark: marks.map(|marks| marks.client),
        upstream_mark: marks.map(|marks| marks.upstream),
        unclaimed_mark: marks.and_then(|marks| marks.unclaimed),
    }
}

/// Gives what the kernel is to do; `listeners` are the relay's, in the order of the legs.
///
/// `backend` is what holds packets on this host, if any are held (SYNs, or what hosts send while a
/// link is away), and `workers` how many read the SYNs.
pub fn request(
    config: &Config,
    listeners: &[ListenerAddress],
    workers: NonZeroUsize,
    backend: Option<pepd_net::QueueBackend>,
) -> pepd_net::Request {
    let campuses = config.campuses.iter().filter_map(|campus| {
        let listener = listeners.get(campus.leg.0)?;
        Some(pepd_net::Campus {
            name: campus.name.clone(),
            prefixes: campus.prefixes.clone(),
            listener: pepd_net::Listener {
                v4: listener.v4,
                v6: listener.v6,
            },
            via: match campus.via {
                Via::Local => pepd_net::Via::Local,
                Via::Routing => pepd_net::Via::Routing,
                Via::Peer(peer) => pepd_net::Via::Peer(peer.0),
            },
            initial_window: config.leg(campus.leg).initial_window.map(|it| match it {
                InitialWindow::Segments(segments) => pepd_net::InitialWindow::Segments(segments),
                InitialWindow::Auto => pepd_net::InitialWindow::Learned,
            }),
        })
    });
    pepd_net::Request {
        node: config.node.name.clone(),
        mark: config.capture.mark,
        table: pepd_net::RouteTable(config.capture.table.0),
        port: config.capture.port,
        source_prefix: config.limits.ipv6_source_prefix,
        handshake: handshake(config.capture.handshake),
        queues: backend
            .filter(|_| config.holds_syns())
            .map(|backend| pepd_net::Queues {
                first: FIRST_QUEUE,
                count: u16::try_from(workers.get()).unwrap_or(u16::MAX),
                backend,
            }),
        hold_acks: backend
            .filter(|_| config.holds_acks())
            .map(|backend| pepd_net::HoldQueue {
                queue: HOLD_QUEUE,
                backend,
            }),
        measure: config.measured().map(|unsplit| pepd_net::Measure {
            unsplit,
            group: MEASURE_GROUP,
            auto: config.capture.split == Split::Auto,
        }),
        neighbors: config.moves.neighbors.iter().map(neighbor).collect(),
        hold_coming: backend.filter(|_| config.moves.may_take()).map(|backend| {
            pepd_net::HoldQueue {
                queue: COMING_QUEUE,
                backend,
            }
        }),
        campuses: campuses.collect(),
        peers: config.peers.iter().map(peer).collect(),
        rules: config.rules.iter().map(rule).collect(),
        windows: BTreeMap::new(),
    }
}

fn neighbor(neighbor: &pepd_config::Neighbor) -> pepd_net::Neighbor {
    pepd_net::Neighbor {
        v4: neighbor.v4,
        v6: neighbor.v6,
    }
}

fn peer(peer: &pepd_config::Peer) -> pepd_net::Peer {
    pepd_net::Peer {
        name: peer.name.clone(),
        local: peer.local,
        remote: peer.remote,
        mtu: peer.mtu,
        ttl: peer.ttl,
        tos: match peer.tos {
            Tos::Inherit => None,
            Tos::Set(byte) => Some(byte),
        },
        inside: peer.inside.clone(),
        reverse_path_filter: peer.reverse_path_filter,
        keep: peer.keep,
    }
}

fn rule(rule: &pepd_config::Rule) -> pepd_net::Rule {
    pepd_net::Rule {
        source: rule.source.clone(),
        destination: rule.destination.clone(),
        destination_port: rule.destination_port.clone(),
        action: match rule.action {
            Action::Split => pepd_net::Action::Split,
            Action::Auto => pepd_net::Action::Auto,
            Action::Bypass => pepd_net::Action::Bypass,
            Action::HoldAcks => pepd_net::Action::HoldAcks,
        },
        handshake: rule.handshake.map(handshake),
    }
}

fn handshake(handshake: Handshake) -> pepd_net::Handshake {
    match handshake {
        Handshake::Early => pepd_net::Handshake::Early,
        Handshake::EndToEnd => pepd_net::Handshake::EndToEnd,
    }
}
