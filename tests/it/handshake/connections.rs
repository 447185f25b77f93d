//! Connection establishment end to end: the connection that is established is the client's own,
//! with its port, what its SYN asked for and what its SYN carried, and nobody else's.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use pepd_sys::sockopt;
use pepd_testbed::traffic::{self, End, Pair, Pattern, accept, listen, receive, send_first};
use pepd_testbed::{Family, Stage, Via, World, accepted, require, wait_until};
use rstest::rstest;
use socket2::{Domain, SockRef, Socket, Type};

use super::held_syn::{LIMIT, before, counter, nothing_is_held};
use crate::harness::PEPD;

#[rstest]
#[case::one_after_the_other(10_000, 1)]
#[case::many_at_once(2_000, 500)]
fn nobody_gets_somebody_elses_connection(
    #[case] connections: u64,
    #[case] at_once: u64,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let connections = match std::env::var_os("PEPD_GUEST") {
        // Its processors are emulated.
        Some(_) => connections.min(2_000),
        None => connections,
    };
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    // Ports in TIME_WAIT come back sooner or later.
    world
        .client()
        .sysctl("net.ipv4.ip_local_port_range", "10000 65000")?;
    let listener = world.listen(family)?;
    // Room for all of them, however slow the machine is: a client that waits because the server has
    // dropped its SYN says nothing about the box.
    SockRef::from(&listener).listen(1024)?;
    let to = listener.local_addr()?;
    echo_tokens(&listener)?;
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..at_once)
            .map(|_| {
                let next = &next;
                scope.spawn(move || {
                    world.client().run(|| {
                        loop {
                            let token = next.fetch_add(1, Ordering::Relaxed);
                            if token >= connections {
                                return Ok(());
                            }
                            let mut stream = TcpStream::connect(to)?;
                            stream.set_read_timeout(Some(LIMIT))?;
                            ask_on(&mut stream, token)?;
                        }
                    })
                })
            })
            .collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().unwrap())
    })?;
    nothing_is_held(&stage)?;
    wait_until(LIMIT, "no connection is left on the box", || {
        let left = world
            .hb()
            .sh("ss -Htna state established state syn-sent state close-wait");
        left.is_ok_and(|left| left.trim().is_empty())
    })?;
    let routed = counter(world.hb(), "gate_closed")? + counter(world.hb(), "unread")?;
    let (_, log) = stage.pepd.take().unwrap().stop()?;
    let (_, counts) = log.rsplit_once("ended: ").context("no counts")?;
    assert!(counts.contains(" 0 pending"), "{log}");
    let split = before(counts, " accepted, ");
    let routed = routed + before(counts, " let through");
    println!("{split} split, {routed} SYNs routed");
    let all = match std::env::var_os("PEPD_GUEST") {
        // A box that hangs for seconds routes what comes, and says so.
        Some(_) => split <= connections && split + routed >= connections,
        None => split == connections,
    };
    assert!(all, "{split} split, {routed} SYNs routed: {log}");
    Ok(())
}

/// A server that repeats to each client its token and says which port it came from. Its threads
/// end with the test's process.
fn echo_tokens(listener: &TcpListener) -> Result<()> {
    for _ in 0..8 {
        let listener = listener.try_clone()?;
        std::thread::spawn(move || {
            while let Ok((mut stream, peer)) = listener.accept() {
                let mut token = [0; 8];
                if stream.read_exact(&mut token).is_ok() {
                    let _ = stream.write_all(&token);
                    let _ = stream.write_all(&peer.port().to_be_bytes());
                }
            }
        });
    }
    Ok(())
}

fn ask_on(stream: &mut TcpStream, token: u64) -> Result<()> {
    stream.write_all(&token.to_be_bytes())?;
    let mut answer = [0; 10];
    stream.read_exact(&mut answer)?;
    assert_eq!(
        answer[..8],
        token.to_be_bytes(),
        "somebody else's connection"
    );
    assert_eq!(answer[8..], stream.local_addr()?.port().to_be_bytes());
    Ok(())
}

#[rstest]
fn one_port_of_a_client_reaches_two_destinations(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    let pairs: Vec<Pair> = [4001, 4002]
        .into_iter()
        .map(|port| {
            let address = SocketAddr::new(World::server_address(family), port);
            let listener = listen(world.server(), address)?;
            let client = from_port(world, family, 23_456, address)?;
            let (server, peer) = accept(&listener)?;
            assert_eq!(peer.port(), 23_456, "the client's own port");
            Ok(Pair { client, server })
        })
        .collect::<Result<_>>()?;
    for pair in &pairs {
        pair.exchange(10_000)?;
    }
    assert!(accepted(world.hb())? >= 2);
    stage.finish()
}

/// A client may use a port again whose last connection is in TIME_WAIT, at the server and on
/// the box.
#[rstest]
fn a_port_in_time_wait_is_used_again(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    let address = SocketAddr::new(World::server_address(family), 4001);
    let listener = listen(world.server(), address)?;
    for round in 0..3 {
        let client = from_port(world, family, 23_456, address)?;
        let (server, peer) = accept(&listener)?;
        assert_eq!(peer, client.local_addr()?, "round {round}");
        let pair = Pair { client, server };
        pair.exchange(1_000)?;
        // The server closes first: it and the box, not the client, are in TIME_WAIT.
        drop(pair.server);
        let end = receive(&pair.client, &Pattern::new(0), 0)?;
        assert_eq!(end, (0, End::Fin), "round {round}");
    }
    assert!(accepted(world.hb())? >= 3);
    stage.finish()
}

/// Where a program on the box listens on the client's port, the connection is routed, from that
/// port, and not split from another.
#[rstest]
fn a_client_port_that_the_box_itself_listens_on_is_routed(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    let _wildcard = listen(world.hb(), family.any(23_456))?;
    let address = SocketAddr::new(World::server_address(family), 4001);
    let listener = listen(world.server(), address)?;
    let client = from_port(world, family, 23_456, address)?;
    let (server, peer) = accept(&listener)?;
    assert_eq!(peer, client.local_addr()?);
    Pair { client, server }.exchange(10_000)?;
    assert_eq!(accepted(world.hb())?, 0);
    world.pair(family)?;
    stage.finish()
}

/// Connects from this very port, as soon as the client's own last connection from it is gone: the
/// acknowledgement of its FIN may still be under way.
fn from_port(world: &World, family: Family, port: u16, to: SocketAddr) -> Result<TcpStream> {
    let mut outcome = None;
    wait_until(LIMIT, "the port is free on the client", || {
        let tried = try_from_port(world, family, port, to);
        let taken = tried
            .as_ref()
            .is_err_and(|error| traffic::kind(error) == Some(ErrorKind::AddrNotAvailable));
        outcome = Some(tried);
        !taken
    })?;
    outcome.context("no attempt was made")?
}

fn try_from_port(world: &World, family: Family, port: u16, to: SocketAddr) -> Result<TcpStream> {
    world.client().run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::new(World::client_address(family), port).into())?;
        socket.connect(&to.into())?;
        socket.set_read_timeout(Some(LIMIT))?;
        Ok(socket.into())
    })
}

/// The client's SYN shapes the upstream one: DSCP and MSS.
#[rstest]
fn the_servers_syn_is_shaped_by_the_clients(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    let listener = world.listen(family)?;
    sockopt::set_save_syn(listener.as_fd(), 1)?;
    let to = listener.local_addr()?;
    let client = world.client().run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        sockopt::set_max_segment(socket.as_fd(), 900)?;
        match family {
            Family::V4 => sockopt::set_tos_v4(socket.as_fd(), 46 << 2)?,
            Family::V6 => sockopt::set_tclass_v6(socket.as_fd(), 46 << 2)?,
        }
        socket.connect(&to.into())?;
        Ok(TcpStream::from(socket))
    })?;
    let (server, _) = accept(&listener)?;
    let mut headers = [0; 120];
    let len = sockopt::saved_syn(server.as_fd(), &mut headers)?;
    let (dscp, options) = match family {
        Family::V4 => (headers[1] >> 2, &headers[40..len]),
        Family::V6 => (
            (headers[0] & 0x0f) << 2 | headers[1] >> 6,
            &headers[60..len],
        ),
    };
    assert_eq!(dscp, 46);
    assert_eq!(options[..4], [2, 4, 3, 132], "an MSS of 900: {options:?}");
    Pair { client, server }.exchange(10_000)?;
    stage.finish()
}

/// Data in the client's own SYN (Fast Open) arrives, whether the box has its cookie or not.
#[rstest]
fn data_in_the_clients_syn_is_not_lost(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(true, false)] leg_has_fast_open: bool,
) -> Result<()> {
    require!(root);
    let world = World::standard()?;
    for host in [world.client(), world.hb(), world.server()] {
        host.sysctl("net.ipv4.tcp_fastopen", "3")?;
    }
    let mut config = World::config();
    if leg_has_fast_open {
        config = config.replacen("[leg.lan]", "[leg.lan]\nfast_open = true", 1);
    }
    let stage = Stage::in_world(world, Via::Pepd, PEPD, &config)?;
    let world = &stage.world;
    let listener = world.listen(family)?;
    let to = listener.local_addr()?;
    // The first brings the cookie, if there is one.
    for round in 0..4_u64 {
        let mut client = world.client().run(|| {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
            sockopt::set_fast_open_connect(socket.as_fd(), 1)?;
            socket.connect(&to.into())?;
            socket.set_read_timeout(Some(LIMIT))?;
            Ok(TcpStream::from(socket))
        })?;
        send_first(&client, &round.to_be_bytes())?;
        let (mut server, _) = accept(&listener)?;
        let mut heard = [0; 8];
        server.read_exact(&mut heard)?;
        assert_eq!(heard, round.to_be_bytes());
        server.write_all(&heard)?;
        client.read_exact(&mut heard)?;
        assert_eq!(heard, round.to_be_bytes());
    }
    let taken = world.hb().sh("nstat -az TcpExtTCPFastOpenPassive")?;
    let taken: HashSet<&str> = taken.split_whitespace().collect();
    assert_eq!(taken.contains("3"), leg_has_fast_open, "{taken:?}");
    stage.finish()
}
