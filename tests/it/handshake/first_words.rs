//! Clients that do not speak first, or at all, where the SYN waits for their first words
//! (`fast_open`, RFC 7413).

use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Result;
use pepd_sys::sockopt;
use pepd_testbed::traffic::{End, Pair, Pattern, accept, connect, listen, receive};
use pepd_testbed::{Family, Stage, Via, World, require, wait_until};
use rstest::rstest;
use socket2::SockRef;

use crate::harness::{LIMIT, PEPD};

/// Returns the daemon, and a server whose cookie it has.
fn open(family: Family) -> Result<(Stage, TcpListener)> {
    let config = World::config().replace("[leg.wan]", "[leg.wan]\nfast_open = true");
    let world = World::standard()?;
    for node in [world.hb(), world.server()] {
        node.sysctl("net.ipv4.tcp_fastopen", "3")?;
        // The kernel would stop using Fast Open for a while after losses that are none.
        node.sysctl("net.ipv4.tcp_fastopen_blackhole_timeout_sec", "0")?;
    }
    let stage = Stage::in_world(world, Via::Pepd, PEPD, &config)?;
    let listener = listen(
        stage.world.server(),
        (World::server_address(family), 0).into(),
    )?;
    sockopt::set_fast_open(listener.as_fd(), 16)?;
    Pair::through(&listener, stage.world.client())?.exchange(1000)?;
    Ok((stage, listener))
}

/// A client that says nothing: only that it has finished, or that it was a mistake, or an
/// urgent byte, which no SYN can carry as such.
#[rstest]
fn a_client_without_first_words_is_passed_on(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let (stage, listener) = open(family)?;
    let (to, none) = (listener.local_addr()?, Pattern::new(0));
    let client = connect(stage.world.client(), to)?;
    client.shutdown(Shutdown::Write)?;
    let (server, _) = accept(&listener)?;
    assert_eq!(receive(&server, &none, 0)?, (0, End::Fin));
    drop(server);
    assert_eq!(receive(&client, &none, 0)?, (0, End::Fin));

    let client = connect(stage.world.client(), to)?;
    SockRef::from(&client).send_out_of_band(b"!")?;
    let (server, _) = accept(&listener)?;
    wait_until(LIMIT, "the mark", || {
        pepd_sys::stream::at_urgent_mark(server.as_fd()).unwrap()
    })?;
    drop((client, server));

    let client = connect(stage.world.client(), to)?;
    SockRef::from(&client).set_linger(Some(Duration::ZERO))?;
    drop(client);
    // The server may or may not have heard of it; in any case nobody else suffers.
    drop(listener);
    stage.world.pair(family)?.exchange(1000)?;
    stage.finish()
}
