//! Whom a limit counts as one: a host of IPv6 has as many addresses as it likes.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};

use anyhow::{Context, Result, ensure};
use pepd_testbed::traffic::{Pair, accept};
use pepd_testbed::{Family, Netns, Stage, World, require, splits, wait_until};
use socket2::{Domain, Socket, Type};

use crate::harness::{LIMIT, PEPD};

/// The share of a source.
const SHARE: u64 = 20;

/// A network of the client's, every address of which it has.
const NETWORK: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xa, 0, 0x77, 0, 0, 0, 0);

#[test]
fn a_host_with_many_addresses_has_one_share() -> Result<()> {
    require!(root, program("nft"));
    let stage = Stage::with_config(PEPD, &config(64))?;
    let world = &stage.world;
    own_network(world)?;
    let listener = world.listen(Family::V6)?;
    let mut pairs = Vec::new();
    for host in 1..=SHARE {
        let (pair, split) = probe_from(world, &listener, address(host))?;
        ensure!(split, "connection {host} of {SHARE} is routed");
        pairs.push(pair);
    }
    wait_until(LIMIT, "the network is shut out", || {
        full(world).contains(&format!("{NETWORK} timeout"))
    })?;
    for host in 0..300 {
        let (pair, split) = probe_from(world, &listener, address(1000 + 7919 * host))?;
        ensure!(!split, "address {host} has a share of its own");
        pairs.push(pair);
    }
    for other in [world.client(), world.sibling()] {
        let open = || Pair::open(other, world.server(), World::server_address(Family::V6));
        let (pair, split) = splits(world.hb(), open)?;
        ensure!(split, "another network is not split");
        pairs.push(pair);
    }
    for pair in &pairs {
        pair.exchange(1000)?;
    }
    drop(pairs);
    wait_until(LIMIT, "its connections are split again", || {
        probe_from(world, &listener, address(1)).is_ok_and(|(_, split)| split)
    })?;
    stage.finish()
}

/// A reload that makes networks larger or smaller counts from then on, and lets in whom it should.
#[test]
fn a_reload_changes_whom_a_limit_counts_as_one() -> Result<()> {
    require!(root, program("nft"));
    let mut stage = Stage::with_config(PEPD, &config(128))?;
    own_network(&stage.world)?;
    let listener = stage.world.listen(Family::V6)?;
    let mut pairs = Vec::new();
    for host in 1..=2 * SHARE {
        let (pair, split) = probe_from(&stage.world, &listener, address(host))?;
        ensure!(split, "address {host} has no share of its own");
        pairs.push(pair);
    }
    stage.pepd()?.reload(&config(56))?;
    for host in 1..=SHARE {
        pairs.push(probe_from(&stage.world, &listener, address(host))?.0);
    }
    wait_until(LIMIT, "the network is shut out", || {
        full(&stage.world).contains("fd00:a:: timeout")
    })?;
    let (pair, split) = stage.world.probe(Family::V6)?;
    ensure!(!split, "fd00:a::/56 has the client's other network, too");
    pair.exchange(1000)?;
    stage.pepd()?.reload(&config(64))?;
    wait_until(LIMIT, "the client's other network is split", || {
        stage.world.probe(Family::V6).is_ok_and(|(_, split)| split)
    })?;
    for pair in &pairs {
        pair.exchange(1000)?;
    }
    drop(pairs);
    wait_until(LIMIT, "no source is full", || {
        !full(&stage.world).contains("timeout")
    })?;
    stage.finish()
}

fn config(prefix: u8) -> String {
    format!(
        "{}\n[limits]\nconnections_per_source = {SHARE}\nipv6_source_prefix = {prefix}\n",
        World::config()
    )
}

fn address(host: u64) -> Ipv6Addr {
    Ipv6Addr::from_bits(NETWORK.to_bits() | u128::from(host))
}

/// Makes every address of [`NETWORK`] the client's.
fn own_network(world: &World) -> Result<()> {
    let own = format!("ip -6 route add local {NETWORK}/64 dev lo");
    world.client().sh(&own)?;
    world.client().sysctl("net.ipv6.ip_nonlocal_bind", "1")?;
    let client = World::client_address(Family::V6);
    let route = format!("ip -6 route add {NETWORK}/64 via {client}");
    world.hb().sh(&route)?;
    Ok(())
}

/// Opens a connection from one of the client's addresses, and says whether it is split.
fn probe_from(world: &World, listener: &TcpListener, from: Ipv6Addr) -> Result<(Pair, bool)> {
    splits(world.hb(), || open_from(world.client(), listener, from))
}

fn open_from(client: &Netns, listener: &TcpListener, from: Ipv6Addr) -> Result<Pair> {
    let to = listener.local_addr()?;
    let socket = client.run(|| {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(IpAddr::V6(from), 0).into())?;
        socket.connect_timeout(&to.into(), LIMIT)?;
        socket.set_read_timeout(Some(LIMIT))?;
        socket.set_write_timeout(Some(LIMIT))?;
        Ok(socket)
    })?;
    let (server, peer) = accept(listener)?;
    ensure!(peer.ip() == IpAddr::V6(from), "the server sees {peer}");
    Ok(Pair {
        client: socket.into(),
        server,
    })
}

/// Returns the networks that are shut out.
fn full(world: &World) -> String {
    let listed = world.hb().sh("nft list set inet pepd full6");
    let listed = listed.context("list the set").unwrap();
    let elements = listed.split_once("elements").map(|(_, rest)| rest);
    elements.unwrap_or_default().to_owned()
}
