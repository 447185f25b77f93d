//! What pepd does for each packet, each wake-up and each reload, without the kernel.
//!
//! `cargo bench --bench hot_paths`. The whole path is measured by `cargo xtask bench`.

#![allow(
    missing_docs,
    reason = "criterion_group! makes a public function without any"
)]

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use ipnet::IpNet;
use pepd_config::Context;
use pepd_net::{
    Campus, Handshake, Listener, Mark, Plan, QueueBackend, Queues, Request, RouteTable, Via,
};
use pepd_packet::tcp::Reset;
use pepd_packet::{MarkMask, MarkValue, QueueNumber, SourcePrefix};
use pepd_packet::{Syn, icmp};
use pepd_telemetry::{
    Activity, Counters, FlowInfo, FlowTable, HandshakeMode, PhaseClock, Socket, StepReport,
};
use pepd_testbed::forge::{Segment, flag};

/// The box of `config/`, as an operator would write it.
const CAMPUS_BOX: &str = include_str!("../config/campus-box.toml");

fn address(last: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, last, 0, 2)), port)
}

/// Returns a SYN as Linux sends it: MSS, SACK, timestamps, window scale.
fn syn() -> Vec<u8> {
    let mut syn = Segment::syn(address(1, 40_000), address(2, 80), 0x8123_4567);
    syn.options = vec![
        2, 4, 5, 180, 4, 2, 8, 10, 0, 1, 2, 3, 0, 0, 0, 0, 1, 3, 3, 7,
    ];
    syn.packet().unwrap_or_default()
}

/// Returns an ICMP error, host unreachable, that quotes a packet.
fn unreachable(quoted: &[u8]) -> Vec<u8> {
    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    message.extend(quoted.iter().take(28));
    let (from, to) = (Ipv4Addr::new(10, 2, 0, 1), Ipv4Addr::new(10, 1, 0, 2));
    pepd_packet::ip::in_ipv4(from, to, pepd_packet::Protocol::ICMP, &message)
}

fn packets(c: &mut Criterion) {
    let syn = syn();
    c.bench_function("packet/syn", |b| b.iter(|| Syn::read(black_box(&syn))));
    let reset = Segment::new(flag::RST, address(1, 40_000), address(2, 80), 7);
    let reset = reset.packet().unwrap_or_default();
    c.bench_function("packet/reset", |b| {
        b.iter(|| Reset::read(black_box(&reset)))
    });
    let error = unreachable(&syn);
    c.bench_function("packet/icmp-error", |b| {
        b.iter(|| icmp::read_error(black_box(&error)));
    });
}

fn phases(c: &mut Criterion) {
    let begin = Instant::now();
    c.bench_function("phases/wake-up", |b| {
        let (mut clock, mut now) = (PhaseClock::new(begin), begin);
        b.iter(|| {
            now += Duration::from_micros(100);
            clock.settle(now, black_box(0), Some(1e6));
            clock.begin(now, Activity::Moving, Duration::from_millis(20));
            let waits = Activity::AwaitsSource { unsent: 4096 };
            clock.begin(now, waits, Duration::from_millis(20));
        });
    });
}

/// Returns what a connection's entry needs.
fn info(now: Instant) -> FlowInfo {
    let name = Arc::<str>::from;
    FlowInfo {
        client: address(1, 40_000),
        server: address(2, 80),
        client_campus: name("a"),
        server_campus: name("b"),
        client_profile: name("lan"),
        upstream_profile: name("satellite"),
        handshake: HandshakeMode::EndToEnd,
        accepted: now,
        came: None,
    }
}

fn flows(c: &mut Criterion) {
    let now = Instant::now();
    let table = Arc::new(FlowTable::new(Arc::new(Counters::default()), 2, now, 0.0));
    let Ok(file) = std::fs::File::open("/dev/null") else {
        return;
    };
    let socket: Arc<Socket> = Arc::new(file);
    let enter = || {
        let weak = Arc::downgrade(&socket);
        table.register(0, info(now), weak.clone(), weak, now)
    };
    let registered = (0..8000).map(|_| enter()).collect::<Vec<_>>();
    c.bench_function("flows/enter-and-leave", |b| b.iter(&enter));
    let step = |bytes| StepReport {
        bytes,
        pipe: 0,
        unsent_after_wait: 0,
        activity: Activity::AwaitsSource { unsent: 0 },
    };
    c.bench_function("flows/report", |b| {
        b.iter(|| registered[0].report(now, now, black_box(step(65_536)), step(0)));
    });
    c.bench_function("flows/list-8000", |b| b.iter(|| table.flows(now)));
}

/// Returns what the kernel is asked for by a box with so many campuses of eight prefixes.
fn request(campuses: u8) -> Request {
    let campus = |index: u8| Campus {
        name: format!("campus {index}"),
        prefixes: (0..8)
            .filter_map(|net| IpNet::new([10, index, net * 32, 0].into(), 24).ok())
            .collect(),
        listener: Listener {
            v4: Ipv4Addr::new(127, 73, 0, index),
            v6: Ipv6Addr::new(0x100, 0, 0, 0, 0, 0x73, 0, index.into()),
        },
        via: Via::Local,
        initial_window: None,
    };
    Request {
        node: "bench".to_owned(),
        mark: Mark {
            value: MarkValue(0x7000_0000),
            mask: MarkMask(0x7000_0000),
        },
        table: RouteTable(7300),
        port: 7300,
        handshake: Handshake::EndToEnd,
        queues: Some(Queues {
            first: QueueNumber(7300),
            count: 2,
            backend: QueueBackend::Nft,
        }),
        hold_acks: None,
        hold_coming: None,
        measure: None,
        neighbors: Vec::new(),
        campuses: (1..=campuses).map(campus).collect(),
        source_prefix: SourcePrefix::NETWORK,
        peers: Vec::new(),
        rules: Vec::new(),
        windows: Default::default(),
    }
}

fn configuration(c: &mut Criterion) {
    let context = Context {
        ephemeral_ports: 32_768..=60_999,
        node: None,
        host: None,
    };
    c.bench_function("configuration/parse", |b| {
        b.iter(|| pepd_config::parse("campus-box.toml", black_box(CAMPUS_BOX), &context));
    });
    for campuses in [2, 200] {
        let request = request(campuses);
        c.bench_function(&format!("configuration/plan-{campuses}"), |b| {
            b.iter(|| Plan::new(black_box(&request)).nft());
        });
    }
}

criterion_group!(benches, packets, phases, flows, configuration);
criterion_main!(benches);
