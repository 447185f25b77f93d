//! Outages of any length, on one leg or on both, at any stage of a connection: nothing is lost, doubled
//! or reset. On the guest's virtual clock, on which half an hour takes seconds.

use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::link::{Outage, OutageEffect, Rate, Shape};
use pepd_testbed::traffic::{End, Pair, Pattern, receive, send};
use pepd_testbed::{Family, Pepd, World, ask, require};
use rstest::rstest;

use crate::harness::{PEPD, pass};

/// Round trips of 10 and 40 ms.
const DELAYS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(20)];
const RATE: u64 = 8;
/// What a busy direction carries: more than it can before the outage, and more than the box holds.
const MUCH: u64 = 2_000_000;
/// Less than what buffers hold: the host has sent all of it, and its FIN, and the box has not delivered it.
const LITTLE: u64 = 100_000;
/// From the beginning of the links to that of the outage, in which all is made ready; they begin anew then.
const START: Duration = Duration::from_secs(30);
/// From the beginning of the transfers to that of the outage.
const BEFORE: Duration = Duration::from_secs(1);
/// Longer than any outage and what follows it: what hangs fails.
const PATIENCE: Duration = Duration::from_secs(3 * 3600);
/// How often hosts send again before they give up: what ends a connection is the box or nothing.
const RETRIES: &str = "200";

/// What the client and the server send, each with a FIN after it.
const STAGES: [(&str, u64, u64); 5] = [
    ("an upload", MUCH, 0),
    ("a download, asked for and half-closed", LITTLE, MUCH),
    ("both ways", MUCH, MUCH),
    ("a client that has said everything", LITTLE, 0),
    ("a server that has", 0, LITTLE),
];

/// The legs that have the outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    Near,
    Far,
    Both,
}

impl Gone {
    fn legs(self) -> &'static [&'static str] {
        match self {
            Self::Near => &["lan"],
            Self::Far => &["wan"],
            Self::Both => &["lan", "wan"],
        }
    }
}

/// One direction of a connection: `bytes` and a FIN, sent and received.
fn carry<'s>(
    scope: &'s thread::Scope<'s, '_>,
    [from, to]: [&'s TcpStream; 2],
    pattern: &'s Pattern,
    bytes: u64,
) -> [ScopedJoinHandle<'s, Result<()>>; 2] {
    let sender = scope.spawn(move || {
        send(from, pattern, 0, bytes)?;
        Ok(from.shutdown(Shutdown::Write)?)
    });
    let receiver = scope.spawn(move || {
        let came = receive(to, pattern, 0)?;
        ensure!(came == (bytes, End::Fin), "{came:?} of {bytes}");
        Ok(())
    });
    [sender, receiver]
}

fn world(gone: Gone, length: Duration) -> Result<World> {
    let outage = Outage {
        start: START,
        length,
        effect: OutageEffect::Drops,
    };
    let shape = |delay, leg| Shape {
        outages: Vec::from_iter(gone.legs().contains(&leg).then_some(outage)),
        ..Shape::new(delay, Rate::mbit(RATE))
    };
    let world = World::emulated(shape(DELAYS[0], "lan"), shape(DELAYS[1], "wan"))?;
    for host in [world.client(), world.server()] {
        host.sysctl("net.ipv4.tcp_retries2", RETRIES)?;
    }
    Ok(world)
}

/// Carries what there is to carry by the connections at their stages, with the outage in between, of which
/// the daemon behind `socket` is told.
fn carry_all(
    world: &World,
    busy: &[Pair],
    legs: &[&str],
    length: Duration,
    socket: &Path,
) -> Result<()> {
    let tell = |state: &str| {
        legs.iter()
            .try_for_each(|leg| ask(socket, &format!("POST /v1/link/{state}?leg={leg}")).map(drop))
    };
    let pattern = Pattern::new(7);
    thread::scope(|scope| {
        for link in world.emulated_links() {
            link.restart()?;
        }
        pass(START - BEFORE);
        let mut stages = Vec::new();
        for (Pair { client, server }, (name, up, down)) in busy.iter().zip(STAGES) {
            let up = carry(scope, [client, server], &pattern, up);
            let down = carry(scope, [server, client], &pattern, down);
            stages.push((name, up.into_iter().chain(down)));
        }
        pass(BEFORE);
        tell("gone")?;
        pass(length);
        tell("up")?;
        for (name, threads) in stages {
            for thread in threads {
                thread.join().ok().context("a panic")?.context(name)?;
            }
        }
        Ok(())
    })
}

#[rstest]
fn nothing_is_lost_whatever_is_gone_and_however_long(
    #[values(Gone::Near, Gone::Far, Gone::Both)] gone: Gone,
    #[values(1, 70, 1800)] seconds: u64,
) -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let length = Duration::from_secs(seconds);
    // Either family at each length and each leg.
    let family = match (gone, seconds) {
        (Gone::Near, 1 | 1800) | (Gone::Far, 70) | (Gone::Both, 1800) => Family::V6,
        _ => Family::V4,
    };
    let world = world(gone, length)?;
    let socket = world.admin_socket();
    let config = format!("{}\n{}", World::config(), world.admin());
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    // One more says nothing until the link is back.
    let pairs = (0..=STAGES.len())
        .map(|_| world.pair(family))
        .collect::<Result<Vec<_>>>()?;
    for end in pairs.iter().flat_map(|pair| [&pair.client, &pair.server]) {
        end.set_read_timeout(Some(PATIENCE))?;
        end.set_write_timeout(Some(PATIENCE))?;
    }
    let (silent, busy) = pairs.split_last().context("pairs")?;
    carry_all(&world, busy, gone.legs(), length, &socket).with_context(|| daemon.log())?;
    let said = silent.exchange(LITTLE);
    said.with_context(|| format!("who was silent: {}", daemon.log()))?;
    // Who comes afterwards is served as ever.
    world.pair(family)?.exchange(LITTLE)?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    ensure!(!log.contains("reset"), "{log}");
    Ok(())
}
