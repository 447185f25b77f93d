//! TCP Fast Open on the upstream leg (RFC 7413): what the client says first travels in the SYN.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use anyhow::Result;
use pepd_sys::sockopt;
use pepd_testbed::traffic::{self, accept, connect, listen, send_first};
use pepd_testbed::{Family, Pepd, Stage, Via, World, require, wait_until};
use rstest::rstest;
use socket2::{Domain, SockRef, Socket, Type};

use crate::harness::{LIMIT, PEPD, extended_counter};

/// Returns a stage whose leg to the server has Fast Open, a server that takes it, and its address.
fn stage(family: Family) -> Result<(Stage, TcpListener, SocketAddr)> {
    let config = World::early_config().replacen("[leg.wan]", "[leg.wan]\nfast_open = true", 1);
    stage_with(family, Via::Early, &config)
}

/// Returns the same with both legs, and the client's SYN held.
fn stage_end_to_end(family: Family) -> Result<(Stage, TcpListener, SocketAddr)> {
    let config = World::config()
        .replacen("[leg.lan]", "[leg.lan]\nfast_open = true", 1)
        .replacen("[leg.wan]", "[leg.wan]\nfast_open = true", 1);
    stage_with(family, Via::Pepd, &config)
}

fn stage_with(family: Family, via: Via, config: &str) -> Result<(Stage, TcpListener, SocketAddr)> {
    assert!(config.contains("fast_open"), "{config}");
    let world = World::standard()?;
    for host in [world.client(), world.hb(), world.server()] {
        // 1: as a client, 2: as a server (ip-sysctl.rst).
        host.sysctl("net.ipv4.tcp_fastopen", "3")?;
    }
    let stage = Stage::in_world(world, via, PEPD, config)?;
    let listener = listen(stage.world.server(), family.any(0))?;
    sockopt::set_fast_open(listener.as_fd(), 16)?;
    let address = SocketAddr::new(World::server_address(family), listener.local_addr()?.port());
    Ok((stage, listener, address))
}

/// Makes one connection with a question and an answer; the first with a server brings the cookie.
fn ask(stage: &Stage, listener: &TcpListener, server: SocketAddr, question: &[u8]) -> Result<()> {
    let mut client = connect(stage.world.client(), server)?;
    client.write_all(question)?;
    answer(client, listener, question)
}

/// Does the same with the question in the client's own SYN, if it has the cookie of the box.
fn ask_fast(
    stage: &Stage,
    listener: &TcpListener,
    server: SocketAddr,
    question: &[u8],
) -> Result<()> {
    let client = open_fast(stage, server)?;
    send_first(&client, question)?;
    answer(client, listener, question)
}

/// Has it stop listening. What another test is about to execute may have the descriptor for a
/// moment yet, so that closing alone is not enough.
fn stop(listener: TcpListener) -> Result<()> {
    SockRef::from(&listener).shutdown(Shutdown::Both)?;
    Ok(())
}

/// Returns a connection whose SYN may wait for the first write.
fn open_fast(stage: &Stage, server: SocketAddr) -> Result<TcpStream> {
    stage.world.client().run(|| {
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
        sockopt::set_fast_open_connect(socket.as_fd(), 1)?;
        socket.connect(&server.into())?;
        socket.set_read_timeout(Some(LIMIT))?;
        Ok(socket.into())
    })
}

fn answer(mut client: TcpStream, listener: &TcpListener, question: &[u8]) -> Result<()> {
    client.shutdown(Shutdown::Write)?;
    let (mut accepted, _) = accept(listener)?;
    let mut heard = Vec::new();
    accepted.read_to_end(&mut heard)?;
    assert_eq!(heard, question);
    accepted.write_all(&heard)?;
    drop(accepted);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer)?;
    assert_eq!(answer, question);
    Ok(())
}

#[rstest]
fn the_first_words_travel_in_the_syn(
    #[values(Family::V4, Family::V6)] family: Family,
    // Less than a SYN holds, and more.
    #[values(5, 100_000)] len: usize,
) -> Result<()> {
    require!(root);
    let (stage, listener, server) = stage(family)?;
    let question: Vec<u8> = (0..=250).cycle().take(len).collect();
    ask(&stage, &listener, server, &question)?;
    assert_eq!(
        extended_counter(stage.world.hb(), "TCPFastOpenActive")?,
        0,
        "no cookie yet"
    );
    // Those of a client that says nothing for a while do not.
    wait_until(LIMIT, "three SYNs had data that the server took", || {
        ask(&stage, &listener, server, &question).unwrap();
        extended_counter(stage.world.server(), "TCPFastOpenPassive").is_ok_and(|taken| taken >= 3)
    })?;
    stage.finish()
}

/// The SYN waits for the client's first words, but not for long: many servers speak first.
#[rstest]
fn a_server_may_speak_first(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root);
    let (stage, listener, server) = stage(family)?;
    ask(&stage, &listener, server, b"for the cookie")?;
    let mut client = connect(stage.world.client(), server)?;
    let (mut accepted, _) = accept(&listener)?;
    accepted.write_all(b"220 ready")?;
    let mut greeting = [0; 9];
    client.read_exact(&mut greeting)?;
    assert_eq!(&greeting, b"220 ready");
    client.write_all(b"EHLO")?;
    let mut reply = [0; 4];
    accepted.read_exact(&mut reply)?;
    assert_eq!(&reply, b"EHLO");
    stage.finish()
}

/// A middlebox that drops SYNs with data, and a server that has gone: the kernel sends the data
/// again after a plain SYN, or the client sees an error.
#[rstest]
fn a_syn_with_data_that_gets_lost_loses_nothing(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let (stage, listener, server) = stage(family)?;
    ask(&stage, &listener, server, b"for the cookie")?;
    // SYNs longer than any header: those with data.
    stage.world.server().sh(
        "nft 'add table inet eater; add chain inet eater in { type filter hook input priority 0; }; \
         add rule inet eater in tcp flags & (syn|ack) == syn meta length > 120 counter drop'",
    )?;
    // A SYN whose client has not said anything in time has no data.
    wait_until(LIMIT, "something was eaten", || {
        ask(&stage, &listener, server, &[7; 1000]).unwrap();
        let eaten = stage.world.server().sh("nft list chain inet eater in");
        !eaten.unwrap().contains("packets 0 ")
    })?;
    stage.finish()
}

#[rstest]
fn a_refused_syn_with_data_is_an_error_for_the_client(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let (stage, listener, server) = stage(family)?;
    ask(&stage, &listener, server, b"for the cookie")?;
    stop(listener)?;
    // The reset may come at any point from the handshake on.
    let error = connect(stage.world.client(), server)
        .and_then(|mut client| {
            client.write_all(b"anybody there?")?;
            Ok(client.read_to_end(&mut Vec::new())?)
        })
        .unwrap_err();
    let reset = traffic::kind(&error);
    assert!(
        matches!(
            reset,
            Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        ),
        "{error:#}"
    );
    stage.finish()
}

/// Brings the client the cookie of the box, and the box that of the server for this client.
fn get_cookies(stage: &Stage, listener: &TcpListener, server: SocketAddr) -> Result<()> {
    ask_fast(stage, listener, server, b"for the client's cookie")?;
    ask_fast(stage, listener, server, b"for the box's")?;
    assert_eq!(extended_counter(stage.world.hb(), "TCPFastOpenPassive")?, 1);
    assert_eq!(
        extended_counter(stage.world.server(), "TCPFastOpenPassive")?,
        0
    );
    Ok(())
}

/// While the SYN is held, what it brings goes out in the upstream SYN, once the client's cookie
/// has proved its address.
#[rstest]
fn a_held_syns_data_travels_in_the_upstream_syn(
    #[values(Family::V4, Family::V6)] family: Family,
    // Less than a SYN holds, and more.
    #[values(5, 100_000)] len: usize,
) -> Result<()> {
    require!(root);
    let (stage, listener, server) = stage_end_to_end(family)?;
    get_cookies(&stage, &listener, server)?;
    let question: Vec<u8> = (0..=250).cycle().take(len).collect();
    for again in 1..=3 {
        ask_fast(&stage, &listener, server, &question)?;
        assert_eq!(
            extended_counter(stage.world.server(), "TCPFastOpenPassive")?,
            again,
            "the upstream SYN had data"
        );
    }
    stage.finish()
}

/// A cookie that the listener did not give vouches for nothing.
#[rstest]
fn a_held_syn_with_another_cookie_keeps_its_data(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let (mut stage, listener, server) = stage_end_to_end(family)?;
    get_cookies(&stage, &listener, server)?;
    ask_fast(&stage, &listener, server, b"all have their cookies")?;
    assert_eq!(
        extended_counter(stage.world.server(), "TCPFastOpenPassive")?,
        1
    );
    let config = fs::read_to_string(stage.pepd.as_ref().unwrap().config_file())?;
    stage.pepd.take().unwrap().stop()?;
    // The box still has the server's cookie, the client that of a daemon that is gone.
    stage.pepd = Some(Pepd::start(PEPD, stage.world.hb(), &config)?);
    ask_fast(&stage, &listener, server, b"from whom?")?;
    assert_eq!(
        extended_counter(stage.world.server(), "TCPFastOpenPassive")?,
        1
    );
    // And with the new one again.
    ask_fast(&stage, &listener, server, b"from me")?;
    assert_eq!(
        extended_counter(stage.world.server(), "TCPFastOpenPassive")?,
        2
    );
    stage.finish()
}

/// A middlebox behind the box that drops SYNs with data.
#[rstest]
fn a_held_syns_data_that_gets_lost_is_sent_again(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let (stage, listener, server) = stage_end_to_end(family)?;
    get_cookies(&stage, &listener, server)?;
    stage.world.server().sh(
        "nft 'add table inet eater; add chain inet eater in { type filter hook input priority 0; }; \
         add rule inet eater in tcp flags & (syn|ack) == syn meta length > 120 counter drop'",
    )?;
    ask_fast(&stage, &listener, server, &[7; 1000])?;
    let eaten = stage.world.server().sh("nft list chain inet eater in")?;
    assert!(!eaten.contains("packets 0 "), "nothing was eaten: {eaten}");
    stage.finish()
}

/// The listener answers a SYN with data as one without where it has too many: the client sends the
/// data again, and the destination has it once.
#[rstest]
fn data_that_only_the_destination_took_arrives_once(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let (stage, listener, server) = stage_end_to_end(family)?;
    get_cookies(&stage, &listener, server)?;
    // 1: as a client only. Existing listeners obey (tcp_try_fastopen).
    stage.world.hb().sysctl("net.ipv4.tcp_fastopen", "1")?;
    ask_fast(&stage, &listener, server, &[7; 1000])?;
    assert_eq!(
        extended_counter(stage.world.server(), "TCPFastOpenPassive")?,
        1
    );
    assert_eq!(extended_counter(stage.world.hb(), "TCPFastOpenPassive")?, 1);
    stage.finish()
}

#[rstest]
fn a_held_syn_with_data_is_refused_as_any(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let (stage, listener, server) = stage_end_to_end(family)?;
    get_cookies(&stage, &listener, server)?;
    stop(listener)?;
    let error = send_first(&open_fast(&stage, server)?, b"anybody there?").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    stage.finish()
}

/// A client that gives up, and starts again from the same port with something else to say, has
/// nothing to do with what its first SYN brought: that has gone out in an upstream SYN.
#[rstest]
fn who_begins_anew_says_nothing_of_before(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    const PORT: u16 = 23_456;
    require!(root, program("nft"));
    let (stage, listener, server) = stage_end_to_end(family)?;
    get_cookies(&stage, &listener, server)?;
    let nodes = &stage.world;
    nodes
        .server()
        .sh("nft 'add table inet deaf; add counter inet deaf syns; \
         add chain inet deaf in { type filter hook input priority 0; }; \
         add rule inet deaf in tcp flags syn counter name syns drop'")?;
    let from_port = || {
        nodes.client().run(|| {
            let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
            socket.bind(&SocketAddr::new(World::client_address(family), PORT).into())?;
            sockopt::set_fast_open_connect(socket.as_fd(), 1)?;
            socket.set_nonblocking(true)?;
            socket.connect(&server.into())?;
            Ok(TcpStream::from(socket))
        })
    };
    let before = from_port()?;
    let begun = (&before).write(b"what was to be said first");
    assert!(begun.is_ok() || begun.is_err_and(|error| error.raw_os_error() == Some(115)));
    wait_until(LIMIT, "the upstream SYN has been sent", || {
        let said = nodes.server().sh("nft list counter inet deaf syns");
        said.is_ok_and(|said| !said.contains("packets 0 "))
    })?;
    drop(before);
    let held = || nodes.hb().sh("nft list counter inet pepd held");
    let of_before = held()?;
    let client = from_port()?;
    let _ = (&client).write(b"something else");
    // Its SYN has come to the box before the server hears anything.
    wait_until(LIMIT, "the second SYN is held", || {
        held().is_ok_and(|now| now != of_before)
    })?;
    nodes.server().sh("nft delete table inet deaf")?;
    wait_until(LIMIT, "it is connected", || client.peer_addr().is_ok())?;
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(LIMIT))?;
    answer(client, &listener, b"something else")?;
    stage.finish()
}
