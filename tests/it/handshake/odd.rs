//! Simultaneous open across the box: both ends, each bound to the port that the other asks for,
//! connect at once (RFC 9293, section 3.5, figure 7).
//!
//! Whether the two SYNs cross depends on the machine. If they do, plain routing makes one
//! connection of them; if not, the later one may be refused, because nobody listens yet. So what is
//! asked of both is the same: an end is connected or gets an error, neither hangs, and ends that
//! are connected are connected to each other.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;

use anyhow::{Result, ensure};
use pepd_testbed::{Family, Netns, Pepd, Stage, Via, World, require, wait_until};
use rstest::rstest;
use socket2::{Domain, Socket, Type};

use super::held_syn::LIMIT;
use crate::harness::PEPD;

const ROUNDS: u16 = 40;
const TOKEN: usize = 8;

/// Errors that say that there is no connection. A time-out is not among them: nothing here is
/// silent.
const CLEAN: [ErrorKind; 4] = [
    ErrorKind::ConnectionRefused,
    ErrorKind::ConnectionReset,
    ErrorKind::ConnectionAborted,
    ErrorKind::BrokenPipe,
];

/// What an end has had of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Connected, and this is what the other end has sent.
    Heard([u8; TOKEN]),
    /// There was a clean error, or a FIN, before that.
    Failed,
}

/// Connects once both are ready, says its token and listens for the other's.
fn end(own: SocketAddr, other: SocketAddr, token: [u8; TOKEN], both: &Barrier) -> Result<Outcome> {
    let socket = bound(own);
    // Whatever comes of it: otherwise the other end waits for ever.
    both.wait();
    let socket = socket?;
    let talk = || {
        socket.connect_timeout(&other.into(), LIMIT)?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(&token)?;
        let mut heard = [0; TOKEN];
        stream.read_exact(&mut heard)?;
        Ok(Outcome::Heard(heard))
    };
    talk().or_else(|error: std::io::Error| {
        ensure!(
            CLEAN.contains(&error.kind()) || error.kind() == ErrorKind::UnexpectedEof,
            "neither a connection nor a clean error: {error}"
        );
        Ok(Outcome::Failed)
    })
}

fn bound(own: SocketAddr) -> Result<Socket> {
    let socket = Socket::new(Domain::for_address(own), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&own.into())?;
    Ok(socket)
}

/// Connects both ends at once, on ports of their own: the client's and the server's outcome.
fn meet(world: &World, family: Family, round: u16) -> Result<[Outcome; 2]> {
    let port = 20_000 + 2 * round;
    let client = SocketAddr::new(World::client_address(family), port);
    let server = SocketAddr::new(World::server_address(family), port + 1);
    let tokens = [token(0, round), token(1, round)];
    let both = Barrier::new(2);
    let run = |netns: &Netns, own, other, token| netns.run(|| end(own, other, token, &both));
    let outcomes = std::thread::scope(|scope| {
        let far = scope.spawn(|| run(world.server(), server, client, tokens[1]));
        let near = run(world.client(), client, server, tokens[0]);
        Ok::<_, anyhow::Error>([near?, far.join().unwrap()?])
    })?;
    for (outcome, others) in outcomes.into_iter().zip([tokens[1], tokens[0]]) {
        if let Outcome::Heard(heard) = outcome {
            assert_eq!(heard, others, "round {round}: somebody else's connection");
        }
    }
    Ok(outcomes)
}

fn token(side: u8, round: u16) -> [u8; TOKEN] {
    let [high, low] = round.to_be_bytes();
    [b'o', b'p', b'e', b'n', b'-', side, high, low]
}

#[rstest]
fn both_ends_connect_at_once(
    #[values(Via::Routing, Via::Early, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    meet_often(&stage, &format!("{via:?}"), family)?;
    stage.finish()
}

/// Boxes that begin at opposite ends meet in the middle.
#[rstest]
fn both_ends_of_a_chain_connect_at_once(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::in_world(World::chain()?, Via::Pepd, PEPD, &World::config())?;
    let others = ["middle", "far"]
        .map(|node| Pepd::start(PEPD, stage.world.topology().node(node), &World::config()));
    meet_often(&stage, "three boxes", family)?;
    for daemon in others {
        let (status, log) = daemon?.stop()?;
        assert!(status.success() && !log.contains("panicked"), "{log}");
    }
    stage.finish()
}

fn meet_often(stage: &Stage, via: &str, family: Family) -> Result<()> {
    let world = &stage.world;
    // Neighbours are known from here on.
    world.pair(family)?;
    let mut connected = 0;
    for round in 0..ROUNDS {
        let outcomes = meet(world, family, round)?;
        connected += outcomes.iter().filter(|o| **o != Outcome::Failed).count();
    }
    println!("{via}, {family:?}: {connected} of {} ends", 2 * ROUNDS);
    wait_until(LIMIT, "nothing is left half open on the box", || {
        let left = world
            .hb()
            .sh("ss -Htna state syn-sent state syn-recv state established state close-wait");
        left.is_ok_and(|left| left.trim().is_empty())
    })?;
    world.pair(family)?.exchange(10_000)
}
