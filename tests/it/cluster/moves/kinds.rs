//! Connections of all kinds move to and fro: not a byte is lost, doubled or out of order, and nobody sees a
//! RST.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::traffic::{End, Pair, Pattern, read, receive, receive_exactly, send};
use pepd_testbed::{Family, require};
use rstest::rstest;

use super::ground::Ground;
use crate::harness::pass;

/// The moves of all of them.
const MOVES: usize = 6;

/// The bytes that a stream sends at a time.
const PIECE: u64 = 64 << 10;

/// Sends until it is over, and then a FIN; gives how much it was.
pub(super) fn send_until(stream: &TcpStream, pattern: &Pattern, over: &AtomicBool) -> Result<u64> {
    let mut sent = 0;
    while !over.load(Relaxed) {
        send(stream, pattern, sent, PIECE)?;
        sent += PIECE;
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(sent)
}

/// Reads so little until it is over that what is before it stays full; gives how much it was. A receiver whose buffer is full drops
/// what comes at last, and until somebody reads its sender mends that, and does not move.
fn sip(stream: &TcpStream, pattern: &Pattern, over: &AtomicBool) -> Result<u64> {
    let mut sipped = 0;
    while !over.load(Relaxed) {
        receive_exactly(stream, pattern, sipped, PIECE)?;
        sipped += PIECE;
        pass(Duration::from_millis(100));
    }
    Ok(sipped)
}

/// Carries one way until it is over: all bytes arrive, and the FIN after them.
pub(super) fn one_way(
    from: &TcpStream,
    to: &TcpStream,
    seed: u64,
    over: &AtomicBool,
) -> Result<()> {
    let pattern = Pattern::new(seed);
    thread::scope(|scope| {
        let sent = scope.spawn(|| send_until(from, &pattern, over));
        let got = receive(to, &pattern, 0)?;
        let sent = sent.join().unwrap()?;
        ensure!(got.1 == End::Fin && got.0 == sent, "{got:?} of {sent}");
        Ok(())
    })
}

pub(super) fn both_ways(pair: &Pair, over: &AtomicBool) -> Result<()> {
    thread::scope(|scope| {
        let up = scope.spawn(|| one_way(&pair.client, &pair.server, 11, over));
        one_way(&pair.server, &pair.client, 12, over).context("down")?;
        up.join().unwrap().context("up")
    })
}

/// Sends a byte there and back again until it is over; tells how long each took.
pub(super) fn ping_pong(pair: &Pair, over: &AtomicBool, took: impl Fn(Duration)) -> Result<()> {
    let mut count = 0_u8;
    while !over.load(Relaxed) {
        let begun = Instant::now();
        for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
            let pattern = Pattern::new(u64::from(count));
            send(from, &pattern, 0, 1)?;
            let mut byte = [0];
            ensure!(read(to, &mut byte)? == 1, "it ended");
            pattern.verify(0, &byte)?;
        }
        count = count.wrapping_add(1);
        took(begun.elapsed());
    }
    Ok(())
}

/// Sends a FIN, and waits until it is there.
pub(super) fn close_half(from: &TcpStream, to: &TcpStream) -> Result<()> {
    from.shutdown(Shutdown::Write)?;
    ensure!(read(to, &mut [0])? == 0, "no FIN");
    Ok(())
}

#[rstest]
fn connections_of_all_kinds_move(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(family, ["", ""])?;
    let (bulk, pings, idle) = (ground.pair()?, ground.pair()?, ground.pair()?);
    let (by_client, by_server, full) = (ground.pair()?, ground.pair()?, ground.pair()?);
    close_half(&by_client.client, &by_client.server)?;
    close_half(&by_server.server, &by_server.client)?;
    // Hardly anybody reads this one: the sockets and the pipe between them fill up.
    let filled = Pattern::new(14);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let bulk = scope.spawn(|| both_ways(&bulk, &over));
        let pings = scope.spawn(|| ping_pong(&pings, &over, |_| ()));
        let down = scope.spawn(|| one_way(&by_client.server, &by_client.client, 15, &over));
        let up = scope.spawn(|| one_way(&by_server.client, &by_server.server, 16, &over));
        let fill = scope.spawn(|| send_until(&full.client, &filled, &over));
        let sips = scope.spawn(|| sip(&full.server, &filled, &over));
        let mut moved = Ok(());
        for turn in 0..MOVES {
            moved = ground.all_move(turn % 2, 6).map(drop);
            moved = moved.with_context(|| format!("move {turn}\n{}", ground.logs()));
            if moved.is_err() {
                break;
            }
        }
        over.store(true, Relaxed);
        // Only now, and whatever has come of it: nobody waits for ever.
        let sipped = sips.join().unwrap();
        let drained = sipped.and_then(|sipped| {
            let (rest, end) = receive(&full.server, &filled, sipped)?;
            Ok((sipped + rest, end))
        });
        let fill = fill.join().unwrap();
        let ends = [
            ("both ways", bulk.join().unwrap()),
            ("ping-pong", pings.join().unwrap()),
            ("half-closed by the client", down.join().unwrap()),
            ("half-closed by the server", up.join().unwrap()),
        ];
        moved?;
        for (kind, end) in ends {
            end.context(kind)?;
        }
        let (drained, fill) = (drained.context("drained")?, fill.context("filled")?);
        ensure!(drained == (fill, End::Fin), "{drained:?} of {fill}");
        Ok::<_, anyhow::Error>(())
    })?;
    idle.exchange(100_000)?;
    ground.no_resets()
}

/// Once they have moved, the routers lead to the other box, and the first one ends.
#[test]
fn the_box_that_they_have_left_may_end() -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(Family::V4, ["", ""])?;
    let pairs: Vec<_> = (0..20).map(|_| ground.pair()).collect::<Result<_>>()?;
    ground.all_move(0, 20)?;
    ensure!(ground.flows(0)?.is_empty());
    ensure!(ground.flows(1)?.len() == 20);
    for pair in &pairs {
        pair.exchange(10_000).context("by way of the first box")?;
    }
    ground.lead_to(1)?;
    let first = ground.daemons[0].take().context("a daemon")?;
    let (status, log) = first.stop()?;
    ensure!(status.success(), "{log}");
    for pair in &pairs {
        pair.exchange(10_000).context("without the first box")?;
    }
    ground.pair()?.exchange(1000)?;
    ground.no_resets()
}
