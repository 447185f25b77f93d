//! Whichever call of a box fails while connections move, exactly one box serves each of them.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, Netns, require, run, wait_until};
use rstest::rstest;
use serde_json::Value;

use super::ground::{BOXES, Ground};
use super::kinds::both_ways;
use super::translated;
use crate::faults::Faults;
use crate::harness::{LIMIT, PEPD};

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

/// Somebody's firewall empties the first box's tables while its connections are on their way to the other: what comes
/// is no longer kept from their sockets, which are to acknowledge nothing of it all the same.
#[rstest]
fn the_tables_are_emptied_in_the_midst(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(0, 1)] which: usize,
) -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(family, ["", ""])?;
    let pairs: Vec<_> = (0..PAIRS).map(|_| ground.pair()).collect::<Result<_>>()?;
    // What is routed meanwhile would fit the other leg: hosts that share a kernel share the secret of its sequence numbers.
    for name in BOXES {
        ground.node(name).sh("nft 'table inet keep {
            chain pass { type filter hook forward priority 0; meta l4proto tcp drop; }
        }'")?;
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let streams: Vec<_> = pairs
            .iter()
            .map(|pair| scope.spawn(|| both_ways(pair, &over)))
            .collect();
        let emptied = (|| {
            // What they have is more than fits a small packet, and does not get over.
            ground.node("two").sh("nft 'table inet hold {
                chain in {
                    type filter hook input priority 0
                    tcp dport 7310 meta length > 600 drop
                }
            }'")?;
            let mut order = order(&ground);
            let moving = scope.spawn(move || run(&mut order, LIMIT));
            let node = ground.node(BOXES[which]);
            let set = ["frozen", "coming"][which];
            wait_until(LIMIT, "they are on their way", || {
                has_elements(node, &format!("{set}{}", digit(family)))
            })?;
            node.sh(
                "echo 'delete table inet pepd; delete table ip pepd; delete table ip6 pepd' | nft -f -",
            )?;
            wait_until(LIMIT, "they are back", || {
                ground.logs().contains("it is there again")
            })?;
            ground.node("two").sh("nft 'delete table inet hold'")?;
            moving.join().unwrap().map(drop)
        })();
        over.store(true, Relaxed);
        let ended: Vec<_> = streams.into_iter().map(|it| it.join().unwrap()).collect();
        emptied?;
        ended.into_iter().collect::<Result<()>>()
    })?;
    ground.no_resets()
}

/// Who gives dies in the midst, when what comes is sent on already: nothing of it is routed by the other box, to ends that would
/// take it for what the box says.
#[rstest]
fn nothing_is_routed_when_a_move_breaks_off(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(family, ["", ""])?;
    let pairs: Vec<_> = (0..PAIRS).map(|_| ground.pair()).collect::<Result<_>>()?;
    // What they have is more than fits a small packet, and does not get over.
    ground.node("two").sh("nft 'table inet hold {
        counter routed { }
        chain in {
            type filter hook input priority 0
            tcp dport 7310 meta length > 600 drop
        }
        chain pass {
            type filter hook forward priority 0
            meta l4proto tcp counter name routed
        }
    }'")?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let streams: Vec<_> = pairs
            .iter()
            .map(|pair| scope.spawn(|| both_ways(pair, &over)))
            .collect();
        let died = (|| {
            let mut order = order(&ground);
            let moving = scope.spawn(move || run(&mut order, LIMIT));
            wait_until(LIMIT, "what comes is sent on", || {
                let set = format!("moved{}_0", digit(family));
                has_elements(ground.node("one"), &set)
            })?;
            ground.daemon(0)?.dies(Signal::SIGKILL)?;
            moving.join().unwrap()?;
            wait_until(LIMIT, "they go on", || {
                ground.flows(0).is_ok_and(|flows| flows.len() == PAIRS)
            })
        })();
        over.store(true, Relaxed);
        let ended: Vec<_> = streams.into_iter().map(|it| it.join().unwrap()).collect();
        died?;
        ended.into_iter().collect::<Result<()>>()
    })?;
    let routed = ground.node("two").sh("nft list counter inet hold routed")?;
    ensure!(routed.contains("packets 0 "), "{routed}\n{}", ground.logs());
    ground.no_resets()
}

/// Has all move to the second box.
fn order(ground: &Ground) -> Command {
    let mut order = Command::new(PEPD);
    order.args(["move", "--to", "two", "--socket"]);
    order.arg(ground.socket(0));
    order
}

/// The digit in the names of a family's sets.
fn digit(family: Family) -> u8 {
    match family {
        Family::V4 => 4,
        Family::V6 => 6,
    }
}

fn has_elements(node: &Netns, set: &str) -> bool {
    let those = node.sh(&format!("nft list set inet pepd {set}"));
    those.is_ok_and(|it| it.contains("elements"))
}

fn each_call_fails(ground: &mut Ground, pairs: &[Pair], which: usize, fault: &str) -> Result<()> {
    let (mut failed, mut has_moved) = (0, false);
    for number in 1..MOST {
        // A listener that could not be opened is tried again in a while.
        wait_until(LIMIT, "the other box answers", || {
            let asked = ground.moves(0, &["--dry-run"]);
            asked.is_ok_and(|it| it.status.code() != Some(69))
        })?;
        let daemon = ground.daemon(which)?.daemon()?;
        let faults = Faults::inject(daemon, "mover", &[&format!("{fault}:when={number}")])?;
        let said = ground.moves(0, &["--json"])?;
        if !faults.detach()? {
            // Nor has anything else been in the way.
            ensure!(
                said.status.success(),
                "call {number}: {said:?}\n{}",
                ground.logs()
            );
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
