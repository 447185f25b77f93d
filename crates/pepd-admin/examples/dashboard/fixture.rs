//! A daemon that is none: figures that change as they would, for looking at the page and the
//! metrics without traffic.
//!
//! Two campuses behind a satellite hop and one at hand. Downloads over the hop are limited by
//! it, and so backpressured; uploads from behind it starve the near leg.

use std::f64::consts::TAU;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pepd_admin::{
    API_VERSION, CampusSnapshot, CountedReason, DaemonState, LimitUse, Liveness, PeerState, Status,
    View,
};
use pepd_telemetry::{
    CountedFailure, Counters, DirectionPoint, DirectionSnapshot, FlowHistory, FlowSnapshot,
    Goodput, HandshakeMode, HeldSynFailure, HistoryPoint, LegPoint, LegSnapshot, PairDirection,
    PairLeg, PairSnapshot, Phase, PhaseSeconds, QueueBytes, Side, TcpFigures, UnsplitReason,
};

/// Flows that there are at any time; each lasts [`LIFE`] and then makes room for the next.
const FLOWS: u64 = 36;

/// Seconds.
const LIFE: f64 = 180.0;

/// How many seconds the fixture pretends to have run when it starts.
const HEAD_START: f64 = 4000.0;

/// Client campus, server campus, goodput from the server in bit/s, from the client, RTTs of the
/// client leg and of the upstream leg, and the share of segments that each loses.
type Path = (&'static str, &'static str, f64, f64, [f64; 2], [f64; 2]);

const PATHS: [Path; 4] = [
    (
        "island",
        "office",
        18e6,
        0.4e6,
        [0.601, 0.004],
        [0.014, 0.0],
    ),
    (
        "office",
        "island",
        0.2e6,
        3.1e6,
        [0.004, 0.601],
        [0.0, 0.009],
    ),
    ("ship", "office", 6e6, 0.3e6, [0.642, 0.0038], [0.031, 0.0]),
    ("office", "lab", 240e6, 12e6, [0.0006, 0.0021], [0.0, 0.0]),
];

/// The fixture.
pub struct Fixture {
    started: Instant,
    wall: f64,
    counters: Counters,
}

impl Fixture {
    /// With its counters turned up as if it had run for a while.
    pub fn new() -> Arc<Self> {
        let counters = Counters::default();
        counters.accepted.add(10_480);
        counters.closed.add(10_311);
        counters.client_failed.add(88);
        counters.upstream_failed.add(41);
        counters.unreachable.add(3);
        counters.held.add(10_702);
        counters.held_syns_failed[HeldSynFailure::Refused].add(131);
        counters.held_syns_failed[HeldSynFailure::Unanswered].add(77);
        counters.unsplit[UnsplitReason::Full].add(14);
        for (client, server, _, _, rtt, lost) in PATHS {
            let pair = counters.measurements.pair(client, server);
            for sample in 0..200 {
                let swing = 1.0 + 0.1 * (f64::from(sample) / 7.0).sin();
                pair.client.rtt.observe(rtt[0] * swing);
                pair.upstream.rtt.observe(rtt[1] * swing);
                pair.client.retransmitted.observe(lost[0] * swing);
                pair.upstream.retransmitted.observe(lost[1] * swing);
            }
        }
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        Arc::new(Self {
            started: Instant::now(),
            wall: epoch.map_or(0.0, |since| since.as_secs_f64()) - HEAD_START,
            counters,
        })
    }

    fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64() + HEAD_START
    }

    /// The flow in this place, at this second.
    fn flow_at(&self, place: u64, now: f64) -> Flow {
        let shift = float(place * 53 % FLOWS) / float(FLOWS) * LIFE;
        let turn = ((now + shift) / LIFE).floor();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small"
        )]
        let id = turn as u64 * FLOWS + place + 1;
        Flow {
            id,
            path: PATHS[usize::try_from(place % 4).unwrap_or(0)],
            place,
            started: turn * LIFE - shift,
        }
    }
}

/// One connection.
struct Flow {
    id: u64,
    path: Path,
    place: u64,
    started: f64,
}

impl Flow {
    /// From 0 to 1: what the flow gets of its path's rate at this second, with an outage now and
    /// then.
    fn share(&self, now: f64) -> f64 {
        let phase = float(self.place) * 0.7;
        let wave = 0.55 + 0.3 * (now / 23.0 * TAU + phase).sin() + 0.1 * (now / 5.0 + phase).cos();
        let outage = (now / 60.0 + phase).fract() > 0.93;
        let weight = 1.0 / (1.0 + float(self.place) / 4.0);
        if outage { 0.02 * weight } else { wave * weight }
    }

    fn goodput(&self, now: f64, down: bool) -> f64 {
        let rate = if down { self.path.2 } else { self.path.3 };
        rate * self.share(now)
    }

    /// The phases of a second.
    fn phases(&self, now: f64, down: bool) -> PhaseSeconds {
        let outgoing = self.path.4[usize::from(!down)];
        let incoming = self.path.4[usize::from(down)];
        let share = self.share(now).clamp(0.0, 1.0);
        let free = 0.1 + 0.25 * share;
        if outgoing > incoming {
            let backpressured = 1.0 - free - 0.05;
            PhaseSeconds {
                free,
                starved: 0.05,
                backpressured,
            }
        } else {
            PhaseSeconds {
                free,
                starved: 1.0 - free,
                backpressured: 0.0,
            }
        }
    }

    fn direction(&self, now: f64, down: bool) -> DirectionSnapshot {
        let goodput = self.goodput(now, down);
        let age = now - self.started;
        let of_second = self.phases(now, down);
        let phase = if of_second.backpressured > of_second.starved {
            Phase::Backpressured
        } else {
            Phase::Starved
        };
        let queue = queue(&of_second, self.share(now));
        DirectionSnapshot {
            bytes: whole(goodput / 8.0 * age),
            goodput: Goodput {
                last_second: goodput,
                last_ten_seconds: goodput * 0.96,
                life: goodput * 0.9,
            },
            phase: Some(phase),
            phases: PhaseSeconds {
                free: of_second.free * age,
                starved: of_second.starved * age,
                backpressured: of_second.backpressured * age,
            },
            idle: 0.0,
            queue: QueueBytes {
                unread: queue / 2,
                pipe: queue / 8,
                unsent: queue / 2 - queue / 8,
            },
            queue_max: queue + queue / 4,
        }
    }

    fn leg(&self, now: f64, upstream: bool) -> LegSnapshot {
        let side = usize::from(upstream);
        let point = self.leg_point(now, upstream);
        let sent = whole(self.goodput(now, !upstream) / 8.0 * (now - self.started));
        let far = self.path.4[side] > 0.1;
        LegSnapshot {
            profile: if far { "satellite" } else { "lan" }.to_owned(),
            congestion: Some(if far { "bbr" } else { "cubic" }.to_owned()),
            tcp: Some(TcpFigures {
                rtt: point.rtt,
                rtt_variation: point.rtt / 20.0,
                min_rtt: Some(self.path.4[side] * 0.98),
                cwnd: point.cwnd,
                mss: 1448,
                unacked: point.cwnd * 3 / 4,
                lost: u32::from(point.retransmitted_segments > 0),
                retransmitted_segments: u32::try_from(segments(sent, self.path.5[side]))
                    .unwrap_or(u32::MAX),
                retransmitted_bytes: Some(segments(sent, self.path.5[side]) * 1448),
                sent_bytes: Some(sent),
                pacing_rate: Some(self.goodput(now, !upstream) * 1.25),
                delivery_rate: Some(self.goodput(now, !upstream)),
                busy: Some((now - self.started) * 0.9),
                receive_window_limited: Some(0.0),
                send_buffer_limited: Some(if far { 1.5 } else { 0.0 }),
            }),
        }
    }

    fn leg_point(&self, now: f64, upstream: bool) -> LegPoint {
        let side = usize::from(upstream);
        let share = self.share(now);
        let rtt = self.path.4[side] * (1.0 + 0.12 * share + 0.02 * (now * 1.7).sin());
        let flight = self.goodput(now, !upstream) * rtt / 8.0 / 1448.0;
        let lost = flight * self.path.5[side] * (1.0 + (now * 2.9).sin());
        LegPoint {
            rtt,
            cwnd: u32::try_from(whole(flight * 1.4) + 10).unwrap_or(u32::MAX),
            retransmitted_segments: u32::try_from(whole(lost * 2.0)).unwrap_or(u32::MAX),
        }
    }

    fn snapshot(&self, fixture: &Fixture, now: f64) -> FlowSnapshot {
        let campus = |name| match name {
            "office" => 1,
            "lab" => 4,
            "island" => 2,
            _ => 3,
        };
        let last = u8::try_from(self.id % 250).unwrap_or(0) + 1;
        let port = 32_768 + u16::try_from(self.id * 7 % 28_000).unwrap_or(0);
        let client = Ipv4Addr::new(10, campus(self.path.0), 0, last);
        let server = Ipv4Addr::new(10, campus(self.path.1), 1, 10);
        FlowSnapshot {
            id: self.id,
            client: SocketAddr::from((client, port)),
            server: SocketAddr::from((
                server,
                if self.place.is_multiple_of(3) {
                    22
                } else {
                    443
                },
            )),
            client_campus: self.path.0.to_owned(),
            server_campus: self.path.1.to_owned(),
            handshake: HandshakeMode::EndToEnd,
            started: fixture.wall + self.started,
            age: now - self.started,
            first_byte: Some(self.path.4[0] + self.path.4[1]),
            up: self.direction(now, false),
            down: self.direction(now, true),
            client_leg: self.leg(now, false),
            upstream_leg: self.leg(now, true),
        }
    }

    fn point(&self, fixture: &Fixture, second: f64) -> HistoryPoint {
        let direction = |down| {
            let phases = self.phases(second, down);
            DirectionPoint {
                goodput: self.goodput(second, down),
                phases,
                queue: queue(&phases, self.share(second)),
            }
        };
        HistoryPoint {
            time: fixture.wall + second,
            up: direction(false),
            down: direction(true),
            client_leg: self.leg_point(second, false),
            upstream_leg: self.leg_point(second, true),
        }
    }
}

impl View for Fixture {
    fn status(&self) -> Status {
        let now = self.now();
        let flows: Vec<Flow> = (0..FLOWS).map(|place| self.flow_at(place, now)).collect();
        Status {
            api: API_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: "hb-coast".to_owned(),
            state: DaemonState::Splitting,
            started: self.wall,
            uptime: now,
            workers: 4,
            limits: [
                ("connections", FLOWS, 8000),
                ("pending", 2, 1024),
                ("descriptors", 182, 20_000),
                ("pipes", 31, 1936),
            ]
            .map(|(name, used, limit)| LimitUse {
                name: name.to_owned(),
                used,
                limit,
            })
            .into(),
            counters: [
                ("accepted", &self.counters.accepted),
                ("closed", &self.counters.closed),
                ("client_failed", &self.counters.client_failed),
                ("upstream_failed", &self.counters.upstream_failed),
            ]
            .map(|(name, counter)| CountedReason {
                name: name.to_owned(),
                count: counter.get(),
                meaning: String::new(),
            })
            .into(),
            routed: vec![CountedReason {
                name: "bypassed".to_owned(),
                count: 42,
                meaning: String::new(),
            }],
            failures: [
                (Side::Client, "ECONNRESET", 80),
                (Side::Client, "ETIMEDOUT", 6),
                (Side::Upstream, "ECONNRESET", 30),
                (Side::Upstream, "EHOSTUNREACH", 11),
            ]
            .map(|(side, errno, count)| CountedFailure {
                side,
                errno: errno.to_owned(),
                count,
            })
            .into(),
            campuses: campuses(),
            pairs: PATHS.map(|path| pair(path, &flows, now)).into(),
            guards: Vec::new(),
            peers: peers(self.wall, now),
            advice: vec![
                "island → office is limited by the client leg (satellite, 601 ms, 1.4 % lost): \
                 its buffer of 1 MiB is less than bandwidth × RTT, 1.4 MiB; raise `[leg.satellite] \
                 buffer` to 4 MiB."
                    .to_owned(),
            ],
        }
    }

    fn flows(&self) -> Vec<FlowSnapshot> {
        let now = self.now();
        (0..FLOWS)
            .map(|place| self.flow_at(place, now).snapshot(self, now))
            .collect()
    }

    fn flow(&self, id: u64) -> Option<FlowSnapshot> {
        self.flows().into_iter().find(|flow| flow.id == id)
    }

    fn history(&self, id: u64) -> Option<FlowHistory> {
        let now = self.now();
        let place = (id - 1) % FLOWS;
        let flow = Some(self.flow_at(place, now)).filter(|flow| flow.id == id)?;
        let first = flow.started.max(now - 300.0).ceil();
        let points = (0..300)
            .map(|second| first + f64::from(second))
            .take_while(|second| *second <= now)
            .map(|second| flow.point(self, second));
        Some(FlowHistory {
            id,
            points: points.collect(),
        })
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

fn campuses() -> Vec<CampusSnapshot> {
    [
        ("office", "10.1.0.0/16", "local", "lan"),
        ("lab", "10.4.0.0/16", "local", "lan"),
        ("island", "10.2.0.0/16", "hb-island", "satellite"),
        ("ship", "10.3.0.0/16", "hb-ship", "satellite"),
    ]
    .map(|(name, prefix, via, leg)| CampusSnapshot {
        name: name.to_owned(),
        prefixes: vec![prefix.to_owned()],
        via: via.to_owned(),
        leg: leg.to_owned(),
    })
    .into()
}

fn peers(wall: f64, now: f64) -> Vec<PeerState> {
    [
        ("hb-island", 0.598, Liveness::Answering),
        ("hb-ship", 0.64, Liveness::Silent),
    ]
    .map(|(name, rtt, liveness)| PeerState {
        name: name.to_owned(),
        liveness,
        since: Some(wall + 12.0),
        rtt: Some(rtt),
        probes: whole(now),
        lost: whole(now / 50.0),
    })
    .into()
}

fn pair(path: Path, flows: &[Flow], now: f64) -> PairSnapshot {
    let of_pair = || {
        flows
            .iter()
            .filter(|flow| (flow.path.0, flow.path.1) == (path.0, path.1))
    };
    let live = of_pair().count() as u64;
    let direction = |down| {
        let goodput: f64 = of_pair().map(|flow| flow.goodput(now, down)).sum();
        let phases = of_pair().fold(PhaseSeconds::default(), |sum, flow| {
            let phases = flow.phases(now, down);
            PhaseSeconds {
                free: sum.free + 10.0 * phases.free,
                starved: sum.starved + 10.0 * phases.starved,
                backpressured: sum.backpressured + 10.0 * phases.backpressured,
            }
        });
        PairDirection {
            bytes: whole(goodput / 8.0 * now),
            goodput,
            phases: PhaseSeconds {
                free: phases.free * now / 10.0,
                starved: phases.starved * now / 10.0,
                backpressured: phases.backpressured * now / 10.0,
            },
            recent_phases: phases,
        }
    };
    let leg = |side: usize| PairLeg {
        profile: if path.4[side] > 0.1 {
            "satellite"
        } else {
            "lan"
        }
        .to_owned(),
        rtt: Some(path.4[side] * (1.0 + 0.02 * (now / 3.0).sin())),
        retransmitted: Some(path.5[side]),
    };
    PairSnapshot {
        client_campus: path.0.to_owned(),
        server_campus: path.1.to_owned(),
        live,
        accepted: live + whole(now) / 9,
        up: direction(false),
        down: direction(true),
        client_leg: leg(0),
        upstream_leg: leg(1),
    }
}

fn queue(phases: &PhaseSeconds, share: f64) -> u64 {
    whole(phases.backpressured * 1_048_576.0 * (0.8 + 0.2 * share))
}

fn segments(bytes: u64, share: f64) -> u64 {
    whole(float(bytes) / 1448.0 * share)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "made up, in range"
)]
fn whole(value: f64) -> u64 {
    value.max(0.0) as u64
}

#[allow(clippy::cast_precision_loss, reason = "small")]
fn float(value: u64) -> f64 {
    value as f64
}
