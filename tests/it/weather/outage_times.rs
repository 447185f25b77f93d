//! How long a link that is back stays empty: on the guest's virtual clock.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::link::{Rate, Shape};
use pepd_testbed::{Family, Pepd, World, ask, require};
use rstest::rstest;
use serde_json::Value;

use super::{LOSE, RESTORE};
use crate::harness::PEPD;
use crate::streams::{fill, take, watch};

/// One way over the link that has outages, and over the other one.
const FAR: Duration = Duration::from_millis(50);
const NEAR: Duration = Duration::from_millis(5);
/// What they carry, in Mbit/s.
const RATE: u64 = 4;
/// The length of an outage, and what makes each begin and end at another time of the timers.
const OUTAGE: Duration = Duration::from_secs(10);
const PHASE: Duration = Duration::from_millis(730);
const PHASES: u32 = 4;
/// The time after an outage in which no more may be sent than the link carries in it, and ten segments.
const BEGINNING: Duration = Duration::from_millis(100);
const MOST_AT_ONCE: u64 = RATE * 1_000_000 / 8 / 10 + 10 * 1514;
/// The time after an outage in which the link is watched.
const WATCHED: Duration = Duration::from_secs(2);

fn flows(socket: &Path) -> Result<Value> {
    Ok(serde_json::from_str(&ask(
        socket,
        "GET /v1/flows?limit=1000",
    )?)?)
}

fn tell(socket: &Path, state: &str) -> Result<()> {
    tell_of(socket, state, "wan")
}

fn tell_of(socket: &Path, state: &str, leg: &str) -> Result<()> {
    ask(socket, &format!("POST /v1/link/{state}?leg={leg}")).map(drop)
}

/// Returns the longest retransmission timeout of an upstream leg before it is doubled (RFC 6298, with
/// the kernel's least variation): what was sent again is not sent once more before it.
fn timeout(socket: &Path) -> Result<Duration> {
    let flows = flows(socket)?;
    let flows = flows["flows"].as_array().context("flows")?;
    let timeouts = flows.iter().map(|flow| {
        let tcp = &flow["upstream_leg"]["tcp"];
        let [rtt, variation] = ["rtt", "rtt_variation"].map(|key| tcp[key].as_f64());
        Some(rtt? + (4.0 * variation?).max(0.2))
    });
    let longest = timeouts.flatten().fold(0.0, f64::max);
    ensure!(longest > 0.2, "{flows:?}");
    Ok(Duration::from_secs_f64(longest))
}

/// Gives how many bytes the box has sent towards the server so far, with their headers.
fn sent(world: &World) -> Result<u64> {
    world.hb().run(|| {
        let devices = std::fs::read_to_string("/proc/thread-self/net/dev")?;
        let figures = devices
            .lines()
            .find_map(|line| line.trim_start().strip_prefix("to-server:"))
            .context("no device towards the server")?;
        // Eight figures about what has come, and then the bytes that went.
        let sent = figures.split_whitespace().nth(8).context("sent bytes")?;
        Ok(sent.parse()?)
    })
}

/// Loses what the box would get from its two sides, and what they would get from it, where a link is
/// gone: neither host knows of it.
fn fade(world: &World, near: &str, far: &str) -> Result<()> {
    let drop = |hook: &str| {
        format!(
            "nft add table netdev fade
             nft add chain netdev fade in '{{ type filter hook ingress {hook} priority 0; }}'
             nft add rule netdev fade in drop"
        )
    };
    let none = "nft delete table netdev fade 2>/dev/null || true";
    let [mut client, mut hb, mut server] = [none; 3].map(|none| vec![none.to_owned()]);
    match (near, far) {
        ("gone", _) => {
            client.push(drop("device to-hb"));
            hb.push(drop("device to-client"));
        }
        _ => {
            server.push(drop("device to-hb"));
            hb.push(drop("device to-server"));
        }
    }
    for (host, lines) in [
        (world.client(), client),
        (world.hb(), hb),
        (world.server(), server),
    ] {
        host.sh(&lines.join("\n"))?;
    }
    Ok(())
}

/// Near and far link have outages in turn, so that never both are there (Jain and Ott, section IV, at its
/// end): what one brings waits in the box for the other. Half the rate is what can be had.
#[rstest]
fn links_that_are_there_in_turn_carry_half_the_rate(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    const TURN: Duration = Duration::from_secs(5);
    const TURNS: u32 = 10;
    require!(root, virtual_time, program("nft"));
    let shape = |delay| Shape::new(delay, Rate::mbit(RATE));
    let world = World::emulated(shape(NEAR), shape(FAR))?;
    let socket = world.admin_socket();
    // More than the rate brings in five seconds.
    let config = World::config().replace("[leg.wan]\n", "[leg.wan]\nbuffer = \"8MiB\"\n");
    let daemon = Pepd::start(PEPD, world.hb(), &format!("{config}\n{}", world.admin()))?;
    let pairs = [world.pair(family)?];
    pairs[0].server.set_nonblocking(true)?;
    let over = AtomicBool::new(false);
    let share = std::thread::scope(|scope| -> Result<f64> {
        let sender = scope.spawn(|| fill(&pairs[0].client, &over));
        watch(&pairs, Duration::from_secs(3))?;
        let (mut bytes, mut time) = (0, Duration::ZERO);
        for turn in 0..TURNS {
            let [near, far] = match turn % 2 {
                0 => ["gone", "up"],
                _ => ["up", "gone"],
            };
            fade(&world, near, far)?;
            tell_of(&socket, near, "lan")?;
            tell_of(&socket, far, "wan")?;
            let begun = Instant::now();
            let (_, some) = watch(&pairs, TURN)?;
            // The first two fill the box.
            if turn >= 2 {
                bytes += some;
                time += begun.elapsed();
            }
        }
        over.store(true, Relaxed);
        sender.join().ok().context("a sender panicked")??;
        Ok(bytes as f64 * 8.0 / (time.as_secs_f64() * RATE as f64 * 1e6 / 2.0))
    })?;
    println!("{family}: {share:.2} of half the rate");
    ensure!(share > 0.9, "{share} of half the rate");
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// After an outage of ten seconds the link is used again within the timeout that a connection has
/// without an outage, whatever the phase of its timer, which would have been doubled to ten seconds.
#[rstest]
#[case(Family::V4, 1, "\"cubic\"")]
#[case(Family::V6, 1, "\"bbr\"")]
#[case(Family::V4, 1, "\"cubic\"\nrate = \"3900kbit\"")]
#[case(Family::V6, 20, "\"cubic\"")]
#[case(Family::V4, 20, "\"bbr\"")]
fn a_link_that_is_back_is_used_at_once(
    #[case] family: Family,
    #[case] flows: usize,
    #[case] control: &str,
) -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let shape = |delay| Shape::new(delay, Rate::mbit(RATE));
    let world = &World::emulated(shape(NEAR), shape(FAR))?;
    let socket = world.admin_socket();
    let config = World::config().replace("\"cubic\"", control);
    let config = format!("{config}\n{}", world.admin());
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    let pairs = (0..flows)
        .map(|_| world.pair(family))
        .collect::<Result<Vec<_>>>()?;
    for pair in &pairs {
        pair.server.set_nonblocking(true)?;
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let senders: Vec<_> = pairs
            .iter()
            .map(|pair| scope.spawn(|| fill(&pair.client, &over)))
            .collect();
        let measured = (0..PHASES).try_for_each(|phase| -> Result<()> {
            watch(&pairs, Duration::from_secs(3) + phase * PHASE / 3)?;
            let timeout = timeout(&socket)?;
            world.server().sh(LOSE)?;
            tell(&socket, "gone")?;
            std::thread::park_timeout(OUTAGE + phase * PHASE);
            // What had come before is not what comes after.
            watch(&pairs, Duration::ZERO)?;
            for pair in &pairs {
                take(&pair.server)?;
            }
            world.server().sh(RESTORE)?;
            let before = sent(world)?;
            tell(&socket, "up")?;
            let burst = scope.spawn(move || -> Result<u64> {
                std::thread::park_timeout(BEGINNING);
                Ok(sent(world)? - before)
            });
            let (first, bytes) = watch(&pairs, WATCHED)?;
            let burst = burst.join().ok().context("the counting panicked")??;
            let begun: Vec<Duration> = first.iter().flatten().copied().collect();
            let (first, last) = (begun.iter().min(), begun.iter().max());
            let share = bytes as f64 * 8.0 / (WATCHED.as_secs_f64() * RATE as f64 * 1e6);
            println!(
                "{family}, {flows} flows, {control:?}: {} begun, the first after {first:?} and the last after \
                 {last:?} of {timeout:?}; {share:.2} of the rate in {WATCHED:?}, {burst} bytes in \
                 {BEGINNING:?}",
                begun.len()
            );
            // The link is not met by all that has waited for it.
            ensure!(burst <= MOST_AT_ONCE, "{burst} of {MOST_AT_ONCE} bytes");
            // A round trip until the peer has said what it has had already; where the window then
            // forbids what is new, the kernel's timer; a round trip of what that sends, by which the kernel
            // learns what is missing; and the way there.
            let limit = timeout + 5 * FAR + Duration::from_millis(50);
            // Of many, some lose again what they send first.
            let limit = if flows > 1 { limit + 2 * timeout } else { limit };
            ensure!(
                begun.len() == flows && last.is_some_and(|last| *last < limit),
                "{last:?} of {limit:?}"
            );
            // One begins with a window of one segment; of many some lose again what they send first,
            // because the link is full.
            let least = if flows > 1 { 0.7 } else { 0.4 };
            ensure!(share > least, "{share} of the rate");
            Ok(())
        });
        over.store(true, Relaxed);
        for sender in senders {
            sender.join().ok().context("a sender panicked")??;
        }
        measured
    })?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}
