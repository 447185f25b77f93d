//! Many connections, refused ones, and limits: beyond a limit new connections are routed, and
//! existing ones notice nothing.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::poll::PollFlags;
use pepd_testbed::traffic::{End, Pair, Pattern, accept, await_event, connect, kind, receive};
use pepd_testbed::{
    Family, Netns, Pepd, Stage, Via, World, accepted, established, require, splits, wait_until,
};
use rstest::rstest;

use crate::harness::{LIMIT, PEPD, many_descriptors};

#[rstest]
fn three_thousand_connections_at_once(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let _turn = many_descriptors()?;
    let config = limits(8000, 8000);
    let stage = Stage::in_world(World::standard()?, via, PEPD, &config)?;
    let world = &stage.world;
    let listener = world.listen(family)?;
    let pairs = open_many(&listener, world.client(), 3000)?;
    // All live at the same time, and each has traffic more than once.
    for round in 1..=2 {
        for (index, pair) in pairs.iter().enumerate() {
            pair.exchange(1000)
                .with_context(|| format!("connection {index}, round {round}"))?;
        }
    }
    if via == Via::Pepd {
        assert_eq!(established(world.hb())?, 2 * 3000, "each is split");
    }
    stage.finish()
}

#[rstest]
fn refused_connections_do_not_disturb_live_ones(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let live: Vec<Pair> = (0..20)
        .map(|_| stage.world.pair(family))
        .collect::<Result<_>>()?;
    let closed = SocketAddr::new(World::server_address(family), 9);
    for round in 0..10 {
        for _ in 0..20 {
            match connect(stage.world.client(), closed) {
                Ok(stream) => assert_eq!(receive(&stream, &Pattern::new(0), 0)?, (0, End::RESET)),
                Err(error) => assert!(is_refusal(&error), "{error:#}"),
            }
        }
        for pair in &live {
            pair.exchange(5000)
                .with_context(|| format!("after {} refusals", 20 * (round + 1)))?;
        }
    }
    let descriptors = stage.pepd()?.descriptors()?;
    drop(live);
    // Nothing of the refused ones is left: what there was belonged to the live ones.
    wait_until(LIMIT, "the descriptors are given back", || {
        stage.pepd.as_ref().unwrap().descriptors().unwrap() + 2 * 20 <= descriptors
    })?;
    stage.finish()
}

/// The daemon may have 240 descriptors; ten times as many connections want to be split.
#[rstest]
fn out_of_descriptors_bystanders_live_on_and_new_connections_are_routed(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("prlimit"));
    let mut stage = Stage::open(Via::Routing, PEPD)?;
    let few = Pepd::builder(PEPD).wrapper(&["prlimit", "--nofile=240:240"]);
    stage.pepd = Some(few.start(stage.world.hb(), &limits(8000, 8000))?);
    let world = &stage.world;
    let bystanders = split_pairs(world, family, 5)?;

    let listener = world.listen(family)?;
    let crowd = open_many(&listener, world.client(), 500)?;
    let split = accepted(world.hb())?;
    assert!(
        (6..240).contains(&split),
        "{split} of 505 connections split"
    );
    for (index, pair) in crowd.iter().enumerate() {
        pair.exchange(1000)
            .with_context(|| format!("connection {index} of the crowd"))?;
    }
    assert!(!world.probe(family)?.1, "still split");
    for pair in &bystanders {
        pair.exchange(100_000).context("a bystander")?;
    }
    drop(crowd);
    wait_until(LIMIT, "new connections are split again", || {
        world.probe(family).unwrap().1
    })?;
    for pair in &bystanders {
        pair.exchange(100_000).context("a bystander, afterwards")?;
    }
    stage.finish()
}

/// Nothing was planned for this one: the limit sinks below what is in use while the daemon
/// runs, so that accept(2) itself fails with EMFILE.
#[rstest]
fn when_accept_fails_bystanders_live_on_and_new_connections_are_routed(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("prlimit"));
    let mut stage = Stage::open(Via::Early, PEPD)?;
    let bystanders: Vec<Pair> = (0..5)
        .map(|_| stage.world.pair(family))
        .collect::<Result<_>>()?;
    for pair in &bystanders {
        pair.exchange(10_000)?;
    }
    stage.pepd()?.limit_descriptors(10)?;
    let world = &stage.world;
    let listener = world.listen(family)?;
    // Those that come before the gate is closed wait in the listener's backlog.
    let mut waiting = Vec::new();
    let routed = loop {
        ensure!(waiting.len() < 100, "no connection is routed");
        let client = connect(world.client(), listener.local_addr()?)?;
        if await_event(&listener, PollFlags::POLLIN, Duration::from_secs(1))? {
            break client;
        }
        waiting.push(client);
    };
    ensure!(!waiting.is_empty(), "accept(2) has not failed");
    Pair {
        client: routed,
        server: accept(&listener)?.0,
    }
    .exchange(10_000)?;
    for pair in &bystanders {
        pair.exchange(100_000).context("a bystander")?;
    }
    let daemon = stage.pepd.as_ref().context("no daemon")?;
    daemon.limit_descriptors(20_000)?;
    // Something has to end for the daemon to try again.
    drop(bystanders);
    for client in waiting {
        let pair = Pair {
            client,
            server: accept(&listener).context("one that waited")?.0,
        };
        pair.server.set_nonblocking(false)?;
        drop(pair);
    }
    wait_until(LIMIT, "new connections are split again", || {
        world.probe(family).unwrap().1
    })?;
    stage.finish()
}

#[rstest]
fn beyond_the_limit_of_connections_new_ones_are_routed(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::with_config(PEPD, &limits(20, 20))?;
    let world = &stage.world;
    let mut pairs = split_pairs(world, family, 20)?;
    wait_until(LIMIT, "the gate is closed", || {
        ["gate", "second_gate"]
            .iter()
            .all(|gate| set(world, gate).is_empty())
    })?;
    pairs.extend(routed_pairs(world, family)?);
    let (other, split) = probe(world, world.sibling(), family)?;
    assert!(!split, "another source is split beyond the limit for all");
    for pair in pairs.iter().chain([&other]) {
        pair.exchange(20_000)?;
    }
    drop(pairs);
    wait_until(LIMIT, "new connections are split again", || {
        world.probe(family).unwrap().1
    })?;
    other.exchange(20_000)?;
    stage.finish()
}

#[test]
fn a_reload_raises_the_limit_of_connections() -> Result<()> {
    require!(root);
    let mut stage = Stage::with_config(PEPD, &limits(20, 20))?;
    let mut pairs = split_pairs(&stage.world, Family::V4, 20)?;
    wait_until(LIMIT, "the gate is closed", || {
        ["gate", "second_gate"]
            .iter()
            .all(|gate| set(&stage.world, gate).is_empty())
    })?;
    stage.pepd()?.reload(&limits(100, 100))?;
    wait_until(LIMIT, "new connections are split again", || {
        stage.world.probe(Family::V4).unwrap().1
    })?;
    pairs.extend(split_pairs(&stage.world, Family::V4, 20)?);
    for pair in &pairs {
        pair.exchange(1000)?;
    }
    let log = stage.pepd()?.log();
    assert!(!log.contains("needs more descriptors"), "{log}");
    drop(pairs);
    stage.finish()
}

#[rstest]
fn beyond_the_limit_of_a_source_only_its_own_are_routed(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::with_config(PEPD, &limits(8000, 10))?;
    let world = &stage.world;
    let mut pairs = split_pairs(world, family, 10)?;
    let (full, client) = match family {
        Family::V4 => ("full4", World::client_address(family)),
        // Its network: one host has any number of addresses.
        Family::V6 => ("full6", "fd00:a::".parse()?),
    };
    wait_until(LIMIT, "the source is shut out", || {
        set(world, full).contains(&format!("{client} timeout"))
    })?;
    pairs.extend(routed_pairs(world, family)?);
    let (other, split) = probe(world, world.sibling(), family)?;
    assert!(split, "another source is not split");
    for pair in pairs.iter().chain([&other]) {
        pair.exchange(20_000)?;
    }
    drop(pairs);
    wait_until(LIMIT, "new connections are split again", || {
        world.probe(family).unwrap().1
    })?;
    stage.finish()
}

/// A client that connects and says nothing, and one that vanishes in the middle, cost their
/// own connection and nothing more.
#[rstest]
fn silent_and_vanished_peers_hold_nobody_up(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let config = World::config()
        .replace("[leg.lan]", "[leg.lan]\nuser_timeout = \"2s\"")
        .replace("[leg.wan]", "[leg.wan]\nuser_timeout = \"2s\"");
    let mut stage = Stage::with_config(PEPD, &config)?;
    let world = &stage.world;
    let silent: Vec<Pair> = (0..50).map(|_| world.pair(family)).collect::<Result<_>>()?;
    let vanishing = Pair::open(
        world.sibling(),
        world.server(),
        World::server_address(family),
    )?;
    vanishing.exchange(10_000)?;
    // From here on not one packet comes from the sibling, not even a RST.
    world.sibling().sh("nft add table inet gone
         nft 'add chain inet gone output { type filter hook output priority 0; policy drop; }'")?;
    std::io::Write::write_all(&mut &vanishing.server, &[0; 100_000])?;
    for pair in &silent {
        pair.exchange(1000)?;
    }
    // The server learns of it when the client's leg has been silent for its user_timeout.
    assert_eq!(
        receive(&vanishing.server, &Pattern::new(0), 0)?,
        (0, End::RESET)
    );
    for pair in &silent {
        pair.exchange(1000)?;
    }
    assert!(stage.pepd()?.runs());
    stage.finish()
}

fn limits(connections: u32, per_source: u32) -> String {
    format!(
        "{}\n[limits]\nconnections = {connections}\nconnections_per_source = {per_source}\n",
        World::config()
    )
}

fn is_refusal(error: &anyhow::Error) -> bool {
    matches!(
        kind(error),
        Some(ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset)
    )
}

fn probe(world: &World, from: &Netns, family: Family) -> Result<(Pair, bool)> {
    let address = World::server_address(family);
    splits(world.hb(), || Pair::open(from, world.server(), address))
}

/// So many connections, all of which have to be split.
fn split_pairs(world: &World, family: Family, count: usize) -> Result<Vec<Pair>> {
    let open = |number| {
        let (pair, split) = world.probe(family)?;
        ensure!(split, "connection {number} of {count} is routed");
        Ok(pair)
    };
    (1..=count).map(open).collect()
}

/// Opens a few connections, all of which have to be routed.
fn routed_pairs(world: &World, family: Family) -> Result<Vec<Pair>> {
    let open = |number| {
        let (pair, split) = world.probe(family)?;
        ensure!(!split, "connection {number} beyond the limit is split");
        Ok(pair)
    };
    (1..=3).map(open).collect()
}

/// Returns the elements of a set of pepd's table.
fn set(world: &World, name: &str) -> String {
    let listed = world.hb().sh(&format!("nft list set inet pepd {name}"));
    let listed = listed.unwrap();
    let elements = listed.split_once("elements").map(|(_, rest)| rest);
    elements.unwrap_or_default().to_owned()
}

pub(super) fn open_many(listener: &TcpListener, client: &Netns, count: usize) -> Result<Vec<Pair>> {
    let to = listener.local_addr()?;
    client.run(|| {
        (0..count)
            .map(|index| {
                let client = TcpStream::connect_timeout(&to, LIMIT)
                    .with_context(|| format!("connection {index}"))?;
                client.set_read_timeout(Some(LIMIT))?;
                client.set_write_timeout(Some(LIMIT))?;
                Ok(Pair {
                    client,
                    server: accept(listener)?.0,
                })
            })
            .collect()
    })
}
