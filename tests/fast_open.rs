//! TCP Fast Open on the upstream leg (RFC 7413): what the client says first travels in the SYN.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result};
use pepd_testbed::traffic::{self, accept, connect, listen};
use pepd_testbed::{Family, Netns, Stage, Via, World, require, wait_until};
use rstest::rstest;

const PEPD: &str = env!("CARGO_BIN_EXE_pepd");
const LIMIT: Duration = Duration::from_secs(20);

/// A stage whose leg to the server has Fast Open, a server that takes it, and its address.
fn stage(family: Family) -> Result<(Stage, TcpListener, SocketAddr)> {
    let world = World::standard()?;
    for host in [world.hb(), world.server()] {
        // 1: as a client, 2: as a server (ip-sysctl.rst).
        host.sysctl("net.ipv4.tcp_fastopen", "3")?;
    }
    let config = World::early_config().replacen("[leg.wan]", "[leg.wan]\nfast_open = true", 1);
    assert!(config.contains("fast_open"), "{config}");
    let stage = Stage::in_world(world, Via::Early, PEPD, &config)?;
    let listener = listen(stage.world.server(), family.any(0))?;
    pepd_sys::sockopt::set_fast_open(listener.as_fd(), 16)?;
    let address = SocketAddr::new(World::server_address(family), listener.local_addr()?.port());
    Ok((stage, listener, address))
}

/// A counter of the namespace's `TcpExt` row.
fn counter(netns: &Netns, name: &str) -> Result<u64> {
    let text = netns.run(|| Ok(fs::read_to_string("/proc/thread-self/net/netstat")?))?;
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let names = rows.next().context("no names")?;
    let values = rows.next().context("no values")?;
    let mut fields = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = fields
        .find(|(field, _)| *field == name)
        .context("no such counter")?;
    Ok(value.parse()?)
}

/// One connection with a question and an answer; the first with a server brings the cookie.
fn ask(stage: &Stage, listener: &TcpListener, server: SocketAddr, question: &[u8]) -> Result<()> {
    let mut client = connect(stage.world.client(), server)?;
    client.write_all(question)?;
    client.shutdown(std::net::Shutdown::Write)?;
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
        counter(stage.world.hb(), "TCPFastOpenActive")?,
        0,
        "no cookie yet"
    );
    for again in 1..=3 {
        ask(&stage, &listener, server, &question)?;
        wait_until(LIMIT, "the SYN had data that the server took", || {
            counter(stage.world.server(), "TCPFastOpenPassive").is_ok_and(|n| n == again)
        })?;
    }
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
    ask(&stage, &listener, server, &[7; 1000])?;
    let eaten = stage.world.server().sh("nft list chain inet eater in")?;
    assert!(!eaten.contains("packets 0 "), "nothing was eaten: {eaten}");
    stage.finish()
}

#[rstest]
fn a_refused_syn_with_data_is_an_error_for_the_client(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let (stage, listener, server) = stage(family)?;
    ask(&stage, &listener, server, b"for the cookie")?;
    drop(listener);
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
