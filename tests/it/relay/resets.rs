//! Ends that come while the daemon is busy elsewhere: what it finds then is a FIN, urgent data
//! and a RST all at once, and each still has to go its way.
//!
//! A paused daemon stands for a busy one: its kernel goes on to acknowledge.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Result, ensure};
use pepd_sys::stream::unacknowledged;
use pepd_testbed::traffic::{End, Pair, Pattern, listen, receive, send};
use pepd_testbed::{Family, Stage, Via, World, require, wait_until};
use rstest::rstest;
use socket2::SockRef;

use crate::harness::PEPD;

const LIMIT: Duration = Duration::from_secs(60);

/// A FIN and then a RST, from a client that has not read all that the server had sent, and to which
/// the server has nothing more to say: the request is complete, and the server sees it end.
#[rstest]
fn a_fin_counts_although_a_reset_follows_at_once(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("ss"));
    let config = World::config().replace("[leg.lan]", "[leg.lan]\nbuffer = \"4MiB\"");
    let split = via != Via::Routing;
    let mut stage = Stage::in_world(World::standard()?, via, PEPD, &config)?;
    let Pair { client, server } = stage.world.pair(family)?;
    let pattern = Pattern::new(1);
    // More than the client's kernel takes while nobody reads, and less than the leg does.
    let len = if split { 2_000_000 } else { 100_000 };
    SockRef::from(&client).set_recv_buffer_size(8192)?;
    send(&server, &pattern, 0, len)?;
    server.shutdown(Shutdown::Write)?;
    if split {
        let port = client.local_addr()?.port();
        wait_until(LIMIT, "the client leg has its FIN queued", || {
            let filter = format!("ss -Htn state fin-wait-1 '( dport = :{port} )'");
            stage.world.hb().sh(&filter).is_ok_and(|s| !s.is_empty())
        })?;
    }
    pause(&mut stage, true)?;
    send(&client, &pattern, 0, 1000)?;
    client.shutdown(Shutdown::Write)?;
    wait_until(LIMIT, "the FIN is acknowledged", || {
        unacknowledged(client.as_fd()).is_ok_and(|bytes| bytes == 0)
    })?;
    // Unread bytes make it a RST.
    drop(client);
    if split {
        wait_until(LIMIT, "the RST has arrived", || {
            let legs = stage.world.hb().sh("ss -Htn state connected");
            legs.is_ok_and(|legs| legs.lines().count() == 1)
        })?;
    }
    pause(&mut stage, false)?;
    assert_eq!(receive(&server, &pattern, 0)?, (1000, End::Fin));
    stage.finish()
}

/// A server's RST that the daemon finds by reading, right after the client, which had held it
/// up, has made room: before any event has told of the RST.
#[rstest]
fn a_reset_found_by_reading_is_passed_on_at_once(
    #[values(World::config(), World::early_config())] config: String,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let config = config.replace("[leg.lan]", "[leg.lan]\nbuffer = \"64KiB\"");
    let mut stage = Stage::with_config(PEPD, &config)?;
    let Pair { client, server } = stage.world.pair(family)?;
    let pattern = Pattern::new(2);
    let (mut sent, mut looks) = (0, 0);
    // A little more than the client leg takes: the daemon holds that back.
    wait_until(LIMIT, "the client leg is full", || {
        if unread(&stage, &server) == 0 {
            looks = 0;
            send(&server, &pattern, sent, 4000).unwrap();
            sent += 4000;
        } else {
            looks += 1;
        }
        looks == 20
    })?;
    wait_until(LIMIT, "all is acknowledged", || {
        unacknowledged(server.as_fd()).is_ok_and(|bytes| bytes == 0)
    })?;
    pause(&mut stage, true)?;
    SockRef::from(&server).set_linger(Some(Duration::ZERO))?;
    drop(server);
    let mut read = 0;
    client.set_nonblocking(true)?;
    wait_until(LIMIT, "the client leg has room", || {
        let mut buffer = [0; 8192];
        while let Ok(len) = (&client).read(&mut buffer) {
            pattern.verify(read, &buffer[..len]).unwrap();
            read += len as u64;
        }
        read + 20_000 > sent
    })?;
    client.set_nonblocking(false)?;
    // The daemon gives a connection up after a minute in any case: that is not at once.
    client.set_read_timeout(Some(LIMIT * 2 / 3))?;
    pause(&mut stage, false)?;
    assert_eq!(receive(&client, &pattern, read)?, (sent - read, End::RESET));
    stage.finish()
}

/// Urgent data, what follows it, and a RST.
#[rstest]
fn a_reset_does_not_overtake_urgent_data(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let mut stage = Stage::open(via, PEPD)?;
    let Pair { mut client, server } = stage.world.pair(family)?;
    SockRef::from(&server).set_out_of_band_inline(true)?;
    pause(&mut stage, true)?;
    client.write_all(b"before")?;
    SockRef::from(&client).send_out_of_band(b"!")?;
    client.write_all(b"behind")?;
    wait_until(LIMIT, "all is acknowledged", || {
        unacknowledged(client.as_fd()).is_ok_and(|bytes| bytes == 0)
    })?;
    SockRef::from(&client).set_linger(Some(Duration::ZERO))?;
    drop(client);
    pause(&mut stage, false)?;
    assert_eq!(
        read_to_end(&server)?,
        (b"before!behind".to_vec(), Some(ErrorKind::ConnectionReset))
    );
    stage.finish()
}

/// A second urgent byte takes the mark away from the first, which is then a byte like any other.
/// The daemon stands right before the first one, and cannot go on, when that happens.
#[rstest]
fn a_second_urgent_byte_does_not_swallow_the_first(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let config = World::config()
        .replace("[leg.lan]", "[leg.lan]\nbuffer = \"1MiB\"")
        .replace("[leg.wan]", "[leg.wan]\nbuffer = \"4KiB\"");
    let mut stage = Stage::in_world(World::standard()?, via, PEPD, &config)?;
    let listener = listen(
        stage.world.server(),
        (World::server_address(family), 0).into(),
    )?;
    SockRef::from(&listener).set_recv_buffer_size(4096)?;
    let Pair { client, server } = Pair::through(&listener, stage.world.client())?;
    SockRef::from(&server).set_out_of_band_inline(true)?;
    let block = vec![b'.'; 40_000];
    pause(&mut stage, true)?;
    let mut expected = Vec::new();
    let mut say = |bytes: &[u8], urgent: bool| -> Result<()> {
        if urgent {
            SockRef::from(&client).send_out_of_band(bytes)?;
        } else {
            (&client).write_all(bytes)?;
        }
        expected.extend_from_slice(bytes);
        Ok(())
    };
    say(&block, false)?;
    say(b"1", true)?;
    say(b"between", false)?;
    if via != Via::Routing {
        wait_until(LIMIT, "the daemon's kernel has it", || {
            unacknowledged(client.as_fd()).is_ok_and(|bytes| bytes == 0)
        })?;
    }
    pause(&mut stage, false)?;
    if via != Via::Routing {
        // It takes what lies before the mark into a pipe, which the small leg cannot empty.
        wait_until(LIMIT, "the daemon stands at the mark", || {
            unread(&stage, &client) == 8
        })?;
    }
    say(b"2", true)?;
    say(b"behind", false)?;
    client.shutdown(Shutdown::Write)?;
    if via != Via::Routing {
        wait_until(LIMIT, "the daemon's kernel has the second, too", || {
            unacknowledged(client.as_fd()).is_ok_and(|bytes| bytes == 0)
        })?;
    }
    let (got, error) = read_to_end(&server)?;
    assert_eq!(error, None);
    let text = String::from_utf8_lossy(&got[got.len().saturating_sub(30)..]);
    assert!(
        got == expected,
        "{} of {} bytes, {text}",
        got.len(),
        expected.len()
    );
    stage.finish()
}

/// Returns the bytes that wait in the leg towards `peer` for the daemon to read them.
fn unread(stage: &Stage, peer: &TcpStream) -> usize {
    let port = peer.local_addr().unwrap().port();
    pepd_testbed::unread(stage.world.hb(), port).unwrap()
}

fn pause(stage: &mut Stage, on: bool) -> Result<()> {
    match stage.pepd() {
        Ok(pepd) if on => pepd.pause(),
        Ok(pepd) => pepd.resume(),
        Err(_) => Ok(()),
    }
}

/// Reads everything until the end, and the error that it was, if any.
pub(crate) fn read_to_end(mut stream: &TcpStream) -> Result<(Vec<u8>, Option<ErrorKind>)> {
    let mut got = Vec::new();
    let end = stream.read_to_end(&mut got);
    let error = end.err().map(|error| error.kind());
    ensure!(
        error != Some(ErrorKind::WouldBlock),
        "no end after {} bytes",
        got.len()
    );
    Ok((got, error))
}
