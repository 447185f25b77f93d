//! Small writes are not held back, and bulk does not starve them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use pepd_testbed::traffic::{Pair, Pattern};
use pepd_testbed::{Family, Stage, Via, World, require};
use rstest::rstest;

const PEPD: &str = env!("CARGO_BIN_EXE_pepd");

/// A delayed acknowledgement costs 40 ms, a held-back small write 200 ms. This many round
/// trips would take 80 s with the one and 400 s with the other; without, far below a second.
const ROUNDS: u32 = 2000;
const ROUNDS_LIMIT: Duration = Duration::from_secs(40);

#[rstest]
fn small_writes_are_passed_on_at_once(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(1, 3)] writes: usize,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    let Pair { client, server } = Pair::open(
        world.client(),
        world.server(),
        World::server_address(family),
    )?;
    // Nagle's algorithm off at the ends: what is held back is held back on the way.
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let echo = std::thread::spawn(move || echo(&server));
    ping_pong(&client, ROUNDS, writes)?;
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
    } = Pair::open(
        world.client(),
        world.server(),
        World::server_address(family),
    )?;
    client.set_nodelay(true)?;
    let deadline = Instant::now() + ROUNDS_LIMIT;
    for round in 0..ROUNDS {
        client.write_all(&round.to_le_bytes())?;
        let mut got = [0; 4];
        server.read_exact(&mut got)?;
        assert_eq!(u32::from_le_bytes(got), round);
    }
    assert!(
        Instant::now() < deadline,
        "{ROUNDS} small messages took more than {ROUNDS_LIMIT:?}"
    );
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
    let moved: Vec<u64> = std::thread::scope(|scope| -> Result<_> {
        let flows: Vec<_> = bulk
            .iter()
            .map(|pair| {
                let done = &done;
                scope.spawn(move || push_until(&pair.client, done));
                scope.spawn(move || count(&pair.server))
            })
            .collect();
        let outcome = ping_pong(&client, 500, 1);
        done.store(true, Ordering::Relaxed);
        outcome?;
        flows.into_iter().map(|flow| flow.join().unwrap()).collect()
    })?;
    client.shutdown(Shutdown::Write)?;
    echo.join().unwrap()?;
    assert!(
        moved.iter().all(|&bytes| bytes > 1 << 20),
        "the bulk flows stood still: {moved:?}"
    );
    stage.finish()
}

fn ping_pong(mut client: &TcpStream, rounds: u32, writes: usize) -> Result<()> {
    let deadline = Instant::now() + ROUNDS_LIMIT;
    let mut answer = vec![0; writes];
    for round in 0..rounds {
        for _ in 0..writes {
            client.write_all(&[round.to_le_bytes()[0]])?;
        }
        client.read_exact(&mut answer)?;
        assert!(answer.iter().all(|&byte| byte == round.to_le_bytes()[0]));
        assert!(
            Instant::now() < deadline,
            "only {round} round trips in {ROUNDS_LIMIT:?}"
        );
    }
    Ok(())
}

fn echo(mut stream: &TcpStream) -> Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer)? {
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

fn count(mut stream: &TcpStream) -> Result<u64> {
    let mut buffer = vec![0; 256 * 1024];
    let mut total = 0;
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(total),
            length => total += length as u64,
        }
    }
}
