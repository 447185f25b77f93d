//! Whom a limit counts as one: a host of IPv6 has as many addresses as it likes.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::poll::PollFlags;
use pepd_testbed::traffic::{Pair, accept, await_event};
use pepd_testbed::{Family, Netns, Stage, Via, World, ask, require, splits, wait_until};
use rstest::rstest;
use serde_json::Value;
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

/// However many come at once, and however late the kernel hears that there are enough. What is beyond
/// is routed; where a client's SYN had its turn before, as happens on a machine that stands still for a
/// second, and always where SYNs are not held, it is reset.
#[rstest]
fn of_many_at_once_a_source_has_its_share_and_no_more(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(true, false)] held: bool,
) -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let config = if held {
        World::config()
    } else {
        World::early_config()
    };
    let config = format!(
        "{config}\n[limits]\nconnections_per_source = {SHARE}\n{}",
        world.admin()
    );
    let via = if held { Via::Pepd } else { Via::Early };
    let stage = Stage::in_world(world, via, PEPD, &config)?;
    let world = &stage.world;
    let listener = world.listen(family)?;
    // The path knows the neighbours: none of the SYNs waits for them.
    let (first, split) = world.probe(family)?;
    ensure!(split, "the first one is routed");
    let clients = connect_at_once(world.client(), &listener, 5 * SHARE)?;
    let mut connected = Vec::new();
    for client in clients {
        connected.extend(established(client)?);
    }
    let served = exchange_with_all(&connected, &listener)?;
    let status: Value = serde_json::from_str(&ask(&world.admin_socket(), "GET /v1/status")?)?;
    let count = |name: &str| {
        let counters = status["counters"].as_array().context("no counters")?;
        let counter = counters.iter().find(|counter| counter["name"] == name);
        counter.context("no such counter")?["count"]
            .as_u64()
            .context("no number")
    };
    println!(
        "{served} of {} served; {} accepted, {} reset, {} routed by the daemon",
        5 * SHARE,
        count("accepted")?,
        count("source_full")?,
        count("let_through_source_full")?,
    );
    // With the first one, which is there all the time.
    ensure!(count("accepted")? == SHARE, "{}", count("accepted")?);
    ensure!(served + count("source_full")? == 5 * SHARE, "{served}");
    first.exchange(1000)?;
    drop((first, connected));
    wait_until(LIMIT, "its connections are split again", || {
        world.probe(family).is_ok_and(|(_, split)| split)
    })?;
    stage.finish()
}

/// Sends all SYNs before any of them is waited for.
fn connect_at_once(client: &Netns, to: &TcpListener, count: u64) -> Result<Vec<Socket>> {
    let to = to.local_addr()?;
    client.run(|| {
        (0..count)
            .map(|_| {
                let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
                socket.set_nonblocking(true)?;
                match socket.connect(&to.into()) {
                    Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error)?,
                    _ => Ok(socket),
                }
            })
            .collect()
    })
}

/// Waits until it is connected; none where it has been reset.
fn established(socket: Socket) -> Result<Option<TcpStream>> {
    let stream = TcpStream::from(socket);
    ensure!(await_event(&stream, PollFlags::POLLOUT, LIMIT)?, "silence");
    if stream.take_error()?.is_some() {
        return Ok(None);
    }
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(Some(stream))
}

/// Has all clients that are not reset exchange bytes with the server, and returns how many these are.
fn exchange_with_all(clients: &[TcpStream], listener: &TcpListener) -> Result<u64> {
    let mut servers = HashMap::new();
    let mut served = 0;
    for client in clients {
        let address = client.local_addr()?;
        // One that is reset has no server, and never will.
        while !servers.contains_key(&address) && !has_ended(client)? {
            listener.set_nonblocking(true)?;
            if await_event(listener, PollFlags::POLLIN, Duration::from_millis(100))? {
                let (server, peer) = accept(listener)?;
                servers.insert(peer, server);
            }
        }
        let Some(server) = servers.remove(&address) else {
            continue;
        };
        Pair {
            client: client.try_clone()?,
            server,
        }
        .exchange(1000)?;
        served += 1;
    }
    Ok(served)
}

/// Returns whether a client has been reset.
fn has_ended(client: &TcpStream) -> Result<bool> {
    client.set_nonblocking(true)?;
    let peeked = client.peek(&mut [0]);
    client.set_nonblocking(false)?;
    Ok(match peeked {
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    })
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
