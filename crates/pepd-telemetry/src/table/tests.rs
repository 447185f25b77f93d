use nix::errno::Errno;

use super::*;
use crate::HandshakeMode;
use crate::flow::SocketSample;
use crate::phase::Activity;

fn info(server: &str) -> FlowInfo {
    let name = |name: &str| Arc::<str>::from(name);
    FlowInfo {
        client: "10.1.0.2:4000".parse().unwrap(),
        server: "10.2.0.2:80".parse().unwrap(),
        client_campus: name("a"),
        server_campus: name(server),
        client_profile: name("lan"),
        upstream_profile: name("wan"),
        handshake: HandshakeMode::Early,
        accepted: Instant::now(),
        came: None,
    }
}

fn socket() -> Arc<Socket> {
    Arc::new(std::fs::File::open("/dev/null").unwrap())
}

fn report(bytes: u64) -> StepReport {
    StepReport {
        bytes,
        pipe: 0,
        unsent_after_wait: 0,
        activity: Activity::AwaitsSource { unsent: 0 },
    }
}

#[test]
fn a_connection_is_in_the_table_while_it_is_registered() {
    let counters = Arc::new(Counters::default());
    let table = Arc::new(FlowTable::new(
        Arc::clone(&counters),
        2,
        Instant::now(),
        0.0,
    ));
    let socket = socket();
    let open = |worker, server: &str| {
        let weak = Arc::downgrade(&socket);
        table.register(worker, info(server), weak.clone(), weak, Instant::now())
    };
    let (first, second, third) = (open(0, "b"), open(1, "b"), open(1, "c"));
    let now = Instant::now();
    assert_eq!(table.flows(now).len(), 3);
    assert_eq!(table.flow(second.id(), now).unwrap().id, second.id());
    second.report(now, now, report(100), report(7));
    let id = second.id();
    drop(second);
    assert_eq!(table.flow(id, now), None);
    assert_eq!(table.history(id), None);
    assert_eq!(
        (counters.bytes_up.get(), counters.bytes_down.get()),
        (100, 7)
    );
    let pairs = table.pairs(now);
    assert_eq!(pairs.len(), 2);
    assert_eq!((pairs[0].live, pairs[0].accepted), (1, 2));
    assert_eq!((pairs[0].up.bytes, pairs[0].down.bytes), (100, 7));
    let fourth = open(1, "b");
    assert_eq!(table.flows(now).len(), 3, "in the place that came free");
    drop((first, third, fourth));
    assert!(table.flows(now).is_empty());
}

#[test]
fn bytes_are_counted_once_whether_a_check_or_the_end_tells_them() {
    let counters = Arc::new(Counters::default());
    let table = Arc::new(FlowTable::new(
        Arc::clone(&counters),
        1,
        Instant::now(),
        0.0,
    ));
    let socket = socket();
    let weak = || Arc::downgrade(&socket);
    let flow = table.register(0, info("b"), weak(), weak(), Instant::now());
    let now = Instant::now();
    flow.report(now, now, report(100), report(0));
    let check = |part, of| {
        table.sample(0, part, of, now + SAMPLE_INTERVAL, |_, _, _, _| {
            ConnectionSample::default()
        })
    };
    check(1, 2);
    assert_eq!(counters.bytes_up.get(), 0, "not in this share");
    check(0, 2);
    assert_eq!(counters.bytes_up.get(), 100);
    flow.report(now, now, report(150), report(0));
    // The last look, as its worker takes it.
    flow.add_sample(now, ConnectionSample::default());
    drop(flow);
    assert_eq!(counters.bytes_up.get(), 150);
    assert_eq!(table.pairs(now)[0].up.bytes, 150);
}

#[test]
fn a_pair_has_the_median_rtt_and_the_share_of_retransmissions() {
    let table = Arc::new(FlowTable::new(Arc::default(), 1, Instant::now(), 0.0));
    let socket = socket();
    let flows: Vec<_> = [0.01, 0.5, 0.02]
        .into_iter()
        .map(|rtt| {
            let weak = Arc::downgrade(&socket);
            let flow = table.register(0, info("b"), weak.clone(), weak, Instant::now());
            let leg = SocketSample {
                tcp: Some(TcpFigures {
                    rtt,
                    sent_bytes: Some(1000),
                    retransmitted_bytes: Some(50),
                    ..TcpFigures::default()
                }),
                ..SocketSample::default()
            };
            let sample = ConnectionSample {
                client: SocketSample::default(),
                upstream: leg,
            };
            flow.add_sample(Instant::now(), sample);
            flow
        })
        .collect();
    let pair = &table.pairs(Instant::now())[0];
    assert_eq!(pair.upstream_leg.rtt, Some(0.02));
    assert_eq!(pair.upstream_leg.retransmitted, Some(0.05));
    assert_eq!(pair.upstream_leg.sent_bytes, 3000);
    assert_eq!(pair.client_leg.rtt, None);
    drop(flows);
}

#[test]
fn failures_are_counted_by_leg_and_errno() {
    let table = FlowTable::new(Arc::default(), 1, Instant::now(), 0.0);
    table.count_failure(Side::Upstream, Errno::ECONNRESET as i32);
    table.count_failure(Side::Client, Errno::ETIMEDOUT as i32);
    table.count_failure(Side::Upstream, Errno::ECONNRESET as i32);
    let failures = table.failures();
    assert_eq!(failures.len(), 2);
    assert_eq!((&*failures[1].errno, failures[1].count), ("ECONNRESET", 2));
    assert_eq!(failures[0].errno, "ETIMEDOUT");
    assert_eq!(errno_name(9999), "9999");
}

#[test]
fn the_first_byte_of_a_connection_is_not_the_first_that_another_process_sees() {
    let counters = Arc::new(Counters::default());
    let table = Arc::new(FlowTable::new(counters, 1, Instant::now(), 0.0));
    let socket = socket();
    let first_byte = |written| {
        let weak = || Arc::downgrade(&socket);
        let now = Instant::now();
        let sockets = (weak(), weak());
        let again = table.register_again(0, (7, written), info("b"), sockets, now);
        again.report(now, now, report(0), report(10));
        table.flow(7, now).unwrap().first_byte
    };
    assert_eq!(first_byte([5, 3]), None);
    assert!(first_byte([5, 0]).is_some());
}
