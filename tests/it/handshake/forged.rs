//! SYNs from addresses that nobody has: the server sees no more of them than without pepd.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use pepd_testbed::forge::{Flood, Forger, Segment, stranger};
use pepd_testbed::link::Shape;
use pepd_testbed::traffic::{Pair, listen};
use pepd_testbed::{Family, Netns, Stage, Via, World, accepted, require, splits, wait_until};
use rstest::rstest;

use super::held_syn::{LIMIT, connected, counter, counter_in, silence};
use crate::harness::PEPD;

/// What a SYN alone opens at a server is a handshake that has been begun, however often the server
/// repeats its answer; and the addresses in whose name it was sent get that answer and no more.
#[rstest]
fn a_forged_syn_becomes_no_connection_at_the_server(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    const SYNS: u64 = 300;
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    world.pair(family)?.exchange(1000)?;
    place_strangers(world)?;
    let victim = SocketAddr::new(World::server_address(family), 7);
    let _listener = listen(world.server(), victim)?;
    let (before, held) = (accepted(world.server())?, counter(world.hb(), "held")?);
    let flood = Flood::of_syns(
        world.client(),
        60,
        move |number| stranger(number, victim.ip()),
        victim,
    )?;
    wait_until(LIMIT, "the flood has gone on for seconds", || {
        flood.sent() >= SYNS
    })?;
    let now = counter(world.hb(), "held")?;
    assert!(
        now - held > SYNS / 2,
        "{held}, {now}: most were to be split"
    );
    assert_eq!(accepted(world.server())?, before);
    assert_eq!(established_at(world.server(), 7)?, 0);
    // In the middle of it.
    Pair::through(&world.listen(family)?, world.sibling())?.exchange(100_000)?;
    flood.stop()?;
    assert_eq!(established_at(world.server(), 7)?, 0);
    let answers = counter_in(world.client(), "strangers", "answers")?;
    let others = counter_in(world.client(), "strangers", "others")?;
    assert!(answers > 0 && others == 0, "{answers}, {others}");
    stage.finish()
}

/// Whatever is cut off of its header: such a SYN is passed on as it came, and shuts nobody's gate.
#[rstest]
fn a_syn_with_half_a_header_harms_nobody(
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    world.pair(family)?.exchange(1000)?;
    place_strangers(world)?;
    let listener = world.listen(family)?;
    let victim = listener.local_addr()?;
    let forger = Forger::new(world.client())?;
    for number in 0..10 {
        for len in 12..20 {
            let from = SocketAddr::new(stranger(number, victim.ip()), 4000);
            let mut packet = Segment::syn(from, victim, 7).packet().context("a SYN")?;
            let ip_header = packet.len() - 20;
            packet.truncate(ip_header + len);
            let (field, length) = match family {
                Family::V4 => (2..4, packet.len()),
                Family::V6 => (4..6, len),
            };
            packet[field].copy_from_slice(&u16::try_from(length)?.to_be_bytes());
            forger.send_packet(&packet, victim.ip());
            let open = || Pair::through(&listener, world.client());
            let (_pair, split) = splits(world.hb(), open)?;
            assert!(split, "after {len} bytes");
        }
    }
    let hb = world.hb();
    assert_eq!(
        (counter(hb, "gate_closed")?, counter(hb, "no_listener")?),
        (0, 0)
    );
    stage.finish()
}

/// A SYN that was damaged on its way arrives as it is, and no sound one in its place.
#[rstest]
fn a_damaged_syn_is_passed_on_as_it_is(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    const SYNS: u64 = 20;
    const NUMBER: u32 = 7;
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    world.pair(family)?.exchange(1000)?;
    place_strangers(world)?;
    let listener = world.listen(family)?;
    let victim = listener.local_addr()?;
    // The box would choose another number.
    let syn = format!("tcp dport {} tcp flags & (syn | ack) == syn", victim.port());
    world.server().sh(&format!(
        "nft 'add table inet seen; add counter inet seen damaged; add counter inet seen sound; \
         add chain inet seen c {{ type filter hook input priority -300; }}; \
         add rule inet seen c {syn} tcp sequence {NUMBER} counter name damaged; \
         add rule inet seen c {syn} tcp sequence != {NUMBER} counter name sound'"
    ))?;
    let seen = |name| counter_in(world.server(), "seen", name);
    let forger = Forger::new(world.client())?;
    let mut sent = 0;
    // Any of them may be lost.
    wait_until(LIMIT, "the server has seen them", || {
        sent += 1;
        let from = SocketAddr::new(stranger(sent, victim.ip()), 4000);
        if let Some(mut packet) = Segment::syn(from, victim, NUMBER).packet() {
            let checksum = packet.len() - 4;
            packet[checksum] ^= 0x55;
            forger.send_packet(&packet, victim.ip());
        }
        seen("damaged").is_ok_and(|seen| seen >= SYNS)
    })?;
    assert_eq!(seen("sound")?, 0);
    let open = || Pair::through(&listener, world.client());
    assert!(splits(world.hb(), open)?.1);
    stage.finish()
}

/// Until the client has come, the server does not speak; then at once.
#[rstest]
fn a_server_that_speaks_first_is_heard(
    #[values(5, 150, 350)] delay: u64,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, device("/dev/net/tun"));
    let client_leg = Shape {
        delay: Duration::from_millis(delay),
        ..Shape::default()
    };
    let world = World::emulated(client_leg, Shape::default())?;
    let stage = Stage::in_world(world, Via::Pepd, PEPD, &World::config())?;
    let listener = stage.world.listen(family)?;
    for _ in 0..3 {
        let Pair {
            mut client,
            mut server,
        } = Pair::through(&listener, stage.world.client())?;
        server.write_all(b"220 ready\r\n")?;
        let mut said = [0; 11];
        client.read_exact(&mut said)?;
        assert_eq!(&said, b"220 ready\r\n");
        Pair { client, server }.exchange(10_000)?;
    }
    stage.finish()
}

/// The upstream leg of a client that takes too long makes room for others, and the server's
/// handshake is reset. The client is served all the same, by another one.
#[rstest]
fn a_client_that_comes_late_is_served(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    // Of which a source may have one.
    let config = format!("{}\n[limits]\npending = 2\n", World::config());
    let stage = Stage::with_config(PEPD, &config)?;
    let world = &stage.world;
    world.pair(family)?.exchange(1000)?;
    let listener = listen(
        world.server(),
        SocketAddr::new(World::server_address(family), 4000),
    )?;
    silence(world.server(), 4001)?;
    world.client().sh("nft add table inet mute; \
         nft add chain inet mute c '{ type filter hook output priority 0; }'; \
         nft add rule inet mute c tcp dport 4000 tcp flags '& (syn | rst | ack) == ack' drop")?;
    let to = listener.local_addr()?;
    let attempt = world
        .client()
        .spawn(move || Ok(std::net::TcpStream::connect(to)?))?;
    let half_open = || {
        let sockets = world.server().sh("ss -Htn state syn-recv");
        sockets.is_ok_and(|sockets| sockets.contains(":4000"))
    };
    wait_until(LIMIT, "the server has answered", half_open)?;
    let before = accepted(world.server())?;
    let silent = SocketAddr::new(World::server_address(family), 4001);
    wait_until(LIMIT, "the leg has made room", || {
        begin(world.client(), silent).is_ok() && !half_open()
    })?;
    assert_eq!(accepted(world.server())?, before);
    world.client().sh("nft delete table inet mute")?;
    connected(attempt, &listener)?.exchange(100_000)?;
    stage.finish()
}

/// Sends a SYN, and gives up.
fn begin(client: &Netns, to: SocketAddr) -> Result<()> {
    client.run(|| {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(to),
            socket2::Type::STREAM,
            None,
        )?;
        socket.set_nonblocking(true)?;
        // Under way.
        let _ = socket.connect(&to.into());
        Ok(())
    })
}

/// Leads packets for strangers to the client, which counts them and has none of their addresses.
pub fn place_strangers(world: &World) -> Result<()> {
    world
        .hb()
        .sh("ip route add 10.1.0.0/16 via 10.1.0.2; ip route add fd00:a::/48 via fd00:a::2")?;
    let answers = "'tcp flags & (syn | ack | rst) == (syn | ack)' counter name answers accept";
    let rules = [
        "ip daddr 10.1.2.0-10.1.255.255",
        "ip6 daddr fd00:a:0:9::/64",
    ]
    .map(|to| {
        format!(
            "nft add rule inet strangers c {to} {answers}; \
                           nft add rule inet strangers c {to} counter name others;"
        )
    });
    world.client().sh(&format!(
        "nft add table inet strangers; \
         nft add counter inet strangers answers; nft add counter inet strangers others; \
         nft add chain inet strangers c '{{ type filter hook prerouting priority -500; }}'; {}",
        rules.concat()
    ))?;
    Ok(())
}

/// Returns how many connections of a server's port are established.
pub fn established_at(server: &Netns, port: u16) -> Result<usize> {
    let sockets = server.sh(&format!("ss -Htn state established 'sport = :{port}'"))?;
    Ok(sockets.lines().count())
}
