//! The daemon's process dies: not a byte is lost, doubled or out of order, and nobody sees a RST.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use pepd_testbed::traffic::{End, PATIENCE, Pair, Pattern, Rng, read, receive, send};
use pepd_testbed::{Family, Stage, Via, require};
use rstest::rstest;

use crate::harness::PEPD;

/// The deaths in one test.
const DEATHS: usize = 20;

/// The bytes that a bulk stream sends at a time.
const PIECE: u64 = 1 << 20;

/// Sends until it is over, and then a FIN; gives how much it was.
fn send_until(stream: &TcpStream, pattern: &Pattern, over: &AtomicBool) -> Result<u64> {
    let mut sent = 0;
    while !over.load(Relaxed) {
        send(stream, pattern, sent, PIECE)?;
        sent += PIECE;
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(sent)
}

/// Relays both ways until it is over: each direction's bytes arrive, and its FIN after them.
fn bulk(pair: &Pair, over: &AtomicBool) -> Result<u64> {
    let (up, down) = (Pattern::new(1), Pattern::new(2));
    thread::scope(|scope| {
        let sent_up = scope.spawn(|| send_until(&pair.client, &up, over));
        let sent_down = scope.spawn(|| send_until(&pair.server, &down, over));
        let got_up = scope.spawn(|| receive(&pair.server, &up, 0));
        let got_down = scope.spawn(|| receive(&pair.client, &down, 0));
        let (sent_up, sent_down) = (sent_up.join().unwrap()?, sent_down.join().unwrap()?);
        let got = (got_up.join().unwrap()?, got_down.join().unwrap()?);
        ensure!(got.0 == (sent_up, End::Fin), "up: {:?} of {sent_up}", got.0);
        ensure!(
            got.1 == (sent_down, End::Fin),
            "down: {:?} of {sent_down}",
            got.1
        );
        Ok(sent_up + sent_down)
    })
}

/// Sends a byte there and back again until it is over; gives the longest time that it took.
fn ping_pong(pair: &Pair, over: &AtomicBool) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    let mut byte = [0];
    let mut count = 0_u8;
    while !over.load(Relaxed) {
        let begun = Instant::now();
        for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
            send(from, &Pattern::new(u64::from(count)), 0, 1)?;
            ensure!(read(to, &mut byte)? == 1, "it ended");
            Pattern::new(u64::from(count)).verify(0, &byte)?;
        }
        count = count.wrapping_add(1);
        longest = longest.max(begun.elapsed());
    }
    Ok(longest)
}

/// One end has sent its FIN already; what the other one sends arrives, and its FIN.
fn half_closed(from: &TcpStream, to: &TcpStream, over: &AtomicBool) -> Result<u64> {
    let pattern = Pattern::new(3);
    thread::scope(|scope| {
        let sent = scope.spawn(|| send_until(from, &pattern, over));
        let got = receive(to, &pattern, 0)?;
        let sent = sent.join().unwrap()?;
        ensure!(got == (sent, End::Fin), "{got:?} of {sent}");
        Ok(sent)
    })
}

/// Sends a FIN, and waits until it is there.
fn close_half(from: &TcpStream, to: &TcpStream) -> Result<()> {
    from.shutdown(Shutdown::Write)?;
    to.set_read_timeout(Some(PATIENCE))?;
    ensure!(read(to, &mut [0])? == 0, "no FIN");
    Ok(())
}

#[rstest]
fn connections_of_every_kind_outlive_it(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let pair = || stage.world.pair(family);
    let (both_ways, pings, idle) = (pair()?, pair()?, pair()?);
    let (by_client, by_server, full) = (pair()?, pair()?, pair()?);
    close_half(&by_client.client, &by_client.server)?;
    close_half(&by_server.server, &by_server.client)?;
    // Nobody reads this one: the sockets and the pipe between them fill up.
    let filled = Pattern::new(4);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let bulk = scope.spawn(|| bulk(&both_ways, &over));
        let pings = scope.spawn(|| ping_pong(&pings, &over));
        let down = scope.spawn(|| half_closed(&by_client.server, &by_client.client, &over));
        let up = scope.spawn(|| half_closed(&by_server.client, &by_server.server, &over));
        let fill = scope.spawn(|| send_until(&full.client, &filled, &over));
        let died = deaths(&mut stage);
        over.store(true, Relaxed);
        // Only now, and whatever has come of it: nobody waits for ever.
        let drained = receive(&full.server, &filled, 0)?;
        died?;
        let sent = fill.join().unwrap()?;
        ensure!(drained == (sent, End::Fin), "{drained:?} of {sent}");
        let bytes = bulk.join().unwrap().context("both ways")?;
        let longest = pings.join().unwrap().context("ping-pong")?;
        down.join().unwrap().context("half-closed by the client")?;
        up.join().unwrap().context("half-closed by the server")?;
        println!("{bytes} bytes, longest ping-pong {longest:?}");
        Ok::<_, anyhow::Error>(())
    })?;
    idle.exchange(100_000)?;
    let (new, split) = stage.world.probe(family)?;
    assert!(split);
    new.exchange(100_000)?;
    drop((idle, new));
    stage.finish()
}

/// Has the daemon's process die at moments that nothing chooses.
fn deaths(stage: &mut Stage) -> Result<()> {
    let mut rng = Rng::new(7);
    for death in 0..DEATHS {
        thread::park_timeout(Duration::from_millis(rng.between(0, 40)));
        let pepd = stage.pepd()?;
        pepd.dies(Signal::SIGKILL)
            .with_context(|| format!("death {death}"))?;
    }
    Ok(())
}
