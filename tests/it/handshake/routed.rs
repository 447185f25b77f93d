//! Connection establishment end to end: SYNs that were routed, because there was no place for them
//! or no daemon, and may have been answered. What repeats them is routed, too.

use std::net::{IpAddr, SocketAddr, TcpStream};

use anyhow::Result;
use pepd_testbed::traffic::listen;
use pepd_testbed::{Family, Netns, Stage, Via, World, accepted, require, wait_until};
use rstest::rstest;
use socket2::{Domain, SockRef, Socket, Type};

use super::held_syn::{
    LIMIT, before, connect_meanwhile, connected, counter, silence, wait_for_gate,
};
use crate::harness::PEPD;

/// A SYN that was routed, because others took its place, may have been answered: the one that
/// repeats it must not be held.
#[rstest]
fn what_repeats_a_routed_syn_is_routed(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    // Of which a source may have one.
    let config = format!("{}\n[limits]\npending = 2\n", World::config());
    let stage = Stage::with_config(PEPD, &config)?;
    let world = &stage.world;
    world.pair(family)?;
    answer_the_clients_own(world.server(), family)?;
    silence(world.server(), 4001)?;
    let address = |port| SocketAddr::new(World::server_address(family), port);
    let listener = listen(world.server(), address(4000))?;
    // Until the client has sent its SYN again.
    let deaf = Deaf::to_answers(world.client())?;
    world
        .hb()
        .sh("nft add table inet seen; nft add counter inet seen syns; \
         nft add chain inet seen c '{ type filter hook prerouting priority -500; }'; \
         nft add rule inet seen c tcp dport 4000 counter name syns")?;
    let syns = || world.hb().sh("nft list counter inet seen syns");
    let attempt = connect_meanwhile(&stage, address(4000))?;
    let split = accepted(world.hb())?;
    // Once the first has had its time, one that comes takes its place; the first is routed from
    // there on, however often it comes.
    wait_until(LIMIT, "the server has answered", || {
        let newer = begin(world.client(), address(4001), 1);
        let answered = world.server().sh("ss -Htn state syn-recv");
        newer.is_ok() && answered.is_ok_and(|answered| answered.contains(":4000"))
    })?;
    let before = syns()?;
    wait_until(LIMIT, "the client has sent its SYN again", || {
        syns().is_ok_and(|now| now != before)
    })?;
    deaf.no_more()?;
    connected(attempt, &listener)?.exchange(100_000)?;
    assert_eq!(accepted(world.hb())?, split);
    stage.finish()
}

/// A SYN that has to make room is routed only when the box's own socket from the client's port is
/// gone: it would reset the destination's answer.
#[rstest]
fn what_makes_room_is_not_reset_by_the_box(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    const CLIENTS: usize = 64;
    // On the worker that has the socket nothing is routed before it is gone. It has to be another
    // worker that routes, which the queues choose by both addresses.
    let config = World::config().replacen("[node]", "[node]\nworkers = 8", 1);
    // Of which a source may have half.
    let config = format!("{config}\n[limits]\npending = {}\n", 2 * CLIENTS);
    let stage = Stage::with_config(PEPD, &config)?;
    let world = &stage.world;
    world.pair(family)?;
    answer_the_clients_own(world.server(), family)?;
    // Before those of the box are dropped with the rest.
    world.server().sh("nft add counter inet picky resets; \
         nft insert rule inet picky c tcp dport 4000 tcp flags rst counter name resets")?;
    let address = SocketAddr::new(World::server_address(family), 4000);
    let listener = listen(world.server(), address)?;
    SockRef::from(&listener).listen(1024)?;
    let clients = begin(world.client(), address, CLIENTS)?;
    wait_until(LIMIT, "all have been connected", || {
        // These take the places of the first, once those have had their time.
        let newer = absent(family).map(|host| begin(world.client(), host, 1));
        let connected = clients.iter().filter(|client| client.peer_addr().is_ok());
        newer.collect::<Result<Vec<_>>>().is_ok() && connected.count() == CLIENTS
    })?;
    let resets = world.server().sh("nft list counter inet picky resets")?;
    assert_eq!(before(&resets, " bytes"), 0, "{resets}");
    stage.finish()
}

/// Hosts of the server's network that are not there.
fn absent(family: Family) -> impl Iterator<Item = SocketAddr> {
    let address = move |host: u8| -> IpAddr {
        match family {
            Family::V4 => [10, 2, 0, host].into(),
            Family::V6 => [0xfd00, 0xb, 0, 0, 0, 0, 0, u16::from(host)].into(),
        }
    };
    (100..164).map(move |host| SocketAddr::new(address(host), 80))
}

/// The reason why a SYN is routed without the daemon's knowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absence {
    /// The gate is closed.
    Pause,
    /// Nobody reads the queue.
    Kill,
}

/// The same for a SYN that was routed while the daemon was away, once it is back.
#[rstest]
fn what_repeats_a_syn_that_was_routed_without_the_daemon_is_routed(
    #[values(Absence::Pause, Absence::Kill)] absence: Absence,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    world.pair(family)?;
    answer_the_clients_own(world.server(), family)?;
    let address = SocketAddr::new(World::server_address(family), 4000);
    let listener = listen(world.server(), address)?;
    // Until the client has sent its SYN again.
    let deaf = Deaf::to_answers(world.client())?;
    let daemon = stage.pepd.take().unwrap();
    let paused = match absence {
        Absence::Pause => {
            daemon.pause()?;
            wait_for_gate(world.hb(), false)?;
            Some(daemon)
        }
        Absence::Kill => {
            daemon.kill()?;
            None
        }
    };
    let attempt = world
        .client()
        .spawn(move || Ok(TcpStream::connect(address)?))?;
    wait_until(LIMIT, "the server has answered", || {
        let answered = world.server().sh("ss -Htn state syn-recv");
        answered.is_ok_and(|answered| answered.contains(":4000"))
    })?;
    let daemon = match paused {
        Some(daemon) => {
            daemon.resume()?;
            daemon
        }
        None => pepd_testbed::Pepd::start(PEPD, world.hb(), &World::config())?,
    };
    wait_for_gate(world.hb(), true)?;
    let count = |name| counter(world.hb(), name);
    let held = count("held")?;
    wait_until(LIMIT, "the client has sent its SYN again", || {
        count("repeated").is_ok_and(|repeated| repeated > 0)
    })?;
    deaf.no_more()?;
    connected(attempt, &listener)?.exchange(100_000)?;
    assert_eq!(count("held")?, held, "no SYN of it was held");
    // Another connection of the same client's is split as ever.
    wait_until(LIMIT, "a SYN is held again", || {
        world.pair(family).is_ok() && count("held").is_ok_and(|now| now > held)
    })?;
    stage.pepd = Some(daemon);
    stage.finish()
}

/// Has the server answer the client's own SYNs to port 4000, which come over one router, and not
/// the box's.
fn answer_the_clients_own(server: &Netns, family: Family) -> Result<()> {
    let hops = match family {
        Family::V4 => "ip ttl 64",
        Family::V6 => "ip6 hoplimit 64",
    };
    server.sh(&format!(
        "nft add table inet picky; \
         nft add chain inet picky c '{{ type filter hook input priority 0; }}'; \
         nft add rule inet picky c tcp dport 4000 {hops} drop"
    ))?;
    Ok(())
}

/// A client for whom the answers of port 4000 come to nothing.
struct Deaf<'a>(&'a Netns);

impl<'a> Deaf<'a> {
    fn to_answers(client: &'a Netns) -> Result<Self> {
        client.sh("nft add table inet deaf; \
             nft add chain inet deaf c '{ type filter hook input priority 0; }'; \
             nft add rule inet deaf c tcp sport 4000 drop")?;
        Ok(Self(client))
    }

    fn no_more(self) -> Result<()> {
        self.0.sh("nft delete table inet deaf")?;
        Ok(())
    }
}

/// Sends so many SYNs, right behind each other.
fn begin(client: &Netns, to: SocketAddr, count: usize) -> Result<Vec<Socket>> {
    client.run(|| {
        (0..count)
            .map(|_| {
                let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
                socket.set_nonblocking(true)?;
                // Under way.
                let _ = socket.connect(&to.into());
                Ok(socket)
            })
            .collect()
    })
}
