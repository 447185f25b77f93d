//! Two legs with `congestion = "find-rate"` whose packets pass the same link: each has a controller of its own,
//! and nobody tells them of each other.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pepd_testbed::link::{Loss, Rate, Shape};
use pepd_testbed::{Family, Pepd, World, require};
use rstest::rstest;

use super::find_rate::{RATE, rate};
use super::fixed_rate::{FIND, control_of};
use crate::harness::PEPD;
use crate::streams::{watch, while_filled};

/// For how long they may look for their parts, in all and for each millisecond of the way, and for how long it is looked at
/// them then.
const SETTLES: [Duration; 2] = [Duration::from_secs(15), Duration::from_millis(400)];
const WATCHED: Duration = Duration::from_secs(20);

/// The time in which both are read once.
const TURN: Duration = Duration::from_millis(10);

/// The second campus with a leg for each family.
fn config(world: &World) -> String {
    let both = "prefixes = [\"10.2.0.0/16\", \"fd00:b::/48\"]\n";
    let v4 = "prefixes = [\"10.2.0.0/16\"]\n";
    format!(
        "{}\n[leg.beside]\n{FIND}\n[[campus]]\nname = \"c\"\nprefixes = [\"fd00:b::/48\"]\nvia = \"local\"\n\
         leg = \"beside\"\n{}",
        control_of(FIND).replace(both, v4),
        world.admin()
    )
}

/// Both have their part of it, whichever began first, and leave nothing unused.
#[rstest]
fn two_legs_share_a_link(
    #[values(0.0, 0.1)] loss: f64,
    #[values(5, 25, 100)] one_way: u64,
) -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let near = Shape::new(Duration::from_millis(1), Rate::mbit(200));
    let far = Shape {
        loss: Loss::independent(loss),
        ..Shape::new(Duration::from_millis(one_way), Rate::mbit(RATE))
    };
    let world = World::emulated(near, far)?;
    let daemon = Pepd::start(PEPD, world.hb(), &config(&world))?;
    let pairs = [world.pair(Family::V4)?, world.pair(Family::V6)?];
    while_filled(&pairs, || {
        // The first one has the link for itself.
        watch(&pairs[..1], Duration::from_secs(3))?;
        let [in_all, each] = SETTLES;
        watch(&pairs, in_all + each * u32::try_from(one_way)?)?;
        let mut bytes = [0; 2];
        let mut queues = Vec::new();
        let begun = Instant::now();
        for turn in 0..WATCHED.as_millis() / TURN.as_millis() {
            // What waits meanwhile is little.
            for (bytes, pair) in bytes.iter_mut().zip(pairs.chunks(1)) {
                *bytes += watch(pair, TURN / 2)?.1;
            }
            if turn % 20 == 0 {
                queues.extend(rate(&world)?["queue"].as_f64());
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        queues.sort_by(f64::total_cmp);
        let [one, other] = bytes.map(|it| it as f64);
        let part = one.min(other) / (one + other);
        let all =
            (one + other) * 8.0 / (seconds * RATE as f64 * 1e6 * (1.0 - loss) * 1438.0 / 1500.0);
        println!(
            "{loss} lost, {} ms: the smaller part {part:.3}, together {all:.3} of the link, queue p95 {:.3?} s",
            2 * one_way,
            queues.get(queues.len() * 19 / 20)
        );
        ensure!(part > 0.4, "{one} and {other} bytes");
        ensure!(all > 0.9, "{all} of the link");
        Ok(())
    })?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}
