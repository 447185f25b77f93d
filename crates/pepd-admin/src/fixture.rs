//! A daemon that exists on paper only: what it says is always the same, so that what is made
//! of it can be compared. For tests.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use pepd_telemetry::Counters;

use crate::view::View;
use crate::wire::{
    API_VERSION, ArrivalSnapshot, AutoBuffers, BufferFigures, BufferSum, CampusReadiness,
    CampusSnapshot, Carried, ChosenControl, Compared, Confinement, CountedReason, DaemonState,
    DirectionPoint, DirectionSnapshot, Fit, FlowHistory, FlowSnapshot, FoundRate, GainInterval,
    Goodput, GuardDrops, HandshakeMode, Held, HistoryPoint, HistoryStep, LegBuffers, LegHistory,
    LegHistoryPoint, LegPoint, LegSnapshot, LegState, LimitUse, LinkReport, LinkState, Liveness,
    LoadedRtt, Measured, ModemState, MoveCounts, NeighborMoves, NetworkWindow, Outage,
    PairDirection, PairLeg, PairSnapshot, PairWorth, PeerState, Phase, PhaseSeconds, QueueBytes,
    RateLimit, RateState, Readiness, SizedBy, Status, TcpFigures, WindowReason, Worth, WorthChoice,
};

/// 2026-01-01T00:00:00Z, when everything is asked.
pub const NOW: f64 = 1_767_225_600.0;

/// The daemon.
#[derive(Debug, Default)]
pub struct Fixture {
    /// The number of its connections.
    pub flows: u64,
    counters: Counters,
}

impl Fixture {
    /// Creates a daemon with so many connections.
    pub fn new(flows: u64) -> Self {
        Self {
            flows,
            counters: Counters::default(),
        }
    }
}

impl View for Fixture {
    fn status(&self) -> Status {
        status(self.flows)
    }

    fn readiness(&self) -> Readiness {
        readiness()
    }

    fn flows(&self) -> Vec<FlowSnapshot> {
        // In no order.
        (1..=self.flows).rev().map(flow).collect()
    }

    fn flow(&self, id: u64) -> Option<FlowSnapshot> {
        (1..=self.flows).contains(&id).then(|| flow(id))
    }

    fn history(&self, id: u64) -> Option<FlowHistory> {
        (1..=self.flows).contains(&id).then(|| history(id))
    }

    fn leg_history(&self, leg: &str, step: HistoryStep, since: f64) -> Option<LegHistory> {
        let mut history = (leg == "satellite").then(|| leg_history(step))?;
        history.points.retain(|point| point.time > since);
        Some(history)
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// Returns what was seen of the satellite leg over time: a download that begins.
pub fn leg_history(step: HistoryStep) -> LegHistory {
    let seconds = [1.0, 60.0][usize::from(step == HistoryStep::Minute)];
    let point = |ago: i32| LegHistoryPoint {
        time: NOW - seconds * f64::from(ago),
        sent: if ago > 30 { 1e6 } else { 46e6 },
        resent: 0.012,
        busy: if ago > 30 { 0.0 } else { 1.0 },
        rtt: Some(if ago > 30 { 0.61 } else { 0.98 }),
        slow_rtt: Some(if ago > 30 { 0.63 } else { 1.1 }),
        least_rtt: Some(0.6),
        path: None,
    };
    LegHistory {
        leg: "satellite".to_owned(),
        step,
        points: (0..60).rev().map(point).collect(),
    }
}

/// Returns connection `id`: a download over a satellite, which each third one does by IPv6.
pub fn flow(id: u64) -> FlowSnapshot {
    let n = u32::try_from(id % 100).unwrap_or(0);
    let port = u16::try_from(40_000 + id % 20_000).unwrap_or(0);
    let host = u16::try_from(1 + id % 250).unwrap_or(1);
    let (client, server) = if id.is_multiple_of(3) {
        (
            SocketAddr::from((Ipv6Addr::new(0xfd00, 0xa, 0, 0, 0, 0, 0, host), port)),
            SocketAddr::from((Ipv6Addr::new(0xfd00, 0xb, 0, 0, 0, 0, 0, 2), 443)),
        )
    } else {
        let host = u8::try_from(host).unwrap_or(1);
        (
            SocketAddr::from((Ipv4Addr::new(10, 1, 0, host), port)),
            SocketAddr::from((Ipv4Addr::new(10, 2, 0, 2), 443)),
        )
    };
    let rate = 48e6 / f64::from(n + 1);
    let age = 30.0 + 7.5 * f64::from(n);
    FlowSnapshot {
        id,
        client,
        server,
        client_campus: "a".to_owned(),
        server_campus: "b".to_owned(),
        handshake: HandshakeMode::EndToEnd,
        started: NOW - age,
        age,
        first_byte: Some(0.62),
        came: (id == 1).then(|| ArrivalSnapshot {
            from: "hb-c".to_owned(),
            pause: 0.041,
            age: 95.0,
        }),
        up: direction(rate / 100.0, age, Phase::Starved, n),
        down: direction(rate, age, Phase::Backpressured, n),
        client_leg: leg("lan", "cubic", 0.0004, 0),
        upstream_leg: leg("satellite", "bbr", 0.6, n),
    }
}

fn direction(rate: f64, age: f64, most: Phase, n: u32) -> DirectionSnapshot {
    let share = |phase| {
        if phase == most {
            0.9
        } else if phase == Phase::Free {
            0.08
        } else {
            0.02
        }
    };
    let full = u64::from(most == Phase::Backpressured);
    DirectionSnapshot {
        bytes: bytes(rate * age / 8.0),
        goodput: Goodput {
            last_second: rate * 1.1,
            last_ten_seconds: rate,
            life: rate * 0.9,
        },
        phase: Some(most),
        phases: PhaseSeconds {
            free: age * share(Phase::Free),
            starved: age * share(Phase::Starved),
            backpressured: age * share(Phase::Backpressured),
        },
        idle: 0.0,
        queue: QueueBytes {
            unread: full * 1_048_576,
            pipe: full * 262_144,
            unsent: full * (400_000 + 1000 * u64::from(n)),
        },
        queue_max: full * 6_291_456,
    }
}

fn leg(profile: &str, congestion: &str, rtt: f64, lost: u32) -> LegSnapshot {
    LegSnapshot {
        profile: profile.to_owned(),
        congestion: Some(congestion.to_owned()),
        link: LinkReport::Up,
        tcp: Some(TcpFigures {
            rtt,
            rtt_variation: rtt / 20.0,
            min_rtt: Some(rtt * 0.95),
            cwnd: 10 + lost * 40,
            mss: 1448,
            unacked: 7,
            lost: 0,
            retransmitted_segments: lost,
            retransmitted_bytes: Some(u64::from(lost) * 1448),
            sent_bytes: Some(4_000_000),
            sent_segments: None,
            delivered_segments: None,
            pacing_rate: Some(50e6),
            delivery_rate: Some(47e6),
            busy: Some(20.0),
            receive_window_limited: Some(1.0),
            send_buffer_limited: Some(0.0),
        }),
        buffers: Some(LegBuffers {
            send: BufferFigures {
                held: 3_800_000,
                size: 16 << 20,
                why: SizedBy::Path,
            },
            receive: BufferFigures {
                held: 0,
                size: 131_072,
                why: SizedBy::Kernel,
            },
        }),
    }
}

fn windows() -> Vec<NetworkWindow> {
    let window = |network: &str, segments, why, under_way, loss| NetworkWindow {
        leg: "satellite".to_owned(),
        network: network.to_owned(),
        segments,
        why,
        under_way,
        loss,
        unused: 2.0,
    };
    vec![
        window("10.2.3.0/24", 75, WindowReason::Rate, 150.0, 0.001),
        window("10.2.9.0/24", 20, WindowReason::Loss, 180.0, 0.071),
        window("fd00:b::/48", 40, WindowReason::Trial, 210.5, 0.0),
        window("10.2.77.0/24", 10, WindowReason::Kernel, 0.0, 0.0),
    ]
}

fn buffers() -> AutoBuffers {
    AutoBuffers {
        leg: "satellite".to_owned(),
        send: BufferSum {
            held: 9_437_184,
            largest: 16 << 20,
            kernel: 117,
            path: 3,
            memory: 0,
        },
        receive: BufferSum {
            held: 40_960,
            largest: 6 << 20,
            kernel: 120,
            ..BufferSum::default()
        },
    }
}

/// Returns the last two minutes of connection `id`, with a pause of ten seconds.
pub fn history(id: u64) -> FlowHistory {
    let seconds = (0..120_u32).filter(|second| !(60..70).contains(second));
    FlowHistory {
        id,
        points: seconds.map(point).collect(),
    }
}

fn point(second: u32) -> HistoryPoint {
    // A tooth every 20 seconds.
    let wave = f64::from(second % 20) / 20.0;
    let direction = |rate: f64, phases| DirectionPoint {
        goodput: rate * wave,
        phases,
        queue: bytes(wave * 2_000_000.0),
    };
    let leg = |rtt: f64| LegPoint {
        rtt: rtt * (1.0 + wave / 2.0),
        cwnd: 10 + 20 * (second % 20),
        retransmitted_segments: u32::from(second.is_multiple_of(20)),
    };
    let phases = |free, starved, backpressured| PhaseSeconds {
        free,
        starved,
        backpressured,
    };
    HistoryPoint {
        time: NOW - 119.0 + f64::from(second),
        up: direction(480e3, phases(0.1, 0.9, 0.0)),
        down: direction(48e6, phases(0.1, 0.0, 0.9)),
        client_leg: leg(0.0004),
        upstream_leg: leg(0.6),
    }
}

/// A link that was gone for ten seconds.
fn link() -> LinkState {
    LinkState {
        leg: "satellite".to_owned(),
        state: LinkReport::Up,
        source: "dlep modem".to_owned(),
        by: Some("dlep modem".to_owned()),
        up_at: None,
        flaps: false,
        since: Some(NOW - 740.0),
        changes: 2,
        waiting: 0,
        modem: Some(ModemState {
            session: Some("192.0.2.10:854".to_owned()),
            sessions: 1,
            transmit_rate: Some(20_000_000),
            receive_rate: Some(50_000_000),
            latency: Some(0.27),
        }),
        outages: vec![Outage {
            begun: NOW - 750.0,
            ended: Some(NOW - 740.0),
        }],
    }
}

/// Returns that of a box that is fit, but for a campus whose peer is silent.
pub fn readiness() -> Readiness {
    let campus = |name: &str, fit: Fit| CampusReadiness {
        name: name.to_owned(),
        new: fit.clone(),
        live: fit,
    };
    let silent = "the peer hb-k is silent";
    let but = Fit {
        fit: true,
        why: Some(format!("but not for campus c: {silent}")),
    };
    Readiness {
        new: but.clone(),
        live: but,
        campuses: vec![
            campus("a", Fit::yes()),
            campus("b", Fit::yes()),
            campus("c", Fit::unfit(silent)),
        ],
    }
}

/// Returns what the daemon says of itself when it has `flows` connections.
pub fn status(flows: u64) -> Status {
    let text = str::to_owned;
    let count = |name: &str, count, meaning: &str| CountedReason {
        name: text(name),
        count,
        meaning: text(meaning),
    };
    let campus = |name: &str, prefixes: &[&str], via: &str, leg: &str| CampusSnapshot {
        name: text(name),
        prefixes: prefixes.iter().copied().map(text).collect(),
        via: text(via),
        leg: text(leg),
    };
    Status {
        api: API_VERSION,
        version: text("0.1.0"),
        node: text("hb-a"),
        state: DaemonState::Splitting,
        started: NOW - 93_784.0,
        uptime: 93_784.0,
        workers: 4,
        ready: Some(readiness()),
        reload: None,
        trouble: None,
        confinement: Some(confinement()),
        survival: None,
        limits: limits(flows),
        counters: vec![
            count("accepted", 123_456, "connections split"),
            count("closed", 123_000, "connections that ended with both FINs"),
            count("upstream_failed", 0, "errors on the upstream leg"),
        ],
        routed: vec![
            count("bypassed", 420, "SYNs routed: a rule exempts them"),
            count("repeated", 0, "SYNs routed: they repeat one that was"),
        ],
        failures: Vec::new(),
        campuses: vec![
            campus("a", &["10.1.0.0/16", "fd00:a::/48"], "local", "lan"),
            campus("b", &["10.2.0.0/16", "fd00:b::/48"], "hb-i", "satellite"),
        ],
        pairs: vec![pair(flows)],
        links: vec![link()],
        legs: legs(),
        rates: vec![rate()],
        chosen: vec![chosen()],
        buffers: vec![buffers()],
        windows: windows(),
        held: Some(held()),
        worth: Some(worth()),
        moves: Some(moves()),
        peers: peers(),
        guards: guards(),
        alarms: Vec::new(),
        advice: vec![text(
            "a → b is limited by the leg `satellite`, whose buffer (1 MiB) is smaller than \
             bandwidth × RTT (3.4 MiB): raise [leg.satellite] buffer",
        )],
    }
}

fn peers() -> Vec<PeerState> {
    vec![
        peer("hb-i", Liveness::Answering, Some(0.6), 2),
        peer("hb-k", Liveness::Silent, None, 480),
    ]
}

fn guards() -> Vec<GuardDrops> {
    let drops = |peer: Option<&str>, packets, bytes| GuardDrops {
        peer: peer.map(str::to_owned),
        packets,
        bytes,
        unreachable: if peer.is_some() { 3 } else { 0 },
    };
    vec![drops(Some("hb-i"), 12, 1008), drops(None, 0, 0)]
}

fn rate() -> FoundRate {
    FoundRate {
        leg: "radio".to_owned(),
        state: RateState::Found,
        rate: 38_200_000,
        capacity: 39_600_000,
        loss: 0.052,
        queue: 0.0048,
        rtt: Some(0.0212),
        limit: Some(RateLimit::Link),
        narrow: 2,
    }
}

fn legs() -> Vec<LegState> {
    let leg = |leg: &str, sent: f64, resent, least_rtt, loaded: Option<[f64; 3]>| LegState {
        leg: leg.to_owned(),
        sent,
        resent,
        sent_bytes: bytes(sent * 9000.0),
        resent_bytes: bytes(sent * 9000.0 * resent.unwrap_or(0.0)),
        busy_seconds: if loaded.is_some() { 5400.0 } else { 0.0 },
        least_rtt,
        loaded_rtt: loaded.map(|[median, p95, added]| LoadedRtt {
            median,
            p95,
            added,
            samples: 4800,
        }),
        carried: loaded.map(|_| Carried {
            median: (sent * (1.0 - resent.unwrap_or(0.0))).round(),
            bytes: bytes(sent * 30.0),
        }),
    };
    vec![
        leg("lan", 131e6, Some(0.0), Some(0.000_31), None),
        leg(
            "radio",
            38.1e6,
            Some(0.052),
            Some(0.0212),
            Some([0.0258, 0.0313, 0.0046]),
        ),
        leg(
            "satellite",
            1.2e6,
            Some(0.012),
            Some(0.6),
            Some([0.98, 1.1, 0.38]),
        ),
    ]
}

fn confinement() -> Confinement {
    Confinement {
        user: "pepd".to_owned(),
        capabilities: ["CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE"]
            .map(str::to_owned)
            .to_vec(),
        system_calls_filtered: true,
        landlock: Some(2),
    }
}

fn limits(flows: u64) -> Vec<LimitUse> {
    let limit = |name: &str, used, limit| LimitUse {
        name: name.to_owned(),
        used,
        limit,
    };
    vec![
        limit("connections", flows, 8000),
        limit("pending", 3, 1024),
        limit("descriptors", 2 * flows + 90, 20_000),
        limit("pipes", flows / 2, 1944),
    ]
}

fn pair(flows: u64) -> PairSnapshot {
    let direction = |goodput, starved, backpressured| PairDirection {
        bytes: bytes(goodput * 9000.0),
        goodput,
        phases: PhaseSeconds {
            free: 1000.0,
            starved: starved * 100.0,
            backpressured: backpressured * 100.0,
        },
        recent_phases: PhaseSeconds {
            free: 10.0,
            starved,
            backpressured,
        },
    };
    let leg = |profile: &str, rtt, retransmitted| PairLeg {
        profile: profile.to_owned(),
        rtt: Some(rtt),
        retransmitted: Some(retransmitted),
        sent_bytes: 2_400_000_000,
    };
    PairSnapshot {
        client_campus: "a".to_owned(),
        server_campus: "b".to_owned(),
        live: flows,
        accepted: 123_456,
        up: direction(1.2e6, 90.0, 2.0),
        down: direction(131e6, 3.0, 88.0),
        client_leg: leg("lan", 0.0004, 0.0),
        upstream_leg: leg("satellite", 0.6, 0.012),
    }
}

fn peer(name: &str, liveness: Liveness, rtt: Option<f64>, lost: u64) -> PeerState {
    PeerState {
        name: name.to_owned(),
        liveness,
        since: Some(NOW - 7200.0),
        rtt,
        probes: 18_756,
        lost,
        elsewhere: false,
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures made up to be small and positive"
)]
fn bytes(number: f64) -> u64 {
    number as u64
}

/// Something of everything.
fn held() -> Held {
    Held {
        connections: 3,
        acks: 24,
        packets: 80,
        bytes: 120_000,
        acks_total: 30,
        parts_total: 4,
        packets_total: 90,
        repeated_total: 5,
        beyond_total: 2,
    }
}

fn chosen() -> ChosenControl {
    ChosenControl {
        leg: "satellite".to_owned(),
        congestion: "bbr".to_owned(),
        of: vec!["cubic".to_owned(), "bbr".to_owned()],
        since: NOW - 480.0,
        trial: true,
        changes: 1,
        reason: "no_queue".to_owned(),
        why: "1.2 % was sent again while round trips were no more than 3.00 ms longer than at the least: these \
              losses are no congestion"
            .to_owned(),
    }
}

fn moves() -> MoveCounts {
    MoveCounts {
        neighbors: vec![NeighborMoves {
            neighbor: "hb-c".to_owned(),
            given: 812,
            taken: 44,
            lost: 0,
            longest_pause: 0.183,
        }],
        refused: 2,
        sent_on: 40_318,
    }
}

fn worth() -> Worth {
    let measured = |connections, median| Measured {
        connections,
        median,
    };
    let compared = |quantity: &str, split, unsplit, gain: Option<[f64; 3]>| Compared {
        quantity: quantity.to_owned(),
        split,
        unsplit,
        gain: gain.map(|[low, factor, high]| GainInterval { factor, low, high }),
    };
    let first_byte = [measured(200, Some(1.22)), measured(196, Some(1.21))];
    let short = [measured(140, Some(1.9)), measured(133, Some(2.9))];
    let long = [measured(31, Some(42e6)), measured(14, Some(9e6))];
    Worth {
        unsplit: 0.01,
        fewest: 20,
        pairs: vec![PairWorth {
            client_campus: "a".to_owned(),
            server_campus: "b".to_owned(),
            compared: vec![
                compared(
                    "first_byte",
                    first_byte[0],
                    first_byte[1],
                    Some([0.97, 1.0, 1.02]),
                ),
                compared("up_to_100kB", short[0], short[1], Some([1.4, 1.52, 1.66])),
                compared("longer", long[0], long[1], None),
            ],
            choice: Some(WorthChoice {
                splits: true,
                explores: false,
                changes: 0,
            }),
        }],
    }
}
