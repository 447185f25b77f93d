//! Whichever call of a box fails while connections move, exactly one box serves each of them.

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, require, wait_until};
use rstest::rstest;
use serde_json::Value;

use super::ground::Ground;
use super::translated;
use crate::faults::Faults;
use crate::harness::LIMIT;

/// Its connections.
const PAIRS: usize = 3;

/// More calls of one kind than a move makes.
const MOST: usize = 60;

/// The first box gives, the other one takes; one call of either fails, each in its turn. Once no more fails than before,
/// all of them have.
#[rstest]
fn whichever_call_fails(
    #[values(0, 1)] which: usize,
    #[values(
        "sendto:error=ENOBUFS",
        "socket:error=EMFILE",
        "bind:error=EADDRNOTAVAIL",
        "connect:error=ENETUNREACH"
    )]
    fault: &str,
) -> Result<()> {
    require!(root, program("nft"), program("strace"));
    let mut ground = Ground::open(Family::V4, ["", ""])?;
    let pairs: Vec<_> = (0..PAIRS).map(|_| ground.pair()).collect::<Result<_>>()?;
    each_call_fails(&mut ground, &pairs, which, fault)?;
    ground.no_resets()
}

/// The same where connection tracking is spoken to, and nothing is left there of what has not come.
#[rstest]
fn whichever_call_fails_about_what_is_translated(#[values(0, 1)] which: usize) -> Result<()> {
    require!(root, program("nft"), program("strace"));
    let mut ground = Ground::open(Family::V4, ["", ""])?;
    translated::share(&ground, Family::V4, translated::PORTS)?;
    let open = |_| translated::open_shared(&ground, Family::V4);
    let pairs: Vec<_> = (0..PAIRS).map(open).collect::<Result<_>>()?;
    each_call_fails(&mut ground, &pairs, which, "sendto:error=ENOBUFS")?;
    ground.no_resets()
}

fn each_call_fails(ground: &mut Ground, pairs: &[Pair], which: usize, fault: &str) -> Result<()> {
    let (mut failed, mut has_moved) = (0, false);
    for number in 1..MOST {
        let daemon = ground.daemon(which)?.daemon()?;
        let faults = Faults::inject(daemon, "mover", &[&format!("{fault}:when={number}")])?;
        let said = ground.moves(0, &["--json"])?;
        if !faults.detach()? {
            break;
        }
        failed = number;
        let what = || format!("call {number}: {said:?}\n{}", ground.logs());
        // Where nothing moves there is no report.
        if let Ok(report) = serde_json::from_str::<Value>(&said.stdout) {
            let lost = report["lost"].as_array().with_context(what)?;
            ensure!(lost.is_empty(), "{}", what());
        }
        exchange(pairs).with_context(what)?;
        wait_until(LIMIT, "each is at one box", || {
            let count = |at| ground.flows(at).map(|flows| flows.len());
            count(0).is_ok_and(|one| count(1).is_ok_and(|two| one + two == PAIRS))
        })?;
        let moved = ground.flows(1)?.len();
        has_moved |= moved > 0;
        // Who takes has been in order all the while.
        if which == 0 && !has_moved {
            for pair in pairs {
                let known = translated::tracked(ground, 1, pair)?;
                ensure!(known.is_empty(), "{known:?} {}", what());
            }
        }
        if moved > 0 {
            ground.all_move(1, moved)?;
            exchange(pairs).context("back again")?;
        }
    }
    // Who gives binds nothing.
    let is_made = !(which == 0 && fault.starts_with("bind"));
    ensure!(failed > 0 || !is_made, "no call has failed");
    ensure!(failed + 1 < MOST, "not all calls have failed");
    Ok(())
}

fn exchange(pairs: &[Pair]) -> Result<()> {
    pairs.iter().try_for_each(|pair| pair.exchange(20_000))
}
