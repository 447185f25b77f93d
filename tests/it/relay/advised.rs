//! What is advised brings what it says: on the guest's virtual clock, over a satellite's 600 ms.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::link::{Loss, QueueLimit, Rate, Shape};
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, Pepd, World, ask, require};
use rstest::rstest;
use serde_json::Value;

use crate::harness::PEPD;
use crate::streams::{fill, watch};

/// The link's rate, in Mbit/s: 750 kB for a round trip, for which, and for a second's queue, a host has room by default.
const RATE: u64 = 10;

/// Until slow start, or a control that is slower, has come to what it carries.
const SETTLES: Duration = Duration::from_secs(40);

/// The time that is measured: what advice goes by is that of the last ten seconds.
const MEASURED: Duration = Duration::from_secs(15);

/// A short leg to the client, and a satellite's 600 ms to the server, of which such a share is lost, and whose queue
/// holds so many bytes.
fn world(lost: f64, queue: u64) -> Result<World> {
    let near = Shape::new(Duration::from_millis(5), Rate::mbit(1000));
    let far = Shape {
        loss: Loss::independent(lost),
        queue: QueueLimit::Bytes(queue),
        ..Shape::new(Duration::from_millis(300), Rate::mbit(RATE))
    };
    World::emulated(near, far)
}

/// The keys of the leg to the server, `said` in place of its control.
fn config(world: &World, said: &str) -> String {
    let config = World::config().replace("congestion = \"cubic\"\n", said);
    format!("{config}{}", world.admin())
}

/// What a leg carries, and what its connections meet.
#[derive(Debug)]
struct Met {
    /// Of the link's rate, from 0 to 1.
    share: f64,
    /// What is added to round trips under load, in seconds.
    added: f64,
    resent: f64,
    advice: Vec<String>,
}

/// Has a new connection send all the time, and says what it has met.
fn meet(world: &World) -> Result<Met> {
    let pairs: [Pair; 1] = [world.pair(Family::V4)?];
    pairs[0].server.set_nonblocking(true)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<Met> {
        let sender = scope.spawn(|| fill(&pairs[0].client, &over));
        let met = (|| -> Result<Met> {
            watch(&pairs, SETTLES)?;
            let (_, bytes) = watch(&pairs, MEASURED)?;
            let status: Value =
                serde_json::from_str(&ask(&world.admin_socket(), "GET /v1/status")?)?;
            let legs = status["legs"].as_array().context("no legs")?;
            let wan = legs
                .iter()
                .find(|leg| leg["leg"] == "wan")
                .context("no wan")?;
            let advice = status["advice"].as_array().context("no advice")?;
            let most = MEASURED.as_secs_f64() * RATE as f64 * 1e6 / 8.0 * 1448.0 / 1514.0;
            Ok(Met {
                share: bytes as f64 / most,
                added: wan["loaded_rtt"]["added"].as_f64().unwrap_or(0.0),
                resent: wan["resent"].as_f64().unwrap_or(0.0),
                advice: advice
                    .iter()
                    .filter_map(|it| it.as_str().map(str::to_owned))
                    .collect(),
            })
        })();
        over.store(true, Relaxed);
        sender.join().ok().context("the sender panicked")??;
        met
    })
}

/// Gives the first line that is advised for the leg, such as `buffer = "4MiB"`.
fn advised(met: &Met, key: &str) -> Result<String> {
    let start = format!("{key} = \"");
    let of_leg = met.advice.iter().filter(|text| text.contains("[leg.wan]"));
    let line = of_leg.into_iter().find_map(|text| {
        let (_, rest) = text.split_once(&start)?;
        let (value, _) = rest.split_once('"')?;
        Some(format!("{start}{value}\"\n"))
    });
    line.with_context(|| format!("{key} is not advised: {met:?}"))
}

/// Has what is advised in place of what was said, and says what is met before and then.
fn follow(world: &World, said: &str, key: &str) -> Result<[Met; 2]> {
    let mut daemon = Pepd::start(PEPD, world.hb(), &config(world, said))?;
    let before = meet(world)?;
    println!("{said}{before:?}");
    let line = advised(&before, key)?;
    let kept = said.lines().filter(|line| !line.starts_with(key));
    let kept: String = kept.map(|line| format!("{line}\n")).collect();
    daemon.reload(&config(world, &format!("{kept}{line}")))?;
    let after = meet(world)?;
    println!("{line}{after:?}");
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok([before, after])
}

/// A buffer that is too small, and losses that a control takes for congestion: the leg carries so many times as much
/// afterwards, and of the link so much.
#[rstest]
#[case::buffer("congestion = \"cubic\"\nbuffer = \"64KiB\"\n", "buffer", 0.0, (4.0, 0.9))]
#[case::control("congestion = \"cubic\"\nbuffer = \"16MiB\"\n", "congestion", 0.01, (4.0, 0.7))]
fn more_is_carried(
    #[case] said: &str,
    #[case] key: &str,
    #[case] lost: f64,
    #[case] (times, share): (f64, f64),
) -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let world = world(lost, 1 << 20)?;
    let [before, after] = follow(&world, said, key)?;
    let enough = after.share >= times * before.share && after.share >= share;
    ensure!(enough, "{before:?}, {after:?}");
    let (one, other) = (advised(&before, key)?, advised(&after, key).ok());
    ensure!(other != Some(one), "advised again: {after:?}");
    Ok(())
}

/// A queue of a second in front of the link, since nothing says what that carries.
#[test]
fn a_queue_is_gone() -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let world = world(0.0, 2 << 20)?;
    let [before, after] = follow(
        &world,
        "congestion = \"cubic\"\nbuffer = \"16MiB\"\n",
        "rate",
    )?;
    ensure!(
        before.added > 0.2 && after.added < before.added / 4.0,
        "{before:?}, {after:?}"
    );
    ensure!(
        after.share > 0.9 && after.resent < 0.01,
        "{before:?}, {after:?}"
    );
    Ok(())
}
