//! Many connections move to and fro together. `PEPD_CROWD=1000x20 cargo test --test it a_crowd -- --nocapture` has so
//! many move so often, and says for how long they stood still.

use std::env;
use std::os::fd::AsFd as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use pepd_sys::sockopt::set_max_pacing_rate;
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, require};

use super::ground::Ground;
use super::kinds::{both_ways, close_half, one_way, ping_pong};
use crate::harness::many_descriptors;

/// How many there are, and how often they move, unless the environment says it.
const SIZE: &str = "100x3";

/// The variable that does.
const VARIABLE: &str = "PEPD_CROWD";

/// Those of each kind that carries something all the time.
const BUSY: usize = 8;

/// What each end of those sends at most, in bytes a second: 20 Mbit/s, so that what is measured is not how long two
/// boxes, their hosts and all links take on the same processors to carry as much as they can.
const RATE: u64 = 2_500_000;

/// Carries something all the time; whether it is over is looked at now and then.
type Carry<'a> = &'a (dyn Fn(&Pair, &AtomicBool) -> Result<()> + Sync);

fn size() -> Result<[usize; 2]> {
    let size = env::var(VARIABLE).unwrap_or_else(|_| SIZE.to_owned());
    let (count, moves) = size.split_once('x').context("such as 1000x20")?;
    let [count, moves] = [count.parse()?, moves.parse()?];
    ensure!(count > 5 * BUSY, "more than {}", 5 * BUSY);
    Ok([count, moves])
}

#[test]
fn a_crowd_moves_to_and_fro() -> Result<()> {
    require!(root, program("nft"));
    let _turn = many_descriptors()?;
    let [count, moves] = size()?;
    let ground = Ground::open(Family::V4, ["", ""])?;
    let pairs: Vec<_> = (0..count).map(|_| ground.pair()).collect::<Result<_>>()?;
    let waits = Mutex::new(Vec::new());
    let pings = |pair: &Pair, over: &AtomicBool| {
        ping_pong(pair, over, |it| {
            waits.lock().unwrap().push(it.as_secs_f64())
        })
    };
    let carry: [Carry<'_>; 4] = [
        &both_ways,
        &pings,
        &|pair, over| one_way(&pair.server, &pair.client, 21, over),
        &|pair, over| one_way(&pair.client, &pair.server, 22, over),
    ];
    let (busy, idle) = pairs.split_at(carry.len() * BUSY);
    for end in busy.iter().flat_map(|pair| [&pair.client, &pair.server]) {
        set_max_pacing_rate(end.as_fd(), RATE)?;
    }
    for (at, pair) in busy.iter().enumerate() {
        match at / BUSY {
            2 => close_half(&pair.client, &pair.server)?,
            3 => close_half(&pair.server, &pair.client)?,
            _ => {}
        }
    }
    let over = AtomicBool::new(false);
    let pauses = thread::scope(|scope| {
        let (over, carry) = (&over, &carry);
        let busy = busy.iter().enumerate();
        let busy: Vec<_> = busy
            .map(|(at, pair)| scope.spawn(move || carry[at / BUSY](pair, over)))
            .collect();
        let pauses = (0..moves).map(|turn| {
            let pauses = ground.all_move(turn % 2, count);
            let pauses = pauses.with_context(|| format!("move {turn}\n{}", ground.logs()))?;
            idle.iter().try_for_each(|pair| pair.exchange(256))?;
            Ok(pauses)
        });
        let pauses = pauses.collect::<Result<Vec<_>>>();
        over.store(true, Relaxed);
        for (at, pair) in busy.into_iter().enumerate() {
            pair.join()
                .unwrap()
                .with_context(|| format!("number {at}"))?;
        }
        pauses
    })?
    .concat();
    // One for each connection and move, and those that have waited for something else.
    let mut waits = waits.into_inner().unwrap();
    waits.sort_by(|a, b| b.total_cmp(a));
    waits.truncate(BUSY * moves);
    println!(
        "{count} connections, {moves} moves of all: they stood still for {}; the ends of {BUSY} that went to and fro waited {}",
        quantiles(pauses),
        quantiles(waits)
    );
    ground.no_resets()
}

fn quantiles(mut seconds: Vec<f64>) -> String {
    seconds.sort_by(f64::total_cmp);
    let quantile = |percent: usize| seconds[(seconds.len() - 1) * percent / 100] * 1e3;
    let [half, most, longest] = [50, 99, 100].map(quantile);
    format!("{half:.0} ms (half), {most:.0} ms (99 %), {longest:.0} ms (longest)")
}
