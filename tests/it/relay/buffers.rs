//! `buffer = "auto"`: what the path needs, whatever the kernel's maxima.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::link::{QueueLimit, Rate, Shape};
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, Pepd, World, accepted, ask, require, wait_until};
use rstest::rstest;
use serde_json::Value;

use crate::harness::{LIMIT, PEPD};
use crate::streams::{fill, take, watch};

/// The link's rate, in Mbit/s.
const RATE: u64 = 50;

/// What the box's kernel makes of a send buffer at most, and of a receive buffer.
const KERNEL: [u64; 2] = [1 << 20, 4 << 20];

/// A short leg to the client, and a satellite's 600 ms to the server: 3.75 MB at [`RATE`].
fn world() -> Result<World> {
    let near = Shape::new(Duration::from_millis(5), Rate::mbit(1000));
    let far = Shape {
        queue: QueueLimit::Bytes(4 << 20),
        ..Shape::new(Duration::from_millis(300), Rate::mbit(RATE))
    };
    let world = World::emulated(near, far)?;
    let [send, receive] = KERNEL;
    let hb = world.hb();
    hb.sysctl("net.ipv4.tcp_wmem", &format!("4096 16384 {send}"))?;
    hb.sysctl("net.ipv4.tcp_rmem", &format!("4096 131072 {receive}"))?;
    Ok(world)
}

fn config(world: &World, buffer: &str) -> String {
    let mut config = World::config();
    for control in ["congestion = \"reno\"\n", "congestion = \"cubic\"\n"] {
        config = config.replace(control, &format!("{control}{buffer}"));
    }
    format!("{config}{}", world.admin())
}

/// Returns what is said of the buffers of the leg towards the client, and of the other.
fn buffers(world: &World) -> Result<[Value; 2]> {
    let status: Value = serde_json::from_str(&ask(&world.admin_socket(), "GET /v1/status")?)?;
    let of = |name: &str| {
        let all = status["buffers"].as_array()?;
        all.iter().find(|leg| leg["leg"] == name).cloned()
    };
    let [near, far] = ["lan", "wan"].map(of);
    let (near, far) = near.zip(far).context("not both legs")?;
    Ok([near, far])
}

/// These 600 ms need more than the box's kernel lets a socket have. With "auto" the link is full,
/// whether the box sends or receives over it; without, it is not. The short leg stays the kernel's.
#[rstest]
#[case::sends_auto(true, true)]
#[case::receives_auto(false, true)]
#[case::sends_by_itself(true, false)]
#[case::receives_by_itself(false, false)]
fn a_long_fat_leg_is_filled(#[case] sends: bool, #[case] auto: bool) -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let world = world()?;
    let buffer = if auto { "buffer = \"auto\"\n" } else { "" };
    let daemon = Pepd::start(PEPD, world.hb(), &config(&world, buffer))?;
    let pair = world.pair(Family::V4)?;
    let pairs = [if sends { pair } else { pair.swapped() }];
    let share = share_of_the_link(&pairs)?;
    println!("sends: {sends}, auto: {auto}: {share:.3} of the link");
    if auto {
        let [near, far] = buffers(&world)?;
        println!("{near} {far}");
        let way = if sends { "send" } else { "receive" };
        ensure!(share >= 0.95, "{share} of the link: {far}");
        ensure!(far[way]["path"] == 1, "{far}");
        for (way, kernel) in ["send", "receive"].into_iter().zip(KERNEL) {
            ensure!(near[way]["kernel"] == 1, "{near}");
            ensure!(near[way]["largest"].as_u64() <= Some(kernel), "{near}");
        }
    } else {
        ensure!(share < 0.8, "{share} of the link without");
    }
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// Sends all the time, and returns how much of the link was used once that had begun.
fn share_of_the_link(pairs: &[Pair; 1]) -> Result<f64> {
    pairs[0].server.set_nonblocking(true)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<f64> {
        let sender = scope.spawn(|| fill(&pairs[0].client, &over));
        let measured = (|| -> Result<f64> {
            // Slow start takes eight round trips, and each doubling of a buffer one or two.
            watch(pairs, Duration::from_secs(20))?;
            let time = Duration::from_secs(10);
            let (_, bytes) = watch(pairs, time)?;
            Ok(share(bytes, time))
        })();
        over.store(true, Relaxed);
        sender.join().ok().context("the sender panicked")??;
        measured
    })
}

fn share(bytes: usize, time: Duration) -> f64 {
    let most = time.as_secs_f64() * RATE as f64 * 1e6 / 8.0 * 1448.0 / 1514.0;
    bytes as f64 / most
}

/// One that has all that its path needs stops to be read: it keeps what it holds, and no more. Another
/// has what its path needs. When many come, that one gives of it, and all are split.
#[test]
fn a_slow_reader_pins_no_more_than_its_part_and_many_take_theirs() -> Result<()> {
    require!(root, virtual_time, program("nft"));
    const MEMORY: u64 = 96 << 20;
    const MANY: u64 = 60;
    let world = world()?;
    let limits = format!("[limits]\nmemory = \"{}MiB\"\n", MEMORY >> 20);
    let config = config(&world, "buffer = \"auto\"\n");
    let daemon = Pepd::start(PEPD, world.hb(), &format!("{config}{limits}"))?;
    let over = AtomicBool::new(false);
    let (slow, quick) = (world.pair(Family::V4)?, [world.pair(Family::V4)?]);
    slow.server.set_nonblocking(true)?;
    quick[0].server.set_nonblocking(true)?;
    let mut many = Vec::new();
    std::thread::scope(|scope| -> Result<()> {
        let slow_sends = scope.spawn(|| fill(&slow.client, &over));
        let mut quick_sends = None;
        let shown = (|| -> Result<()> {
            let largest = || -> Result<u64> {
                let [_, far] = buffers(&world)?;
                far["send"]["largest"].as_u64().context("no number")
            };
            wait_until(LIMIT, "the path has what it needs", || {
                take(&slow.server).unwrap();
                largest().is_ok_and(|size| size >= 8 << 20)
            })?;
            // From here on nobody reads from it.
            quick_sends = Some(scope.spawn(|| fill(&quick[0].client, &over)));
            watch(&quick, Duration::from_secs(30))?;
            let time = Duration::from_secs(10);
            let (_, bytes) = watch(&quick, time)?;
            let (share, before) = (share(bytes, time), largest()?);
            println!("beside the slow reader: {share:.3}, {before}");
            ensure!(share >= 0.85, "{share} of the link beside a slow reader");
            for _ in 0..MANY {
                many.push(world.pair(Family::V4)?);
            }
            let mut after = before;
            let begun = Instant::now();
            while after > before / 2 && begun.elapsed() < LIMIT {
                watch(&quick, Duration::from_millis(500))?;
                after = largest()?;
            }
            println!("{before}, and {after} when many have come");
            ensure!(after <= before / 2, "{after} of {before}");
            Ok(())
        })();
        over.store(true, Relaxed);
        slow_sends.join().ok().context("the sender panicked")??;
        if let Some(sends) = quick_sends {
            sends.join().ok().context("the sender panicked")??;
        }
        shown
    })?;
    let split = accepted(world.hb())?;
    ensure!(split == MANY + 2, "{split} are split");
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}
