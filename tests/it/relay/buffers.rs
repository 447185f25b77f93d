//! `buffer = "auto"`: what the path needs, whatever the kernel's maxima.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::link::{QueueLimit, Rate, Shape};
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, Pepd, World, ask, require};
use rstest::rstest;
use serde_json::Value;

use crate::harness::PEPD;
use crate::streams::{fill, watch};

/// The link's rate, in Mbit/s.
const RATE: u64 = 20;

/// A satellite's 600 ms at 20 Mbit/s are 1.5 MB: more than the box's kernel lets a socket have under way
/// here. With "auto" the link is full, whether the box sends or receives over it; without, it is not.
#[rstest]
#[case::sends_auto(true, true)]
#[case::receives_auto(false, true)]
#[case::sends_by_itself(true, false)]
#[case::receives_by_itself(false, false)]
fn a_long_fat_leg_is_filled(#[case] sends: bool, #[case] auto: bool) -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let near = Shape::new(Duration::from_millis(5), Rate::mbit(1000));
    let far = Shape {
        queue: QueueLimit::Bytes(4 << 20),
        ..Shape::new(Duration::from_millis(300), Rate::mbit(RATE))
    };
    let world = World::emulated(near, far)?;
    world
        .hb()
        .sysctl("net.ipv4.tcp_wmem", "4096 16384 524288")?;
    world
        .hb()
        .sysctl("net.ipv4.tcp_rmem", "4096 131072 1048576")?;
    let buffer = if auto { "buffer = \"auto\"\n" } else { "" };
    let control = "congestion = \"cubic\"\n";
    let config = World::config().replace(control, &format!("{control}{buffer}"));
    let daemon = Pepd::start(PEPD, world.hb(), &format!("{config}{}", world.admin()))?;
    let pair = world.pair(Family::V4)?;
    let pairs = [if sends { pair } else { pair.swapped() }];
    let share = share_of_the_link(&pairs)?;
    let status: Value = serde_json::from_str(&ask(&world.admin_socket(), "GET /v1/status")?)?;
    let buffers = &status["buffers"][0];
    println!("sends: {sends}, auto: {auto}: {share:.3} of the link; {buffers}");
    if auto {
        ensure!(share >= 0.9, "{share} of the link: {buffers}");
        let way = if sends { "send" } else { "receive" };
        ensure!(buffers[way]["path"] == 1, "{buffers}");
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
            watch(pairs, Duration::from_secs(15))?;
            let time = Duration::from_secs(10);
            let (_, bytes) = watch(pairs, time)?;
            let most = time.as_secs_f64() * RATE as f64 * 1e6 / 8.0 * 1448.0 / 1514.0;
            Ok(bytes as f64 / most)
        })();
        over.store(true, Relaxed);
        sender.join().ok().context("the sender panicked")??;
        measured
    })
}
