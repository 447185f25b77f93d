//! Links between real namespaces, with real programs and sockets on them.
//!
//! What is asserted is counted, never timed: a busy machine may be late, not wrong.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::{
    collections::BTreeSet,
    fs::File,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sched::{CloneFlags, setns},
    sys::socket::{setsockopt, sockopt},
    unistd::geteuid,
};
use pepd_testbed::link::{
    Amount, Capacity, DeviceError, Direction, DirectionReport, Endpoint, Fate, Link, LinkError,
    Loss, Mtu, Outage, OutageEffect, QueueLimit, Rate, Report, Seed, Shape, Time,
};
use pepd_testbed::wait_until;

/// More than any of these tests needs on a machine that is busy with others.
const DEADLINE: Duration = Duration::from_secs(120);
const SEED: Seed = Seed(20_260_101);
const A: &str = "10.99.0.1";
const B: &str = "10.99.0.2";

/// Whether links can be made here. If not, says why; where CI demands it, that is a failure.
fn possible() -> bool {
    let missing = if !geteuid().is_root() {
        "needs root, to make namespaces and devices"
    } else if !Path::new("/dev/net/tun").exists() {
        "needs TUN: load the module `tun`"
    } else {
        return true;
    };
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "skipped: {missing}"
    );
    eprintln!("skipped: {missing}");
    false
}

/// Two namespaces, removed with whatever is in them also if the test panics.
struct Pair {
    a: String,
    b: String,
}

impl Pair {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |end| format!("link{}-{number}{end}", std::process::id());
        let pair = Self {
            a: name("a"),
            b: name("b"),
        };
        ip(&["netns", "add", &pair.a]);
        ip(&["netns", "add", &pair.b]);
        pair
    }

    fn ends(&self) -> (Endpoint, Endpoint) {
        (
            Endpoint::named(&self.a, "eth0"),
            Endpoint::named(&self.b, "eth0"),
        )
    }

    /// A link with addresses at both ends.
    fn link(&self, a_to_b: Shape, b_to_a: Shape) -> Link {
        let (a, b) = self.ends();
        let link = Link::connect(&a, &b, a_to_b, b_to_a, SEED, Mtu::ETHERNET).unwrap();
        ip(&[
            "-n",
            &self.a,
            "address",
            "add",
            &format!("{A}/30"),
            "dev",
            "eth0",
        ]);
        ip(&[
            "-n",
            &self.b,
            "address",
            "add",
            &format!("{B}/30"),
            "dev",
            "eth0",
        ]);
        link
    }

    fn ping(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.a, "ping", "-q", "-i", "0.01"])
            .args(arguments);
        command.output().expect("the program ping")
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in [&self.a, &self.b] {
            let _ = Command::new("ip").args(["netns", "delete", name]).output();
        }
    }
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .expect("the program ip");
    assert!(output.status.success(), "ip {arguments:?}: {output:?}");
}

/// Runs `work` inside the namespace, on a thread of its own, and gives the thread back.
fn inside<T: Send + 'static>(
    namespace: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let file = File::open(Path::new("/run/netns").join(namespace)).unwrap();
    thread::spawn(move || {
        setns(file, CloneFlags::CLONE_NEWNET).unwrap();
        work()
    })
}

fn now<T: Send + 'static>(namespace: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    inside(namespace, work).join().unwrap()
}

/// Waits until the link's report shows what `done` looks for.
fn wait_for(link: &Link, done: impl Fn(&Report) -> bool) -> Report {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let report = link.report().unwrap();
        if done(&report) {
            return report;
        }
        assert!(
            Instant::now() < deadline,
            "not within {DEADLINE:?}: {report:#?}"
        );
        thread::yield_now();
    }
}

fn settled(direction: &DirectionReport) -> bool {
    direction.pending.packets == 0
}

/// Every packet is in exactly one place.
fn assert_balanced(report: &Report) {
    for way in [&report.a_to_b, &report.b_to_a] {
        let sum = |amounts: &[Amount]| {
            amounts
                .iter()
                .fold((0, 0), |sum, one| (sum.0 + one.packets, sum.1 + one.bytes))
        };
        assert_eq!(
            sum(&[way.offered]),
            sum(&[way.dropped, way.sent]),
            "{way:#?}"
        );
        let ends = [way.lost, way.cut, way.delivered, way.refused, way.pending];
        assert_eq!(sum(&[way.sent]), sum(&ends), "{way:#?}");
    }
}

/// A socket at the far end that loses nothing itself.
fn receiver(pair: &Pair) -> UdpSocket {
    let socket = now(&pair.b, || UdpSocket::bind((B, 4000)).unwrap());
    setsockopt(&socket, sockopt::RcvBufForce, &(32 << 20)).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

/// Sends packets numbered from 0 from end a to end b.
fn send_sequence(pair: &Pair, packets: u32) {
    now(&pair.a, move || {
        let socket = UdpSocket::bind((A, 0)).unwrap();
        for number in 0..packets {
            let mut payload = [0; 100];
            payload[..4].copy_from_slice(&number.to_be_bytes());
            socket.send_to(&payload, (B, 4000)).unwrap();
        }
    });
}

/// The numbers of the next `count` packets.
fn receive_sequence(socket: &UdpSocket, count: usize) -> Vec<u32> {
    let mut payload = [0; 200];
    (0..count)
        .map(|received| {
            let bytes = loop {
                match socket.recv(&mut payload) {
                    Ok(bytes) => break bytes,
                    // A signal may interrupt what has a deadline.
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => panic!("{error} after {received} of {count} packets"),
                }
            };
            assert_eq!(bytes, 100);
            u32::from_be_bytes(payload[..4].try_into().unwrap())
        })
        .collect()
}

/// Which of `packets` the model lets through from end a to end b.
fn survivors(shape: &Shape, packets: u32) -> Vec<u32> {
    let mut model = Direction::new(shape, SEED.split()[0], Time::ZERO).unwrap();
    (0..packets)
        .filter(|_| matches!(model.offer(Time::ZERO, 128), Fate::Arrives(_)))
        .collect()
}

fn fast(loss: Loss) -> Shape {
    let queue = QueueLimit::Packets(100_000);
    Shape {
        queue,
        loss,
        ..Shape::new(Duration::from_millis(5), Rate::mbit(50))
    }
}

#[test]
fn a_link_without_loss_carries_every_ping() {
    if !possible() {
        return;
    }
    let pair = Pair::new();
    let link = pair.link(fast(Loss::None), fast(Loss::None));
    ip(&[
        "-n",
        &pair.a,
        "address",
        "add",
        "fd99::1/64",
        "dev",
        "eth0",
        "nodad",
    ]);
    ip(&[
        "-n",
        &pair.b,
        "address",
        "add",
        "fd99::2/64",
        "dev",
        "eth0",
        "nodad",
    ]);
    for address in [B, "fd99::2"] {
        // With a deadline it waits for all answers, and without one for as long as two of them
        // take, which is too short on a busy machine.
        let output = pair.ping(&["-c", "25", "-w", "60", "-s", "1000", address]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("25 received"), "{address}: {text}");
    }
    wait_for(&link, |r| settled(&r.a_to_b) && settled(&r.b_to_a));
    let report = link.stop().unwrap();
    assert_balanced(&report);
    for way in [&report.a_to_b, &report.b_to_a] {
        assert!(way.delivered.packets >= 50, "{way:#?}");
        assert_eq!(way.delivered, way.offered, "{way:#?}");
        assert_eq!(
            way.largest, 1048,
            "an IPv6 header, an ICMPv6 header and 1000 bytes"
        );
    }
    // What another test is about to execute may have its descriptor for a moment yet.
    wait_until(DEADLINE, "the device is gone", || {
        let show = Command::new("ip")
            .args(["-n", &pair.a, "link", "show", "eth0"])
            .output();
        !show.unwrap().status.success()
    })
    .unwrap();
}

#[test]
fn an_idle_link_is_silent_and_a_sequence_loses_exactly_what_the_model_says() {
    if !possible() {
        return;
    }
    const PACKETS: u32 = 3000;
    for loss in [Loss::independent(0.3), Loss::bursts(0.1, 5.0)] {
        let pair = Pair::new();
        let link = pair.link(fast(loss), fast(Loss::None));
        let socket = receiver(&pair);
        let expected = survivors(&fast(loss), PACKETS);
        assert!(expected.len() < PACKETS as usize);
        for repeat in 0..2 {
            send_sequence(&pair, PACKETS);
            let arrived = receive_sequence(&socket, expected.len());
            assert_eq!(arrived, expected, "{loss:?}, repeat {repeat}");
            let report = wait_for(&link, |report| settled(&report.a_to_b));
            assert_balanced(&report);
            let way = report.a_to_b;
            assert_eq!(way.overruns, 0, "{way:#?}");
            assert_eq!(way.offered.packets, u64::from(PACKETS), "{way:#?}");
            assert_eq!(way.lost.packets, u64::from(PACKETS) - expected.len() as u64);
            assert_eq!(report.b_to_a.offered.packets, 0);
            link.restart().unwrap();
        }
    }
}

#[test]
fn a_full_queue_drops_and_says_how_much() {
    if !possible() {
        return;
    }
    const PACKETS: u32 = 500;
    let pair = Pair::new();
    let shape = Shape {
        queue: QueueLimit::Packets(10),
        ..Shape::new(Duration::from_millis(1), Rate::kbit(500))
    };
    let link = pair.link(shape, Shape::default());
    let socket = receiver(&pair);
    send_sequence(&pair, PACKETS);
    let report = wait_for(&link, |r| {
        r.a_to_b.offered.packets == u64::from(PACKETS) && settled(&r.a_to_b)
    });
    assert_balanced(&report);
    let way = report.a_to_b;
    assert!(way.dropped.packets > 0, "{way:#?}");
    assert!(
        way.queue_delay.max >= Duration::from_millis(2),
        "one packet takes 2.048 ms: {way:#?}"
    );
    let arrived = receive_sequence(&socket, usize::try_from(way.delivered.packets).unwrap());
    assert!(arrived.is_sorted(), "reordered: {arrived:?}");
    let distinct: BTreeSet<u32> = arrived.iter().copied().collect();
    assert_eq!(distinct.len(), arrived.len(), "duplicated: {arrived:?}");
}

#[test]
fn tcp_gets_everything_across_in_packets_of_the_mtu() {
    if !possible() {
        return;
    }
    const BYTES: usize = 2_000_000;
    let pair = Pair::new();
    let link = pair.link(fast(Loss::independent(0.01)), fast(Loss::independent(0.01)));
    let listener = now(&pair.b, || TcpListener::bind((B, 5000)).unwrap());
    let server = thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        connection.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut received = Vec::new();
        connection.read_to_end(&mut received).unwrap();
        received
    });
    // 251 is prime: the pattern fits no packet size, so nothing can be swapped unnoticed.
    let pattern: Vec<u8> = (0..251).cycle().take(BYTES).collect();
    let sent = pattern.clone();
    let client = inside(&pair.a, move || {
        let address: SocketAddr = (B.parse::<std::net::IpAddr>().unwrap(), 5000).into();
        let mut connection = TcpStream::connect_timeout(&address, DEADLINE).unwrap();
        connection.write_all(&sent).unwrap();
    });
    client.join().unwrap();
    assert!(
        server.join().unwrap() == pattern,
        "the bytes that arrived are not those sent"
    );
    let report = wait_for(&link, |r| settled(&r.a_to_b) && settled(&r.b_to_a));
    assert_balanced(&report);
    assert_eq!(
        report.a_to_b.largest, 1500,
        "segmentation offload reached the link"
    );
    assert!(
        report.a_to_b.lost.packets > 0 && report.b_to_a.offered.packets > 0,
        "{report:#?}"
    );
}

#[test]
fn an_outage_cuts_what_is_sent_during_it() {
    if !possible() {
        return;
    }
    let pair = Pair::new();
    let outage = Outage {
        start: Duration::ZERO,
        length: Duration::from_secs(3600),
        effect: OutageEffect::Drops,
    };
    let shape = Shape {
        outages: vec![outage],
        ..Shape::default()
    };
    let link = pair.link(shape, Shape::default());
    send_sequence(&pair, 100);
    let report = wait_for(&link, |report| report.a_to_b.offered.packets == 100);
    assert_balanced(&report);
    assert_eq!(report.a_to_b.cut.packets, 100);
}

#[test]
fn a_device_that_is_down_refuses_packets_and_the_link_goes_on() {
    if !possible() {
        return;
    }
    let pair = Pair::new();
    let link = pair.link(Shape::default(), Shape::default());
    let socket = receiver(&pair);
    ip(&["-n", &pair.b, "link", "set", "eth0", "down"]);
    send_sequence(&pair, 10);
    let report = wait_for(&link, |report| report.a_to_b.refused.packets == 10);
    assert_balanced(&report);
    ip(&["-n", &pair.b, "link", "set", "eth0", "up"]);
    send_sequence(&pair, 10);
    assert_eq!(receive_sequence(&socket, 10), (0..10).collect::<Vec<u32>>());
}

#[test]
fn a_link_that_cannot_be_made_says_why_and_leaves_nothing() {
    if !possible() {
        return;
    }
    let pair = Pair::new();
    let (a, b) = pair.ends();
    let connect = |a: &Endpoint, b: &Endpoint| {
        Link::connect(
            a,
            b,
            Shape::default(),
            Shape::default(),
            SEED,
            Mtu::ETHERNET,
        )
    };
    let missing = connect(&a, &Endpoint::named("pepd-there-is-none", "eth0")).unwrap_err();
    assert!(
        matches!(missing, LinkError::Device(DeviceError::Namespace { .. })),
        "{missing}"
    );
    let link = connect(&a, &b).unwrap();
    let taken = connect(&a, &b).unwrap_err();
    assert!(taken.to_string().contains("the name is taken"), "{taken}");
    let long = connect(&Endpoint::named(&pair.a, "a-name-of-17-bytes"), &b).unwrap_err();
    assert!(
        matches!(long, LinkError::Device(DeviceError::Make { .. })),
        "{long}"
    );
    drop(link);
    // What another test is about to execute may have their descriptors for a moment yet.
    wait_until(DEADLINE, "the names are free", || connect(&a, &b).is_ok()).unwrap();
}

#[test]
fn a_namespace_may_go_before_its_link() {
    if !possible() {
        return;
    }
    let pair = Pair::new();
    let link = pair.link(Shape::default(), Shape::default());
    drop(pair);
    assert_balanced(&link.stop().unwrap());
}

#[test]
fn a_removed_device_ends_the_link_with_its_name() {
    if !possible() {
        return;
    }
    let pair = Pair::new();
    let link = pair.link(
        Shape {
            rate: Capacity::Unlimited,
            ..Shape::default()
        },
        Shape::default(),
    );
    ip(&["-n", &pair.b, "link", "delete", "eth0"]);
    let error = link.stop().unwrap_err();
    assert!(
        matches!(&error, LinkError::Device(DeviceError::Gone { .. })),
        "{error}"
    );
}
