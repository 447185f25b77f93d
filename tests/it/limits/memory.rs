//! `[limits] memory`: what connections hold altogether, beyond which new ones are routed.

use std::io::{ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::traffic::{Pair, Pattern};
use pepd_testbed::{Family, Netns, Stage, Via, World, accepted, ask, require, wait_until};
use serde_json::Value;

use super::connections::open_many;
use crate::harness::{LIMIT, PEPD, many_descriptors};

/// The limit.
const MEMORY: u64 = 64 << 20;

/// What a connection counts with at least.
const LEAST: u64 = 672 << 10;

fn config(world: &World) -> String {
    let auto = |control: &str| (control.to_owned(), format!("{control}\nbuffer = \"auto\""));
    let mut config = World::config();
    for (before, after) in ["congestion = \"reno\"", "congestion = \"cubic\""].map(auto) {
        config = config.replace(&before, &after);
    }
    format!("{config}\n[limits]\nmemory = \"64MiB\"\n{}", world.admin())
}

fn status(world: &World) -> Result<Value> {
    let answer = ask(&world.admin_socket(), "GET /v1/status")?;
    Ok(serde_json::from_str(&answer)?)
}

/// Returns what the daemon counts its connections with, in bytes.
fn counted(world: &World) -> Result<u64> {
    let status = status(world)?;
    let limits = status["limits"].as_array().context("no limits")?;
    let memory = limits.iter().find(|limit| limit["name"] == "memory");
    memory.context("no memory")?["used"]
        .as_u64()
        .context("no number")
}

/// Returns what the box's sockets hold, as the kernel counts it.
fn sockets(hb: &Netns) -> Result<u64> {
    let seen = hb.sh("ss -tmnOH state established")?;
    let memories = seen.lines().filter_map(|line| line.split_once("skmem:("));
    let held = memories.map(|(_, memory)| {
        let figures = memory
            .split_once(')')
            .map_or(memory, |(it, _)| it)
            .split(',');
        let figure = |name: &str| {
            let mut figures = figures.clone();
            figures.find_map(|it| it.strip_prefix(name)?.parse::<u64>().ok())
        };
        figure("r").unwrap_or(0) + figure("w").unwrap_or(0)
    });
    Ok(held.sum())
}

/// Fills all of them from both ends, of which nobody reads.
fn fill_all(pairs: &[Pair], over: &AtomicBool) -> Result<()> {
    let pattern = Pattern::new(1);
    for pair in pairs {
        pair.server.set_nonblocking(true)?;
        pair.client.set_nonblocking(true)?;
    }
    while !over.load(Relaxed) {
        for mut end in pairs.iter().flat_map(|pair| [&pair.server, &pair.client]) {
            match end.write(pattern.piece(0, 64 << 10)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    Ok(())
}

/// Five hundred connections of which neither end reads would have the box hold gigabytes.
#[test]
fn beyond_it_new_connections_are_routed_and_split_again_when_it_is_free() -> Result<()> {
    require!(root, program("ss"));
    let _turn = many_descriptors()?;
    let world = World::standard()?;
    let config = config(&world);
    let mut stage = Stage::in_world(world, Via::Pepd, PEPD, &config)?;
    let world = &stage.world;
    let listener = world.listen(Family::V4)?;
    let mut pairs = open_many(&listener, world.client(), 500)?;
    let over = AtomicBool::new(false);
    let (mut most_counted, mut most_held) = (0, 0);
    std::thread::scope(|scope| -> Result<()> {
        let filling = scope.spawn(|| fill_all(&pairs, &over));
        let shown = (|| -> Result<()> {
            wait_until(LIMIT, "it is full", || {
                status(world).is_ok_and(|status| status["state"] == "full")
            })?;
            // As much as they ever hold: it has to stay so for some seconds.
            let mut steady = 0;
            wait_until(LIMIT, "it grows no more", || {
                let (counted, held) = (counted(world).unwrap(), sockets(world.hb()).unwrap());
                steady = if held <= most_held { steady + 1 } else { 0 };
                most_counted = most_counted.max(counted);
                most_held = most_held.max(held);
                steady > 200
            })?;
            // What has stopped has given back what it did not hold: there is room for some.
            let mut more = Vec::new();
            while let (pair, true) = world.probe(Family::V4)? {
                more.push(pair);
                let most = usize::try_from(MEMORY / LEAST)?;
                ensure!(more.len() <= most, "new ones are split all the time");
                most_held = most_held.max(sockets(world.hb())?);
            }
            Ok(())
        })();
        over.store(true, Relaxed);
        filling.join().ok().context("the thread panicked")??;
        shown
    })?;
    eprintln!(
        "split {}, counted {most_counted}, held {most_held}",
        accepted(world.hb())?
    );
    ensure!(
        most_held <= MEMORY,
        "sockets hold {most_held}, counted {most_counted}"
    );
    ensure!(
        most_held >= MEMORY / 3,
        "sockets hold no more than {most_held}"
    );
    pairs.clear();
    wait_until(LIMIT, "new connections are split again", || {
        world.probe(Family::V4).unwrap().1
    })?;
    let log = stage.pepd()?.log();
    ensure!(log.contains("a limit is reached, [limits] memory"), "{log}");
    stage.finish()
}
