//! How long a link that is back stays empty: on the guest's virtual clock.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::link::{Rate, Shape};
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, Pepd, World, ask, require};
use rstest::rstest;
use serde_json::Value;

use super::{LOSE, RESTORE};
use crate::harness::{PEPD, pass};
use crate::streams::{fill, take, watch};

/// One way over the link that has outages, and over the other one.
pub(super) const FAR: Duration = Duration::from_millis(50);
pub(super) const NEAR: Duration = Duration::from_millis(5);
/// What they carry, in Mbit/s: where there are few connections, and for each of many.
pub(super) const RATE: u64 = 4;
const RATE_OF_EACH: u64 = 400_000;
/// The length of an outage, and what is drawn on top of it and of the time before it, so that each begins
/// and ends at another time of the timers.
const OUTAGE: Duration = Duration::from_secs(10);
const PHASE: Duration = Duration::from_millis(3000);
/// What draws that, if `PEPD_SEED` does not.
const SEED: u64 = 13;
/// The outages of a test that the gate runs, and of one that is run by hand.
const FEW: usize = 4;
const MANY: usize = 20;
/// The time after an outage in which no more may be sent than the link carries in it, and ten segments.
pub(super) const BEGINNING: Duration = Duration::from_millis(100);
/// The round trips after an outage that are looked at one by one, and the time in which the link is watched
/// in all.
const ROUND_TRIPS: u32 = 8;
const WATCHED: Duration = Duration::from_secs(2);

/// Connections through a box with an admin socket, over links of their own.
pub(super) struct Crossing {
    pub(super) world: World,
    pub(super) socket: PathBuf,
    pub(super) pairs: Vec<Pair>,
    pub(super) daemon: Pepd,
}

impl Crossing {
    /// Starts it, and opens so many connections.
    pub(super) fn start(
        (near, far): (Shape, Shape),
        config: &str,
        family: Family,
        flows: usize,
    ) -> Result<Self> {
        let world = World::emulated(near, far)?;
        let socket = world.admin_socket();
        let daemon = Pepd::start(PEPD, world.hb(), &format!("{config}\n{}", world.admin()))?;
        let pairs = (0..flows).map(|_| world.pair(family));
        let pairs = pairs.collect::<Result<Vec<_>>>()?;
        for pair in &pairs {
            pair.server.set_nonblocking(true)?;
        }
        Ok(Self {
            world,
            socket,
            pairs,
            daemon,
        })
    }

    /// Has every client send all the time while something is done.
    pub(super) fn while_filled<T>(&self, done: impl FnOnce() -> Result<T>) -> Result<T> {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let senders: Vec<_> = self
                .pairs
                .iter()
                .map(|pair| scope.spawn(|| fill(&pair.client, &over)))
                .collect();
            let done = done();
            over.store(true, Relaxed);
            for sender in senders {
                sender.join().ok().context("a sender panicked")??;
            }
            done
        })
    }

    /// Reads what has come to the servers so far: it is not what comes then. Gives how much that was.
    pub(super) fn take(&self) -> Result<usize> {
        self.pairs.iter().map(|pair| take(&pair.server)).sum()
    }

    /// Has the far link go away, or come back, unseen, and tells of it.
    pub(super) fn be(&self, state: &str) -> Result<()> {
        let rule = if state == "gone" { LOSE } else { RESTORE };
        self.world.server().sh(rule)?;
        tell(&self.socket, state)
    }

    /// Ends it, which the daemon does without an error.
    pub(super) fn stop(self) -> Result<()> {
        let (status, log) = self.daemon.stop()?;
        ensure!(status.success(), "{log}");
        Ok(())
    }
}

fn flows(socket: &Path) -> Result<Value> {
    Ok(serde_json::from_str(&ask(
        socket,
        "GET /v1/flows?limit=1000",
    )?)?)
}

pub(super) fn tell(socket: &Path, state: &str) -> Result<()> {
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
pub(super) fn sent(world: &World) -> Result<u64> {
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

/// Gives the bytes that may be sent in [`BEGINNING`] over a link that carries this in bits a second.
pub(super) fn most_at_first(rate: u64) -> Result<u64> {
    Ok(rate * u64::try_from(BEGINNING.as_millis())? / 8000 + 10 * 1514)
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
    // More than the rate brings in five seconds.
    let config = World::config().replace("[leg.wan]\n", "[leg.wan]\nbuffer = \"8MiB\"\n");
    let crossing = Crossing::start((shape(NEAR), shape(FAR)), &config, family, 1)?;
    let (pairs, socket) = (&crossing.pairs, &crossing.socket);
    let share = crossing.while_filled(|| {
        watch(pairs, Duration::from_secs(3))?;
        let (mut bytes, mut time) = (0, Duration::ZERO);
        for turn in 0..TURNS {
            let [near, far] = match turn % 2 {
                0 => ["gone", "up"],
                _ => ["up", "gone"],
            };
            fade(&crossing.world, near, far)?;
            tell_of(socket, near, "lan")?;
            tell_of(socket, far, "wan")?;
            let begun = Instant::now();
            let (_, some) = watch(pairs, TURN)?;
            // The first two fill the box.
            if turn >= 2 {
                bytes += some;
                time += begun.elapsed();
            }
        }
        Ok(bytes as f64 * 8.0 / (time.as_secs_f64() * RATE as f64 * 1e6 / 2.0))
    })?;
    println!("{family}: {share:.2} of half the rate");
    ensure!(share > 0.9, "{share} of half the rate");
    crossing.stop()
}

/// Draws times below [`PHASE`].
fn phases() -> Result<impl Iterator<Item = Duration>> {
    let seed = std::env::var("PEPD_SEED").map_or(Ok(SEED), |seed| seed.parse())?;
    let milliseconds = u64::try_from(PHASE.as_millis())?;
    let mut state: u64 = seed;
    // Knuth's linear congruential generator (MMIX), of which the upper bits are the better ones.
    Ok(std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis((state >> 33) % milliseconds)
    }))
}

/// What came after an outage.
struct After {
    /// When each had its first data, from when the link was up.
    first: Vec<Duration>,
    /// The bytes of each of the first round trips.
    round_trips: Vec<usize>,
    /// Those of all of [`WATCHED`].
    bytes: usize,
    /// Those that came later, where some had none by then.
    later: usize,
}

/// Watches the link for [`WATCHED`] from now on, and up to `limit` where some have had no data by then.
fn watch_after(pairs: &[Pair], limit: Duration) -> Result<After> {
    let begun = Instant::now();
    let mut first = vec![None; pairs.len()];
    let mut windows = vec![2 * FAR; ROUND_TRIPS as usize];
    windows.push(WATCHED - ROUND_TRIPS * 2 * FAR);
    let mut came = Vec::new();
    for window in windows {
        let before = begun.elapsed();
        let (some, bytes) = watch(pairs, window)?;
        for (first, some) in first.iter_mut().zip(some) {
            *first = first.or(some.map(|some| before + some));
        }
        came.push(bytes);
    }
    let mut later = 0;
    while first.contains(&None) && begun.elapsed() < limit {
        let before = begun.elapsed();
        let (some, bytes) = watch(pairs, 2 * FAR)?;
        for (first, some) in first.iter_mut().zip(some) {
            *first = first.or(some.map(|some| before + some));
        }
        later += bytes;
    }
    Ok(After {
        later,
        first: first.into_iter().flatten().collect(),
        bytes: came.iter().sum(),
        round_trips: came[..ROUND_TRIPS as usize].to_vec(),
    })
}

/// After an outage of ten seconds or more the link is used again within a round trip, whatever the phase of
/// a connection's timer, which would have been doubled to ten seconds.
///
/// The last four are run by hand: `cargo xtask vm --virtual-time … --tests outage_times::a_link`.
#[rstest]
#[case(Family::V4, 1, "\"cubic\"", FEW)]
#[case(Family::V6, 1, "\"bbr\"", FEW)]
#[case(Family::V4, 1, "\"cubic\"\nrate = \"3900kbit\"", FEW)]
#[case(Family::V6, 20, "\"cubic\"", FEW)]
#[case(Family::V4, 20, "\"bbr\"", FEW)]
#[case(Family::V4, 1, "\"cubic\"", MANY)]
#[case(Family::V6, 1, "\"bbr\"", MANY)]
#[case(Family::V6, 50, "\"cubic\"", MANY)]
#[case(Family::V4, 50, "\"bbr\"", MANY)]
fn a_link_that_is_back_is_used_at_once(
    #[case] family: Family,
    #[case] flows: usize,
    #[case] control: &str,
    #[case] outages: usize,
) -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let rate = (RATE * 1_000_000).max(flows as u64 * RATE_OF_EACH);
    let shape = |delay| Shape::new(delay, Rate::bits_per_second(rate));
    let config = World::config().replace("\"cubic\"", control);
    let crossing = Crossing::start((shape(NEAR), shape(FAR)), &config, family, flows)?;
    let Crossing { world, pairs, .. } = &crossing;
    let share = |bytes: usize, time: Duration| {
        bytes as f64 * 8.0 / (time.as_secs_f64() * rate as f64 * payload(family))
    };
    let (mut all, mut up) = (0, Duration::ZERO);
    crossing.while_filled(|| {
        let mut phases = phases()?;
        for _ in 0..outages {
            let [before, longer] = [(); 2].map(|()| phases.next().unwrap_or_default());
            let since = Instant::now();
            all += watch(pairs, Duration::from_secs(3) + before)?.1;
            let timeout = timeout(&crossing.socket)?;
            crossing.be("gone")?;
            up += since.elapsed();
            pass(OUTAGE + longer);
            // What had come before is not what comes after.
            all += watch(pairs, Duration::ZERO)?.1;
            all += crossing.take()?;
            let sent_before = sent(world)?;
            crossing.be("up")?;
            let since = Instant::now();
            // A round trip until the peer has said what it has had already, and the way there.
            let limit = 3 * FAR + Duration::from_millis(50);
            let limit = match flows {
                // Where the window forbids what is new, as sometimes bbr's, also the kernel's timer, and a
                // round trip of what that sends, by which the kernel learns what is missing.
                1 if control.contains("bbr") => limit + timeout + 2 * FAR,
                1 => limit,
                // Of many, some lose again what they send first.
                _ => limit + 3 * timeout + 2 * FAR,
            };
            let (after, burst) = thread::scope(|scope| -> Result<_> {
                let burst = scope.spawn(|| -> Result<u64> {
                    pass(BEGINNING);
                    Ok(sent(world)? - sent_before)
                });
                let after = watch_after(pairs, limit)?;
                Ok((after, burst.join().ok().context("the counting panicked")??))
            })?;
            up += since.elapsed();
            all += after.bytes + after.later;
            let (first, last) = (after.first.iter().min(), after.first.iter().max());
            let round_trips = after.round_trips.iter().map(|it| share(*it, 2 * FAR));
            let round_trips: Vec<_> = round_trips.map(|it| format!("{it:.2}")).collect();
            let share = share(after.bytes, WATCHED);
            println!(
                "{family}, {flows} flows, {control:?}: {} begun, the first after {first:?} and the last after \
                 {last:?} of {timeout:?}; of the rate: {} in {WATCHED:?}, {share:.2}; {burst} bytes in \
                 {BEGINNING:?}",
                after.first.len(),
                round_trips.join(" "),
            );
            // The link is not met by all that has waited for it.
            let most = most_at_first(rate)?;
            ensure!(burst <= most, "{burst} of {most} bytes");
            ensure!(
                after.first.len() == flows && last.is_some_and(|last| *last < limit),
                "{last:?} of {limit:?}"
            );
            // One begins with a window of one segment; of many some lose again what they send first,
            // because the link is full.
            let least = if flows > 1 { 0.7 } else { 0.4 };
            ensure!(share > least, "{share} of the rate");
        }
        Ok(())
    })?;
    println!(
        "{family}, {flows} flows, {control:?}: {:.3} of the rate while the link was up, {up:?}",
        share(all, up)
    );
    crossing.stop()
}

/// A leg whose last segment was answered after seconds, as over a link that was gone without anybody's knowing,
/// delivered next to nothing by that. After the next outage, which is told, what then waits goes on at once all the same,
/// though the leg has a rate and is paced for good.
#[rstest]
fn who_hardly_delivered_goes_on_at_once(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    const BYTES: usize = 200_000;
    require!(root, virtual_time, program("nft"));
    let shape = |delay| Shape::new(delay, Rate::mbit(RATE));
    let config = World::config().replace("\"cubic\"", "\"cubic\"\nrate = \"3900kbit\"");
    let crossing = Crossing::start((shape(NEAR), shape(FAR)), &config, family, 1)?;
    let Crossing { world, pairs, .. } = &crossing;
    let pair = &pairs[0];
    pair.server.set_nonblocking(false)?;
    pair.exchange(10_000)?;
    pair.server.set_nonblocking(true)?;
    // Nobody tells of this one.
    world.server().sh(LOSE)?;
    (&pair.client).write_all(b"?")?;
    pass(OUTAGE / 2);
    world.server().sh(RESTORE)?;
    let come = |bytes: usize, limit: Duration| -> Result<Duration> {
        let begun = Instant::now();
        let mut taken = 0;
        while taken < bytes {
            taken += take(&pair.server)?;
            ensure!(
                begun.elapsed() < limit,
                "{taken} of {bytes} bytes after {limit:?}"
            );
            pass(Duration::from_millis(1));
        }
        Ok(begun.elapsed())
    };
    come(1, 2 * OUTAGE)?;
    crossing.be("gone")?;
    (&pair.client).write_all(&vec![b'.'; BYTES])?;
    pass(OUTAGE);
    crossing.be("up")?;
    // At the whole rate it takes less than half a second.
    let took = come(BYTES, Duration::from_secs(3))?;
    println!("{family}: {took:?}");
    crossing.stop()
}

/// Returns how much of the link's bytes are a connection's: the rest are headers (RFC 791 or 8200, RFC 9293
/// with RFC 7323's timestamps), of packets of 1500 bytes.
pub(super) fn payload(family: Family) -> f64 {
    let headers = match family {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    f64::from(1500 - headers - 32) / 1500.0
}
