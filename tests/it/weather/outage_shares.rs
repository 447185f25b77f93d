//! Who has how much of a link that is back: on the guest's virtual clock.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::link::{QueueLimit, Rate, Shape};
use pepd_testbed::{Family, World, require, wait_until};
use rstest::rstest;

use super::outage_times::{BEGINNING, Crossing, FAR, NEAR, RATE, most_at_first, payload, sent};
use crate::harness::{LIMIT, pass};
use crate::streams::{take, watch};

const BEFORE: Duration = Duration::from_secs(4);
const OUTAGE: Duration = Duration::from_secs(10);
const AFTER: Duration = Duration::from_secs(2);

/// Starts it, over links that carry this in Mbit/s.
fn cross(rate: u64, control: &str, family: Family, flows: usize) -> Result<Crossing> {
    let shape = |delay| Shape {
        queue: QueueLimit::Packets(100),
        ..Shape::new(delay, Rate::mbit(rate))
    };
    let config = World::config().replace("\"cubic\"", control);
    Crossing::start((shape(NEAR), shape(FAR)), &config, family, flows)
}

/// Watches a link that carries this in Mbit/s, and is back, for so long; gives how much of that is carried.
fn share(crossing: &Crossing, rate: u64, family: Family, time: Duration) -> Result<f64> {
    const PARTS: u32 = 10;
    let all = time.as_secs_f64() * rate as f64 * 1e6 / 8.0 * payload(family);
    let parts = (0..PARTS).map(|_| {
        let (_, bytes) = watch(&crossing.pairs, time / PARTS)?;
        Ok(bytes as f64 / all)
    });
    let parts = parts.collect::<Result<Vec<_>>>()?;
    let of_parts = parts
        .iter()
        .map(|part| format!("{:.2}", part * f64::from(PARTS)));
    println!("{}", of_parts.collect::<Vec<_>>().join(" "));
    Ok(parts.iter().sum())
}

/// Of a link that is back those have a part that have something to send, and not those that had something to send before, or have
/// a few bytes now; and where others have a few segments, they do not take all of it.
#[rstest]
#[case(Family::V4, "\"cubic\"")]
#[case(Family::V6, "\"bbr\"")]
fn who_is_idle_has_no_part_of_a_link_that_is_back(
    #[case] family: Family,
    #[case] control: &str,
    #[values(0, 100, 12_000)] waiting: usize,
) -> Result<()> {
    const IDLE: usize = 30;
    const BYTES: u64 = 50_000;
    require!(root, virtual_time, program("nft"));
    let crossing = cross(RATE, control, family, 1)?;
    let idle = (0..IDLE).map(|_| crossing.world.pair(family));
    let idle = idle.collect::<Result<Vec<_>>>()?;
    for pair in &idle {
        pair.exchange(BYTES)?;
    }
    let share = crossing.while_filled(|| {
        watch(&crossing.pairs, BEFORE)?;
        crossing.be("gone")?;
        for pair in &idle {
            (&pair.client).write_all(&vec![b'.'; waiting])?;
        }
        pass(OUTAGE);
        crossing.be("up")?;
        share(&crossing, RATE, family, AFTER)
    })?;
    println!("{family}, {control}, {IDLE} others with {waiting} bytes: {share:.2} of the rate");
    // What little they have does not wait; of more the last may have been lost once more.
    let is_little = waiting <= 100;
    for pair in &idle {
        pair.server.set_nonblocking(true)?;
        let mut taken = take(&pair.server)?;
        ensure!(taken == waiting || !is_little, "what little it has waits");
        wait_until(LIMIT, "it has all", || {
            taken += take(&pair.server).unwrap_or_default();
            taken == waiting
        })?;
    }
    // With bbr it may go on at a last sample that was low. A part beside all of them would be 0.03, and what remains where all of
    // them have so many segments 0.64.
    let least = if is_little { 0.4 } else { 0.3 };
    ensure!(share > least, "{share}");
    crossing.stop()
}

/// Many connections that send little, in small segments, say little of what the link carries: together they begin no faster than
/// that, and none waits for long.
#[rstest]
#[case(Family::V4, "\"bbr\"")]
#[case(Family::V6, "\"cubic\"")]
fn many_that_send_little_do_not_meet_the_link_with_a_burst(
    #[case] family: Family,
    #[case] control: &str,
) -> Result<()> {
    const MANY: usize = 60;
    const PIECE: [u8; 20] = [b'.'; 20];
    const INTERVAL: Duration = Duration::from_millis(20);
    require!(root, virtual_time, program("nft"));
    let rate = 2 * RATE;
    let crossing = cross(rate, control, family, MANY)?;
    let over = AtomicBool::new(false);
    let (burst, first) = thread::scope(|scope| -> Result<_> {
        let sender = scope.spawn(|| -> Result<()> {
            while !over.load(Relaxed) {
                for pair in &crossing.pairs {
                    (&pair.client).write_all(&PIECE)?;
                }
                pass(INTERVAL);
            }
            Ok(())
        });
        let done = (|| {
            watch(&crossing.pairs, BEFORE)?;
            crossing.be("gone")?;
            pass(OUTAGE);
            crossing.take()?;
            let before = sent(&crossing.world)?;
            crossing.be("up")?;
            let (begun, _) = watch(&crossing.pairs, BEGINNING)?;
            let burst = sent(&crossing.world)? - before;
            let (later, _) = watch(&crossing.pairs, AFTER)?;
            let first = begun.into_iter().zip(later);
            let first = first.map(|(begun, later)| begun.or(later.map(|later| BEGINNING + later)));
            Ok((burst, first.collect::<Option<Vec<_>>>()))
        })();
        over.store(true, Relaxed);
        sender.join().ok().context("the sender panicked")??;
        done
    })?;
    let last = first.iter().flatten().max();
    println!(
        "{family}, {control}: {burst} bytes in {BEGINNING:?}, the last had data after {last:?}"
    );
    let most = most_at_first(rate * 1_000_000)?;
    ensure!(burst <= most, "{burst} of {most} bytes");
    ensure!(last.is_some(), "one has had no data after {AFTER:?}");
    crossing.stop()
}

/// Where the daemon's process dies in the moment after the return, whoever takes over knows what the link carried before it, and
/// has all connections go on at that.
#[rstest]
#[case(Family::V4, 1, "\"cubic\"")]
#[case(Family::V6, 20, "\"cubic\"")]
#[case(Family::V4, 20, "\"bbr\"")]
fn whoever_takes_over_at_the_return_knows_what_the_link_carried(
    #[case] family: Family,
    #[case] flows: usize,
    #[case] control: &str,
    #[values(0, 30, 100, 160)] later: u64,
) -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let rate = if flows > 1 { 2 * RATE } else { RATE };
    let crossing = cross(rate, control, family, flows)?;
    let share = crossing.while_filled(|| {
        watch(&crossing.pairs, BEFORE)?;
        crossing.be("gone")?;
        pass(OUTAGE);
        let daemon = crossing.daemon.daemon()?;
        crossing.be("up")?;
        pass(Duration::from_millis(later));
        crossing.world.hb().sh(&format!("kill -KILL {daemon}"))?;
        wait_until(LIMIT, "the next one", || {
            let log = crossing.daemon.log();
            log.contains("the link has been up for a moment")
        })?;
        // What came meanwhile is not what comes then.
        crossing.take()?;
        share(&crossing, rate, family, AFTER)
    })?;
    println!("{family}, {flows} flows, {control}, dies after {later} ms: {share:.2} of the rate");
    ensure!(share > 0.6, "{share}");
    crossing.stop()
}
