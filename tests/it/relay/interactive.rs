//! Small writes are not held back, and bulk does not starve them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pepd_testbed::traffic::{Pair, Pattern, read};
use pepd_testbed::{Family, Requirement, Stage, Via, World, missing, require, wait_until};
use rstest::rstest;

use crate::harness::{LIMIT, PEPD};

const ROUNDS: usize = 2000;

/// A delayed acknowledgement costs 40 ms, a held-back small write 200 ms; without them a round
/// trip takes far below a millisecond, on an idle machine.
const HELD_BACK: Duration = Duration::from_millis(40);

/// Bytes by which a bulk flow shows that it moves.
const SOME: u64 = 1 << 20;

#[rstest]
fn small_writes_are_passed_on_at_once(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(1, 3)] writes: usize,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    let Pair { client, server } = world.pair(family)?;
    // Nagle's algorithm off at the ends: what is held back is held back on the way.
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let echo = std::thread::spawn(move || echo(&server));
    let rounds: Vec<_> = (0..ROUNDS)
        .map(|round| ping_pong(&client, round, writes))
        .collect::<Result<_>>()?;
    judge(rounds)?;
    client.shutdown(Shutdown::Write)?;
    echo.join().unwrap()?;
    stage.finish()
}

/// Small messages in one direction only, as a log is sent: nothing comes back that could
/// push them along.
#[rstest]
fn a_lone_small_write_does_not_wait_for_a_second(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    let Pair {
        mut client,
        mut server,
    } = world.pair(family)?;
    client.set_nodelay(true)?;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let begun = Instant::now();
        client.write_all(&round.to_le_bytes())?;
        let mut got = [0; size_of::<usize>()];
        server.read_exact(&mut got)?;
        rounds.push(begun.elapsed());
        assert_eq!(usize::from_le_bytes(got), round);
    }
    judge(rounds)?;
    stage.finish()
}

#[rstest]
fn an_echo_beside_two_bulk_flows_is_not_starved(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    let address = World::server_address(family);
    let done = AtomicBool::new(false);
    let bulk: Vec<Pair> = (0..2)
        .map(|_| Pair::open(world.client(), world.server(), address))
        .collect::<Result<_>>()?;
    let Pair { client, server } = Pair::open(world.client(), world.server(), address)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let echo = std::thread::spawn(move || echo(&server));
    let moved: Vec<_> = bulk.iter().map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| -> Result<()> {
        let flows: Vec<_> = bulk
            .iter()
            .zip(&moved)
            .flat_map(|(pair, moved)| {
                let done = &done;
                [
                    scope.spawn(move || push_until(&pair.client, done)),
                    scope.spawn(move || count(&pair.server, moved)),
                ]
            })
            .collect();
        let rounds = beside(&moved, || ping_pong(&client, 0, 1));
        done.store(true, Ordering::Relaxed);
        judge(rounds?)?;
        flows.into_iter().try_for_each(|flow| flow.join().unwrap())
    })?;
    client.shutdown(Shutdown::Write)?;
    echo.join().unwrap()?;
    stage.finish()
}

/// Does `round` again and again while the bulk flows move: each has to, before and meanwhile.
fn beside(moved: &[AtomicU64], round: impl Fn() -> Result<Duration>) -> Result<Vec<Duration>> {
    let now = || -> Vec<u64> {
        let moved = moved.iter().map(|moved| moved.load(Ordering::Relaxed));
        moved.collect()
    };
    wait_until(LIMIT, "the bulk flows move", || {
        now().iter().all(|&bytes| bytes > SOME)
    })?;
    let (before, begun) = (now(), Instant::now());
    let stand = |now: &[u64]| now.iter().zip(&before).any(|(now, then)| now - then < SOME);
    let mut rounds = Vec::new();
    while rounds.len() < ROUNDS / 4 || stand(&now()) {
        rounds.push(round()?);
        ensure!(
            !stand(&now()) || begun.elapsed() < LIMIT,
            "a bulk flow stands still: {:?}",
            now()
        );
    }
    Ok(rounds)
}

/// Checks that nothing is held back. On a busy machine every round may be late, but hardly the
/// fastest tenth of them by so much; where the clock does not run on meanwhile, half that is too
/// much for the mean.
fn judge(mut rounds: Vec<Duration>) -> Result<()> {
    rounds.sort_unstable();
    let fast = rounds[rounds.len() / 10];
    ensure!(
        fast < HELD_BACK,
        "nine of ten round trips took {fast:?} or more"
    );
    if missing(Requirement::VirtualTime).is_none() {
        let mean = rounds.iter().sum::<Duration>() / u32::try_from(rounds.len())?;
        ensure!(mean < HELD_BACK / 2, "a round trip took {mean:?}");
    }
    Ok(())
}

/// Writes so many single bytes, reads as many, and tells how long that took.
fn ping_pong(mut client: &TcpStream, round: usize, writes: usize) -> Result<Duration> {
    let byte = round.to_le_bytes()[0];
    let begun = Instant::now();
    for _ in 0..writes {
        client.write_all(&[byte])?;
    }
    let mut answer = vec![0; writes];
    client.read_exact(&mut answer)?;
    ensure!(answer.iter().all(|&it| it == byte), "{answer:?}");
    Ok(begun.elapsed())
}

fn echo(mut stream: &TcpStream) -> Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match read(stream, &mut buffer)? {
            0 => return Ok(()),
            length => stream.write_all(&buffer[..length])?,
        }
    }
}

fn push_until(mut stream: &TcpStream, done: &AtomicBool) -> Result<()> {
    let pattern = Pattern::new(1);
    while !done.load(Ordering::Relaxed) {
        stream.write_all(pattern.piece(0, 65_536))?;
    }
    Ok(stream.shutdown(Shutdown::Write)?)
}

fn count(stream: &TcpStream, moved: &AtomicU64) -> Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match read(stream, &mut buffer)? {
            0 => return Ok(()),
            length => _ = moved.fetch_add(length as u64, Ordering::Relaxed),
        }
    }
}
