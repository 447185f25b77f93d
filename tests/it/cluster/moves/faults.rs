//! Whichever call of a box fails while connections move, exactly one box serves each of them.

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, require, wait_until};
use rstest::rstest;
use serde_json::Value;

use super::ground::Ground;
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
    let mut failed = 0;
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
        exchange(&pairs).with_context(what)?;
        wait_until(LIMIT, "each is at one box", || {
            let count = |at| ground.flows(at).map(|flows| flows.len());
            count(0).is_ok_and(|one| count(1).is_ok_and(|two| one + two == PAIRS))
        })?;
        let moved = ground.flows(1)?.len();
        if moved > 0 {
            ground.all_move(1, moved)?;
            exchange(&pairs).context("back again")?;
        }
    }
    // Who gives binds nothing.
    let is_made = !(which == 0 && fault.starts_with("bind"));
    ensure!(failed > 0 || !is_made, "no call has failed");
    ensure!(failed + 1 < MOST, "not all calls have failed");
    ground.no_resets()
}

fn exchange(pairs: &[Pair]) -> Result<()> {
    pairs.iter().try_for_each(|pair| pair.exchange(20_000))
}
