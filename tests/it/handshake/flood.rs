//! A flood of SYNs from addresses that nobody has.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use pepd_testbed::forge::{Forger, random_syn, stranger};
use pepd_testbed::traffic::{Pair, Rng, listen};
use pepd_testbed::{Family, Netns, Stage, Via, World, require, wait_until};
use rstest::rstest;

use super::held_syn::LIMIT;
use crate::harness::PEPD;

const SYNS: u32 = 100_000;

/// The destination of the flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// A listener that answers each SYN.
    Listener,
    /// A host that answers nothing.
    Silence,
}

#[rstest]
fn a_flood_hurts_neither_the_daemon_nor_others(
    #[values(At::Listener, At::Silence)] at: At,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    world.pair(family)?;
    let victim = SocketAddr::new(World::server_address(family), 7);
    let _listener = match at {
        At::Listener => Some(listen(world.server(), victim)?),
        At::Silence => {
            world.server().sh("nft add table inet silent; \
                 nft add chain inet silent c '{ type filter hook input priority 0; }'; \
                 nft add rule inet silent c tcp dport 7 drop")?;
            None
        }
    };
    let pepd = stage.pepd.as_ref().unwrap();
    let before = (pepd.resident_bytes()?, pepd.descriptors()?);
    let over = AtomicBool::new(false);
    let (mut slowest, mut most) = (Duration::ZERO, before.1);
    std::thread::scope(|scope| -> Result<()> {
        let flood = scope.spawn(|| {
            let result = flood(world.client(), victim, SYNS);
            over.store(true, Ordering::Relaxed);
            result
        });
        while !over.load(Ordering::Relaxed) {
            // Somebody who behaves, from another host.
            let listener = world.listen(family)?;
            let start = Instant::now();
            Pair::through(&listener, world.sibling())?;
            slowest = slowest.max(start.elapsed());
            most = most.max(pepd.descriptors()?);
        }
        flood.join().unwrap()
    })?;
    let grown = pepd.resident_bytes()?.saturating_sub(before.0);
    println!(
        "{at:?} {family}: slowest connection {slowest:?}, {} descriptors more, {} KiB more",
        most - before.1,
        grown / 1024
    );
    // [limits] pending, and as many that are about to be closed.
    assert!(most < before.1 + 2 * 1024 + 100, "{most} descriptors");
    assert!(grown < 32 << 20, "{grown} bytes");
    world.pair(family)?;
    let (status, log) = stage.pepd.take().unwrap().stop()?;
    assert!(status.success(), "{log}");
    assert!(!log.contains("panicked"), "{log}");
    Ok(())
}

/// What the box sends for a flood is bounded: the rest is routed as it is, not multiplied.
#[rstest]
fn attempts_in_vain_are_bounded() -> Result<()> {
    require!(root);
    let config = format!("{}\n[limits]\npending = 50\n", World::config());
    let mut stage = Stage::with_config(PEPD, &config)?;
    let world = &stage.world;
    world.pair(Family::V4)?;
    let victim = SocketAddr::new(World::server_address(Family::V4), 7);
    world.server().sh("nft add table inet silent; \
         nft add chain inet silent c '{ type filter hook input priority 0; }'; \
         nft add rule inet silent c tcp dport 7 drop")?;
    let start = Instant::now();
    flood(world.client(), victim, 20_000)?;
    // What is sent again is the client's own.
    let opened = active_opens(world.hb())?;
    let seconds = start.elapsed().as_secs() + 2;
    assert!(
        opened <= 50 * (seconds + 1) + 10,
        "{opened} upstream SYNs in {seconds} s"
    );
    wait_until(LIMIT, "the flood's SYNs are given up", || {
        world
            .hb()
            .sh("cat /proc/net/netfilter/nfnetlink_queue")
            .is_ok_and(|queues| {
                queues
                    .lines()
                    .all(|line| line.split_whitespace().nth(2) == Some("0"))
            })
    })?;
    stage.pepd.take().unwrap().stop()?;
    Ok(())
}

/// What is routed while the gate is closed is remembered, in a set that is no larger than it is
/// said to be; what finds no room in it is routed all the same.
#[rstest]
fn a_flood_through_the_closed_gate_is_routed(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    const ROOM: u64 = 16_384;
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    world.pair(family)?;
    let victim = SocketAddr::new(World::server_address(family), 7);
    let _listener = listen(world.server(), victim)?;
    let gate_is_open = || {
        let gate = "nft list set inet pepd gate; nft list set inet pepd second_gate";
        world
            .hb()
            .sh(gate)
            .is_ok_and(|gate| gate.contains("expires"))
    };
    let packets = |name: &str| {
        let said = world
            .hb()
            .sh(&format!("nft list counter inet pepd {name}"))?;
        let mut words = said.split_whitespace();
        let number = words.find(|word| *word == "packets").and(words.next());
        Ok::<u64, anyhow::Error>(number.unwrap_or("0").parse()?)
    };
    let pepd = stage.pepd.as_ref().unwrap();
    pepd.pause()?;
    wait_until(LIMIT, "the gate is closed", || !gate_is_open())?;
    // On a slow machine some get lost on their way.
    wait_until(LIMIT, "more have come than there is room for", || {
        flood(world.client(), victim, 20_000).is_ok()
            && packets("gate_closed").is_ok_and(|routed| routed > ROOM)
    })?;
    let remembered = world.hb().sh("nft list set inet pepd routed")?;
    let remembered = remembered.matches("expires").count() as u64;
    assert!((ROOM / 4..=ROOM).contains(&remembered), "{remembered}");
    world.pair(family)?.exchange(10_000)?;
    pepd.resume()?;
    let held = packets("held")?;
    wait_until(LIMIT, "SYNs are held again", || {
        world.pair(family).is_ok() && packets("held").is_ok_and(|now| now > held)
    })?;
    stage.finish()
}

fn active_opens(hb: &Netns) -> Result<u64> {
    let text = hb.sh("nstat -az TcpActiveOpens")?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("TcpActiveOpens"))
        .and_then(|rest| rest.split_whitespace().next());
    Ok(value.unwrap_or("0").parse()?)
}

/// Sends `count` SYNs from random addresses of campus a and random ports.
fn flood(client: &Netns, victim: SocketAddr, count: u32) -> Result<()> {
    let (forger, mut rng) = (Forger::new(client)?, Rng::new(7));
    for _ in 0..count {
        let syn = random_syn(&mut rng, |host| stranger(host, victim.ip()), victim);
        forger.send(&syn)?;
    }
    Ok(())
}
