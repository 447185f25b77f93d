//! `congestion = "find-rate"`: nobody says the leg's rate.
//!
//! That it carries every byte, and is gone with the daemon, is shown beside `fixed-rate`, which is the
//! same program in the kernel. How well it finds the rate of which links is measured in virtual time by
//! `pepd-lab`; here, that it does.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use pepd_testbed::link::{Loss, Rate, Shape};
use pepd_testbed::traffic::{Pair, Pattern, receive_exactly, send};
use pepd_testbed::{Family, Netns, Pepd, World, ask, require, wait_until};
use rstest::rstest;
use serde_json::Value;

use super::fixed_rate::{FIND, control_of};
use crate::faults::Faults;
use crate::harness::{LIMIT, PEPD, pass};
use crate::streams::{watch, while_busy, while_filled};
use crate::weather::{LOSE, RESTORE};

/// What the link towards the server carries where what is found is measured, in Mbit/s.
pub(super) const RATE: u64 = 20;

/// What is known of the leg towards the server.
pub(super) fn rate(world: &World) -> Result<Value> {
    let status: Value = serde_json::from_str(&ask(&world.admin_socket(), "GET /v1/status")?)?;
    let rate = status["rates"].get(0).context("no rate in the status")?;
    Ok(rate.clone())
}

fn state(world: &World) -> String {
    let rate = rate(world).unwrap_or_default();
    rate["state"].as_str().unwrap_or_default().to_owned()
}

pub(super) fn config(world: &World) -> String {
    format!("{}{}", control_of(FIND), world.admin())
}

/// Opens so many connections over a leg of [`RATE`] whose one-way delay is so many milliseconds, and that loses packets
/// both ways.
pub(super) fn over_a_leg(
    one_way: u64,
    loss: Loss,
    family: Family,
    flows: usize,
) -> Result<(World, Pepd, Vec<Pair>)> {
    let near = Shape::new(Duration::from_millis(5), Rate::mbit(100));
    let far = Shape {
        loss,
        ..Shape::new(Duration::from_millis(one_way), Rate::mbit(RATE))
    };
    let world = World::emulated(near, far)?;
    let daemon = Pepd::start(PEPD, world.hb(), &config(&world))?;
    let pairs = (0..flows).map(|_| world.pair(family));
    let pairs = pairs.collect::<Result<_>>()?;
    Ok((world, daemon, pairs))
}

/// Returns the pacing rates in bits a second of what the box has open towards the server.
fn pacing(hb: &Netns) -> Result<Vec<f64>> {
    let table = hb.sh("ss -tinOH state established dst 10.2.0.0/16")?;
    let rate = |line: &str| {
        let mut words = line.split_whitespace();
        words.find(|word| *word == "pacing_rate")?;
        words.next()?.strip_suffix("bps")?.parse().ok()
    };
    Ok(table.lines().filter_map(rate).collect())
}

/// The thread that finds the rate does nothing while nothing is sent, and is there again when something
/// is: also for a connection that was there all the time.
#[test]
fn it_sleeps_while_nothing_is_sent() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let mut daemon = Pepd::start(PEPD, world.hb(), &config(&world))?;
    let wait = |wanted: &str| wait_until(LIMIT, wanted, || state(&world) == wanted);
    wait("idle")?;
    let pair = world.pair(Family::V4)?;
    for _ in 0..3 {
        pair.exchange(1_000_000)?;
        wait_until(LIMIT, "it is awake", || state(&world) != "idle")?;
        wait("idle")?;
    }
    ensure!(daemon.runs(), "{}", daemon.log());
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// While the daemon is paused nobody finds the rate any more: what the kernel still sends slows down, and
/// has the link's rate again when it goes on.
#[test]
fn a_paused_daemon_slows_down() -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let slow = Shape::new(Duration::from_millis(5), Rate::mbit(8));
    let world = World::emulated(Shape::new(Duration::from_millis(1), Rate::mbit(100)), slow)?;
    let config = config(&world).replace("[leg.wan]\n", "[leg.wan]\nbuffer = \"64MiB\"\n");
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    let pairs = [world.pair(Family::V4)?];
    while_busy(&pairs, || {
        wait_until(LIMIT, "the rate is found", || state(&world) == "found")?;
        // Enough for what follows: half a minute at the rate that was found.
        wait_until(LIMIT, "24 megabytes wait", || waiting(world.hb()) > 24e6)?;
        let usual = most(&pacing(world.hb())?);
        daemon.pause()?;
        let slower = wait_until(LIMIT, "an eighth of the rate", || {
            pacing(world.hb()).is_ok_and(|rates| most(&rates) < usual / 8.0)
        });
        daemon.resume()?;
        slower?;
        wait_until(LIMIT, "half of the rate", || {
            pacing(world.hb()).is_ok_and(|rates| most(&rates) > usual / 2.0)
        })
    })?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// A call that the kernel refuses is not the end of it: the rate is looked for again as soon as it does not.
#[test]
fn a_call_that_fails_is_tried_again() -> Result<()> {
    require!(root, program("nft"), program("strace"));
    let world = World::standard()?;
    let daemon = Pepd::start(PEPD, world.hb(), &config(&world))?;
    let pairs = [world.pair(Family::V4)?];
    while_busy(&pairs, || {
        wait_until(LIMIT, "it is awake", || state(&world) != "idle")?;
        let faults = Faults::inject(daemon.daemon()?, "find-rate", &["bpf:error=ENOMEM"])?;
        wait_until(LIMIT, "it is said", || {
            daemon.log().contains("the leg's rate cannot be looked for")
        })?;
        faults.end()?;
        wait_until(LIMIT, "it is said that it goes on", || {
            daemon.log().contains("the leg's rate is looked for again")
        })?;
        wait_until(LIMIT, "it is awake again", || state(&world) != "idle")
    })?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// Where a reload has taken the control from the leg, the process that goes on after a death steers it no more: no
/// connection keeps it, at a rate that nobody finds.
#[test]
fn no_control_outlives_what_steers_it() -> Result<()> {
    const ANOTHER: &str = "congestion = \"reno\"\n";
    require!(root, program("nft"), program("ss"));
    let world = World::standard()?;
    let before = config(&world);
    let mut daemon = Pepd::start(PEPD, world.hb(), &before)?;
    let pair = world.pair(Family::V4)?;
    let controls = || world.hb().sh("ss -tinOH state established dst 10.2.0.0/16");
    pair.exchange(100_000)?;
    ensure!(controls()?.contains(" pepd"), "{}", controls()?);
    daemon.reload(&before.replace(FIND, ANOTHER))?;
    daemon.dies(Signal::SIGKILL)?;
    pair.exchange(100_000)?;
    let has = controls()?;
    ensure!(has.contains(" reno ") && !has.contains("pepd"), "{has}");
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

fn most(rates: &[f64]) -> f64 {
    rates.iter().copied().fold(0.0, f64::max)
}

/// Returns the bytes that wait in the box for the server.
fn waiting(hb: &Netns) -> f64 {
    let table = hb.sh("ss -tinOH state established dst 10.2.0.0/16");
    let bytes = |line: &str| line.split_whitespace().nth(1)?.parse::<f64>().ok();
    let table = table.unwrap_or_default();
    table.lines().filter_map(bytes).fold(0.0, f64::max)
}

/// Whatever is lost, the link is full, its queue is short, and its connections have the same.
#[rstest]
#[case::clean(Family::V4, 0.0, 8)]
#[case::lossy(Family::V6, 0.1, 8)]
#[case::half_gone(Family::V4, 0.3, 1)]
fn it_finds_the_rate_of_a_link(
    #[case] family: Family,
    #[case] loss: f64,
    #[case] flows: usize,
) -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let (world, daemon, pairs) = over_a_leg(20, Loss::independent(loss), family, flows)?;
    while_filled(&pairs, || {
        // A rate that nobody has said is found within a second.
        watch(&pairs, Duration::from_secs(1))?;
        let share = share_of(
            &pairs,
            Duration::from_secs(10),
            (1.0 - loss) * 1428.0 / 1514.0,
        )?;
        let found = rate(&world)?;
        println!("{family}, {flows} flows, {loss} lost: {share:.3} of the limit; {found}");
        ensure!(share > 0.9, "{share} of the limit: {found}");
        let queue = found["queue"].as_f64();
        ensure!(queue.is_some_and(|it| it < 0.05), "{found}");
        let off = found["loss"].as_f64().map(|it| (it - loss).abs());
        ensure!(off.is_some_and(|it| it < 0.05), "{found}");
        Ok(())
    })?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// What was found holds after an outage, though what arrived in it, and just after it, was little; and where
/// packets and acknowledgements are lost in bursts, which are no drops of what was too much.
#[rstest]
#[case::outage(Loss::None)]
#[case::bursts(Loss::bursts(0.1, 10.0))]
fn what_was_found_holds(#[case] loss: Loss) -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let (world, daemon, pairs) = over_a_leg(25, loss, Family::V4, 1)?;
    while_filled(&pairs, || {
        watch(&pairs, Duration::from_secs(3))?;
        let mut arrives = 0.9;
        if loss == Loss::None {
            world.server().sh(LOSE)?;
            pass(Duration::from_secs(2));
            world.server().sh(RESTORE)?;
            // A sender's timer may have been doubled to as long as that.
            watch(&pairs, Duration::from_millis(2500))?;
            arrives = 1.0;
        }
        let share = share_of(&pairs, Duration::from_secs(8), arrives * 1448.0 / 1514.0)?;
        let found = rate(&world)?;
        println!("{share:.3} of the limit; {found}");
        ensure!(share > 0.8, "{share} of the limit: {found}");
        Ok(())
    })?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// Over a long path that loses packets too, of which some are lost again and again: whatever came behind them waits until
/// they have arrived, at the receiver, and in the box, whose buffers have room for it without being asked.
#[test]
fn a_long_path_that_loses_is_full() -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let (world, daemon, pairs) = over_a_leg(300, Loss::independent(0.1), Family::V4, 1)?;
    // It is not the receiver's window that is looked at.
    let windows = "4096 131072 67108864";
    world.server().sysctl("net.ipv4.tcp_rmem", windows)?;
    while_filled(&pairs, || {
        watch(&pairs, Duration::from_secs(20))?;
        let share = share_of(&pairs, Duration::from_secs(20), 0.9 * 1448.0 / 1514.0)?;
        let found = rate(&world)?;
        println!("{share:.3} of the limit; {found}");
        ensure!(share > 0.85, "{share} of the limit: {found}");
        Ok(())
    })?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// Watches them for so long, and returns what part arrived of what could, where `part` of what the link carries
/// is data that is not lost.
pub(super) fn share_of(pairs: &[Pair], time: Duration, part: f64) -> Result<f64> {
    let (_, bytes) = watch(pairs, time)?;
    Ok(bytes as f64 / (time.as_secs_f64() * RATE as f64 * 1e6 / 8.0 * part))
}

/// A hundred kilobytes beside eight bulk transfers take hardly longer than alone: who has sent little goes
/// ahead.
#[rstest]
#[case::found(FIND)]
#[case::fixed("congestion = \"fixed-rate\"\nrate = \"19800kbit\"\n")]
fn little_things_go_first(#[case] control: &str) -> Result<()> {
    const BYTES: u64 = 100_000;
    const TIMES: usize = 9;
    require!(root, virtual_time, program("nft"));
    let near = Shape::new(Duration::from_millis(5), Rate::mbit(1000));
    let far = Shape::new(Duration::from_millis(20), Rate::mbit(20));
    let world = World::emulated(near, far)?;
    let config = format!("{}{}", control_of(control), world.admin());
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    let little = || -> Result<Duration> {
        let mut times = Vec::new();
        for _ in 0..TIMES {
            let begun = std::time::Instant::now();
            let pair = world.pair(Family::V4)?;
            std::thread::scope(|scope| -> Result<()> {
                let sender = scope.spawn(|| send(&pair.client, &Pattern::new(2), 0, BYTES));
                receive_exactly(&pair.server, &Pattern::new(2), 0, BYTES)?;
                sender.join().ok().context("the sender panicked")?
            })?;
            times.push(begun.elapsed());
            pass(Duration::from_millis(370));
        }
        times.sort();
        Ok(times[TIMES / 2])
    };
    // The rate is found first.
    for _ in 0..3 {
        world.pair(Family::V4)?.exchange(2_000_000)?;
    }
    let alone = little()?;
    let pairs = (0..8)
        .map(|_| world.pair(Family::V4))
        .collect::<Result<Vec<Pair>>>()?;
    let beside = while_busy(&pairs, || {
        pass(Duration::from_secs(3));
        little()
    })?;
    let ratio = beside.as_secs_f64() / alone.as_secs_f64();
    println!("{control:?}: {alone:?} alone, {beside:?} beside eight: {ratio:.2}");
    ensure!(ratio < 1.6, "{beside:?} instead of {alone:?}");
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}
