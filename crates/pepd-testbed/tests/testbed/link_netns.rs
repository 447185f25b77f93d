//! Links between real namespaces, with real programs and sockets on them.
//!
//! What is asserted is counted, never timed: a busy machine may be late, not wrong.

use std::{
    collections::BTreeSet,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};
use pepd_testbed::link::{
    Amount, Capacity, DeviceError, Direction, DirectionReport, Endpoint, Fate, Link, LinkError,
    Loss, Mtu, Outage, OutageEffect, QueueLimit, Rate, Report, Seed, Shape, Time,
};
use pepd_testbed::{Netns, require, wait_until};

/// More than any of these tests needs on a machine that is busy with others.
const DEADLINE: Duration = Duration::from_secs(120);
const SEED: Seed = Seed(20_260_101);
const A: &str = "10.99.0.1";
const B: &str = "10.99.0.2";

/// The namespaces at both ends.
struct Pair {
    a: Netns,
    b: Netns,
}

impl Pair {
    fn new() -> Result<Self> {
        let (a, b) = (Netns::new("a")?, Netns::new("b")?);
        Ok(Self { a, b })
    }

    fn ends(&self) -> (Endpoint, Endpoint) {
        let end = |netns: &Netns| Endpoint::named(netns.name(), "eth0");
        (end(&self.a), end(&self.b))
    }

    /// Returns a link with addresses at both ends.
    fn link(&self, a_to_b: Shape, b_to_a: Shape) -> Result<Link> {
        let (a, b) = self.ends();
        let link = Link::connect(&a, &b, a_to_b, b_to_a, SEED, Mtu::ETHERNET)?;
        for (netns, address) in [(&self.a, A), (&self.b, B)] {
            netns.sh(&format!("ip address add {address}/30 dev eth0"))?;
        }
        Ok(link)
    }
}

/// Waits until the link's report shows what `done` looks for.
fn wait_for(link: &Link, done: impl Fn(&Report) -> bool) -> Result<Report> {
    let mut report = link.report()?;
    let outcome = wait_until(DEADLINE, "the report shows it", || {
        let Ok(now) = link.report() else { return false };
        report = now;
        done(&report)
    });
    outcome.with_context(|| format!("{report:#?}"))?;
    Ok(report)
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

/// Returns a socket at the far end that loses nothing itself.
fn receiver(pair: &Pair) -> Result<UdpSocket> {
    let socket = pair.b.run(|| Ok(UdpSocket::bind((B, 4000))?))?;
    setsockopt(&socket, sockopt::RcvBufForce, &(32 << 20))?;
    socket.set_read_timeout(Some(DEADLINE))?;
    Ok(socket)
}

/// Sends packets numbered from 0 from end a to end b.
fn send_sequence(pair: &Pair, packets: u32) -> Result<()> {
    pair.a.run(|| {
        let socket = UdpSocket::bind((A, 0))?;
        for number in 0..packets {
            let mut payload = [0; 100];
            payload[..4].copy_from_slice(&number.to_be_bytes());
            socket.send_to(&payload, (B, 4000))?;
        }
        Ok(())
    })
}

/// Returns the numbers of the next `count` packets.
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
fn a_link_without_loss_carries_every_ping() -> Result<()> {
    require!(root, device("/dev/net/tun"));
    let pair = Pair::new()?;
    let link = pair.link(fast(Loss::None), fast(Loss::None))?;
    for (netns, address) in [(&pair.a, "fd99::1"), (&pair.b, "fd99::2")] {
        netns.sh(&format!("ip address add {address}/64 dev eth0 nodad"))?;
    }
    for address in [B, "fd99::2"] {
        // With a deadline it waits for all answers, and without one for as long as two of them
        // take, which is too short on a busy machine.
        let ping = format!("ping -q -i 0.01 -c 25 -w 60 -s 1000 {address} || true");
        let text = pair.a.sh(&ping)?;
        assert!(text.contains("25 received"), "{address}: {text}");
    }
    wait_for(&link, |r| settled(&r.a_to_b) && settled(&r.b_to_a))?;
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
        pair.a.sh("ip link show eth0").is_err()
    })
}

#[test]
fn an_idle_link_is_silent_and_a_sequence_loses_exactly_what_the_model_says() -> Result<()> {
    require!(root, device("/dev/net/tun"));
    const PACKETS: u32 = 3000;
    for loss in [Loss::independent(0.3), Loss::bursts(0.1, 5.0)] {
        let pair = Pair::new()?;
        let link = pair.link(fast(loss), fast(Loss::None))?;
        let socket = receiver(&pair)?;
        let expected = survivors(&fast(loss), PACKETS);
        assert!(expected.len() < PACKETS as usize);
        for repeat in 0..2 {
            send_sequence(&pair, PACKETS)?;
            let arrived = receive_sequence(&socket, expected.len());
            assert_eq!(arrived, expected, "{loss:?}, repeat {repeat}");
            let report = wait_for(&link, |report| settled(&report.a_to_b))?;
            assert_balanced(&report);
            let way = report.a_to_b;
            assert_eq!(way.overruns, 0, "{way:#?}");
            assert_eq!(way.offered.packets, u64::from(PACKETS), "{way:#?}");
            assert_eq!(way.lost.packets, u64::from(PACKETS) - expected.len() as u64);
            assert_eq!(report.b_to_a.offered.packets, 0);
            link.restart().unwrap();
        }
    }
    Ok(())
}

#[test]
fn a_full_queue_drops_and_says_how_much() -> Result<()> {
    require!(root, device("/dev/net/tun"));
    const PACKETS: u32 = 500;
    let pair = Pair::new()?;
    let shape = Shape {
        queue: QueueLimit::Packets(10),
        ..Shape::new(Duration::from_millis(1), Rate::kbit(500))
    };
    let link = pair.link(shape, Shape::default())?;
    let socket = receiver(&pair)?;
    send_sequence(&pair, PACKETS)?;
    let report = wait_for(&link, |r| {
        r.a_to_b.offered.packets == u64::from(PACKETS) && settled(&r.a_to_b)
    })?;
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
    Ok(())
}

#[test]
fn tcp_gets_everything_across_in_packets_of_the_mtu() -> Result<()> {
    require!(root, device("/dev/net/tun"));
    const BYTES: usize = 2_000_000;
    let pair = Pair::new()?;
    let link = pair.link(fast(Loss::independent(0.01)), fast(Loss::independent(0.01)))?;
    let listener = pair.b.run(|| Ok(TcpListener::bind((B, 5000))?))?;
    let server = thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        connection.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut received = Vec::new();
        connection.read_to_end(&mut received).unwrap();
        received
    });
    // 251 is prime: the pattern fits no packet size, so nothing can be swapped unnoticed.
    let pattern: Vec<u8> = (0..251).cycle().take(BYTES).collect();
    pair.a.run(|| {
        let address: SocketAddr = (B.parse::<std::net::IpAddr>()?, 5000).into();
        let mut connection = TcpStream::connect_timeout(&address, DEADLINE)?;
        Ok(connection.write_all(&pattern)?)
    })?;
    assert!(
        server.join().unwrap() == pattern,
        "the bytes that arrived are not those sent"
    );
    let report = wait_for(&link, |r| settled(&r.a_to_b) && settled(&r.b_to_a))?;
    assert_balanced(&report);
    assert_eq!(
        report.a_to_b.largest, 1500,
        "segmentation offload reached the link"
    );
    assert!(
        report.a_to_b.lost.packets > 0 && report.b_to_a.offered.packets > 0,
        "{report:#?}"
    );
    Ok(())
}

#[test]
fn an_outage_cuts_what_is_sent_during_it() -> Result<()> {
    require!(root, device("/dev/net/tun"));
    let pair = Pair::new()?;
    let outage = Outage {
        start: Duration::ZERO,
        length: Duration::from_secs(3600),
        effect: OutageEffect::Drops,
    };
    let shape = Shape {
        outages: vec![outage],
        ..Shape::default()
    };
    let link = pair.link(shape, Shape::default())?;
    send_sequence(&pair, 100)?;
    let report = wait_for(&link, |report| report.a_to_b.offered.packets == 100)?;
    assert_balanced(&report);
    assert_eq!(report.a_to_b.cut.packets, 100);
    Ok(())
}

#[test]
fn a_device_that_is_down_refuses_packets_and_the_link_goes_on() -> Result<()> {
    require!(root, device("/dev/net/tun"));
    let pair = Pair::new()?;
    let link = pair.link(Shape::default(), Shape::default())?;
    let socket = receiver(&pair)?;
    pair.b.sh("ip link set eth0 down")?;
    send_sequence(&pair, 10)?;
    let report = wait_for(&link, |report| report.a_to_b.refused.packets == 10)?;
    assert_balanced(&report);
    pair.b.sh("ip link set eth0 up")?;
    send_sequence(&pair, 10)?;
    assert_eq!(receive_sequence(&socket, 10), (0..10).collect::<Vec<u32>>());
    Ok(())
}

#[test]
fn a_link_that_cannot_be_made_says_why_and_leaves_nothing() -> Result<()> {
    require!(root, device("/dev/net/tun"));
    let pair = Pair::new()?;
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
    let long = connect(&Endpoint::named(pair.a.name(), "a-name-of-17-bytes"), &b).unwrap_err();
    assert!(
        matches!(long, LinkError::Device(DeviceError::Make { .. })),
        "{long}"
    );
    drop(link);
    // What another test is about to execute may have their descriptors for a moment yet.
    wait_until(DEADLINE, "the names are free", || connect(&a, &b).is_ok())
}

#[test]
fn a_namespace_may_go_before_its_link() -> Result<()> {
    require!(root, device("/dev/net/tun"));
    let pair = Pair::new()?;
    let link = pair.link(Shape::default(), Shape::default())?;
    drop(pair);
    assert_balanced(&link.stop().unwrap());
    Ok(())
}

#[test]
fn a_removed_device_ends_the_link_with_its_name() -> Result<()> {
    require!(root, device("/dev/net/tun"));
    let pair = Pair::new()?;
    let link = pair.link(
        Shape {
            rate: Capacity::Unlimited,
            ..Shape::default()
        },
        Shape::default(),
    )?;
    pair.b.sh("ip link delete eth0")?;
    let error = link.stop().unwrap_err();
    assert!(
        matches!(&error, LinkError::Device(DeviceError::Gone { .. })),
        "{error}"
    );
    Ok(())
}
