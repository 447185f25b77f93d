//! What comes to the queue of held ACKs, and what does not.

use std::net::{SocketAddr, TcpStream};
use std::thread;

use anyhow::Result;
use pepd_net::{Action, Away, HoldQueue, Plan, QueueBackend, Request, find_queue_backend};
use pepd_packet::QueueNumber;
use pepd_sys::nfqueue::{MESSAGE_BYTES, Queue, Recipient, Room, Verdict, packets};
use pepd_testbed::{require, wait_until};

use super::hold::holding;
use super::netns::{Netns, request, rule};
use super::world::{Answered, LONG, SERVER4, SERVER6, SSH, WEB, World, transfer};
use crate::harness::LIMIT;

const QUEUE: QueueNumber = QueueNumber(7299);

/// The version in the first byte of an IPv6 header.
const V6: u8 = 6;

/// SSH is bypassed, everything else stays end to end and is held.
fn holding_acks(backend: QueueBackend) -> Request {
    let mut request = request();
    request.rules = vec![
        rule(&[], &[], &[SSH..=SSH], Action::Bypass),
        rule(&[], &[], &[], Action::HoldAcks),
    ];
    request.hold_acks = Some(HoldQueue {
        queue: QUEUE,
        backend,
    });
    request
}

/// Lists the lines of a chain.
fn chain(plan: &str, name: &str) -> Vec<String> {
    let mut lines = plan.lines().map(str::trim);
    lines.find(|line| *line == format!("chain {name} {{"));
    let lines = lines.take_while(|line| *line != "}");
    lines.map(str::to_owned).collect()
}

#[test]
fn the_plan_with_held_acks() {
    let mut request = holding_acks(QueueBackend::Iptables);
    let first = rule(
        &["10.1.9.0/24", "fd00:a:9::/48"],
        &["10.2.0.0/16", "fd00:b::/48"],
        &[8730..=8731],
        Action::HoldAcks,
    );
    request.rules.insert(0, first);
    // After the last rule that holds there is nothing to exempt.
    request
        .rules
        .push(rule(&[], &["10.2.0.5/32"], &[], Action::Split));
    insta::assert_snapshot!(Plan::new(&request));
}

/// Each rule both ways; one that is the same both ways once.
#[test]
fn a_rule_is_tried_both_ways() {
    let mut request = holding_acks(QueueBackend::Nft);
    request.rules.insert(
        0,
        rule(
            &["10.1.9.0/24"],
            &["10.2.0.0/16"],
            &[8730..=8730],
            Action::Split,
        ),
    );
    let shown = Plan::new(&request).to_string();
    assert_eq!(
        chain(&shown, "hold_rules"),
        [
            "ip saddr { 10.1.9.0/24 } ip daddr { 10.2.0.0/16 } tcp dport { 8730 } accept comment \"rule 1: split\"",
            "ip daddr { 10.1.9.0/24 } ip saddr { 10.2.0.0/16 } tcp sport { 8730 } accept comment \"rule 1: split\"",
            "tcp dport { 22 } accept comment \"rule 2: bypass\"",
            "tcp sport { 22 } accept comment \"rule 2: bypass\"",
            "goto hold_acks comment \"rule 3: hold-acks\"",
        ]
    );
    assert_eq!(chain(&shown, "hold_acks"), ["queue num 7299 bypass"]);
    assert!(
        !shown.contains("iptables") && !shown.contains("unheld"),
        "{shown}"
    );
}

/// Without a queue such connections are routed and counted, and nothing else is there.
#[test]
fn where_nothing_can_be_held_they_are_routed() {
    let mut request = holding_acks(QueueBackend::Nft);
    request.hold_acks = None;
    let shown = Plan::new(&request).to_string();
    assert!(shown.contains("counter name hold_acks accept"), "{shown}");
    assert!(
        !shown.contains("away") && !shown.contains("queue"),
        "{shown}"
    );
}

fn here(netns: &Netns) -> QueueBackend {
    netns.block_on(find_queue_backend).unwrap()
}

/// Alone, and beside SYNs that are held.
#[test]
fn it_is_installed_verified_and_leaves_no_trace() -> Result<()> {
    require!(root);
    for syns in [false, true] {
        let netns = Netns::new();
        let backend = here(&netns);
        let acks = holding_acks(backend);
        let mut request = if syns { holding(backend) } else { request() };
        (request.rules, request.hold_acks) = (acks.rules, acks.hold_acks);
        netns.leaves_no_trace(&request);
    }
    Ok(())
}

#[test]
fn going_back_takes_the_queue_away() -> Result<()> {
    require!(root);
    let netns = Netns::new();
    let holding = holding_acks(here(&netns));
    let mut installed = netns.install(&request()).unwrap();
    let plain = netns.state();
    netns.replace(&mut installed, &holding).unwrap();
    netns.block_on(|| installed.verify()).unwrap();
    let away = netns.run(|| Away::open().unwrap());
    away.hold(LONG).unwrap();
    away.hold(LONG).unwrap();
    netns.block_on(|| installed.verify()).unwrap();
    assert!(netns.nft("list set inet pepd away").contains("tcp"));
    away.pass().unwrap();
    away.pass().unwrap();
    assert!(!netns.nft("list set inet pepd away").contains("tcp"));
    netns.replace(&mut installed, &request()).unwrap();
    assert_eq!(netns.state(), plain);
    // There is no such set: nothing to pass, nothing that could be held.
    away.pass().unwrap();
    assert!(away.hold(LONG).is_err());
    netns.block_on(|| installed.remove()).unwrap();
    Ok(())
}

/// A segment that was in the queue: the ports, and the byte of flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    from: u16,
    to: u16,
    flags: u8,
}

fn seen(packet: &[u8]) -> Seen {
    let header = match packet[0] >> 4 {
        V6 => 40,
        _ => usize::from(packet[0] & 15) * 4,
    };
    let tcp = &packet[header..];
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    Seen {
        from: port(0),
        to: port(2),
        flags: tcp[13],
    }
}

/// Lets go everything that is in the queue now; gives what it was.
fn read(queue: &Queue) -> Vec<Seen> {
    let mut buffer = vec![0; MESSAGE_BYTES];
    let mut all = Vec::new();
    while let Ok(len) = queue.receive(&mut buffer) {
        for packet in packets(&buffer[..len]) {
            all.push(seen(packet.payload));
            let verdict = Verdict::Accept(packet.mark);
            queue
                .decide(packet.id, verdict, Recipient::Anybody)
                .unwrap();
        }
    }
    all
}

/// Opens a connection to the server, end to end.
fn open(world: &World, server: &str, port: u16) -> (TcpStream, TcpStream) {
    let to = SocketAddr::new(server.parse().unwrap(), port);
    let connect = || TcpStream::connect_timeout(&to, LIMIT).unwrap();
    let client = world.client.run(connect);
    let (who, accepted) = world.accept();
    assert_eq!(who, Answered::Server);
    (client, accepted)
}

#[test]
fn without_a_reader_everything_passes() -> Result<()> {
    require!(root);
    let backend = here(&Netns::new());
    let (world, _installed) = World::with(&holding_acks(backend));
    let away = world.hb.run(|| Away::open().unwrap());
    away.hold(LONG).unwrap();
    for server in [SERVER4, SERVER6] {
        assert_eq!(world.connect(server, WEB), Answered::Server);
        assert_eq!(world.connect(server, SSH), Answered::Server);
    }
    assert_eq!(world.count("hold_acks"), 2);
    assert_eq!(world.count("bypassed"), 2);
    Ok(())
}

#[test]
fn a_reader_sees_segments_of_both_directions_and_no_syn() -> Result<()> {
    require!(root);
    let backend = here(&Netns::new());
    let (world, _installed) = World::with(&holding_acks(backend));
    let away = world.hb.run(|| Away::open().unwrap());
    let queue = world.hb.run(|| Queue::open(QUEUE, Room::SYNS).unwrap());
    for server in [SERVER4, SERVER6] {
        // No link is away.
        assert_eq!(world.connect(server, WEB), Answered::Server);
        assert_eq!(read(&queue), []);

        away.hold(LONG).unwrap();
        let (mut client, mut accepted) = thread::scope(|scope| {
            let opened = scope.spawn(|| open(&world, server, WEB));
            let mut all = Vec::new();
            wait_until(LIMIT, "the handshake's last acknowledgement", || {
                all.extend(read(&queue));
                opened.is_finished() && !all.is_empty()
            })
            .unwrap();
            assert!(all.iter().all(|it| it.flags & 2 == 0), "{all:?}");
            opened.join().unwrap()
        });
        let all = thread::scope(|scope| {
            let transfers = scope.spawn(|| {
                transfer(&mut client, &mut accepted, 10);
                transfer(&mut accepted, &mut client, 10);
                // Never held, whatever is.
                assert_eq!(world.connect(server, SSH), Answered::Server);
            });
            let mut all = Vec::new();
            wait_until(LIMIT, "both transfers", || {
                all.extend(read(&queue));
                transfers.is_finished()
            })
            .unwrap();
            transfers.join().unwrap();
            all
        });
        assert!(all.iter().any(|it| it.to == WEB), "{all:?}");
        assert!(all.iter().any(|it| it.from == WEB), "{all:?}");
        assert!(all.iter().all(|it| it.flags & 2 == 0), "{all:?}");
        let ssh = |it: &Seen| it.from == SSH || it.to == SSH;
        assert!(!all.iter().any(ssh), "{all:?}");
        away.pass().unwrap();
        // What is on its way yet.
        drop((client, accepted));
        wait_until(LIMIT, "an empty queue", || read(&queue).is_empty())?;
    }
    Ok(())
}
