//! Whichever call of a box fails while connections move, exactly one box serves each of them.

use std::io::Read as _;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use pepd_testbed::traffic::{End, Pair, Pattern, receive};
use pepd_testbed::{Family, Pepd, ask, require, wait_until};
use rstest::rstest;
use serde_json::Value;

use super::ground::{BOXES, Ground, digit, exchange, has_elements};
use super::kinds::{both_ways, send_until};
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
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let streams: Vec<_> = pairs
            .iter()
            .map(|pair| scope.spawn(|| both_ways(pair, &over)))
            .collect();
        let emptied = (|| {
            ground.hold_back()?;
            let set = format!("{}{}", ["frozen", "coming"][which], digit(family));
            let moving = ground.gets_under_way(scope, which, &set)?;
            ground.node(BOXES[which]).sh(
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

/// Who gives, or who takes, dies in the midst, when what comes is sent on already: nothing of it is routed by the other box, to
/// ends that would take it for what the box says.
#[rstest]
fn nothing_is_routed_when_a_move_breaks_off(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(0, 1)] which: usize,
) -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(family, ["", ""])?;
    let pairs: Vec<_> = (0..PAIRS).map(|_| ground.pair()).collect::<Result<_>>()?;
    ground.hold_back()?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let streams: Vec<_> = pairs
            .iter()
            .map(|pair| scope.spawn(|| both_ways(pair, &over)))
            .collect();
        let died = (|| {
            // What comes is sent on.
            let moving = ground.gets_under_way(scope, 0, &format!("moved{}_0", digit(family)))?;
            ground.daemon(which)?.dies(Signal::SIGKILL)?;
            moving.join().unwrap()?;
            wait_until(LIMIT, "they go on", || {
                ground.flows(0).is_ok_and(|flows| flows.len() == PAIRS)
            })
            .with_context(|| ground.logs())
        })();
        over.store(true, Relaxed);
        let ended: Vec<_> = streams.into_iter().map(|it| it.join().unwrap()).collect();
        died?;
        ended.into_iter().collect::<Result<()>>()
    })?;
    ground.nothing_is_routed()?;
    ground.no_resets()
}

/// A box that is ended with a move under way does not leave the ends in the dark.
#[test]
fn who_ends_in_the_midst_says_so() -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(Family::V4, ["", ""])?;
    ground.daemons[0].take().context("a daemon")?.stop()?;
    let config = ground.config(0).replace("\"1h\"", "\"1s\"");
    ground.daemons[0] = Some(Pepd::start(PEPD, ground.node("one"), &config)?);
    let full = ground.pair()?;
    let pairs: Vec<_> = (0..PAIRS).map(|_| ground.pair()).collect::<Result<_>>()?;
    let (over, filled) = (AtomicBool::new(false), Pattern::new(14));
    thread::scope(|scope| {
        // Nobody reads it: the box has something of it all the while. It ends as the others do.
        let fill = scope.spawn(|| send_until(&full.client, &filled, &over));
        let ended = (|| {
            has_something(&ground)?;
            ground.hold_back()?;
            let moving = ground.gets_under_way(scope, 0, "frozen4")?;
            ground.daemons[0].take().context("a daemon")?.stop()?;
            moving.join().unwrap()?;
            for Pair { client, server } in &pairs {
                for mut end in [client, server] {
                    end.set_read_timeout(Some(LIMIT))?;
                    let heard = end.read(&mut [0]).map_err(|error| error.raw_os_error());
                    ensure!(heard == Err(Some(libc::ECONNRESET)), "{heard:?}");
                }
            }
            Ok(())
        })();
        over.store(true, Relaxed);
        full.client.shutdown(Shutdown::Both).ok();
        let _ = fill.join().unwrap();
        ended
    })
}

/// What the other box still has of a move that has broken off is not in the way of the next one, and does nothing to what
/// has come by it.
#[rstest]
fn what_is_left_of_a_move_is_in_nobodys_way(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(family, ["", ""])?;
    let full = ground.pair()?;
    let pairs: Vec<_> = (0..PAIRS).map(|_| ground.pair()).collect::<Result<_>>()?;
    let (over, filled) = (AtomicBool::new(false), Pattern::new(14));
    let (sent, moved) = thread::scope(|scope| {
        // Nobody reads it: the box has something of it all the while.
        let fill = scope.spawn(|| send_until(&full.client, &filled, &over));
        let moved = (|| {
            has_something(&ground)?;
            ground.hold_back()?;
            let said = ground.moves(0, &["--json"])?;
            ground.node("two").sh("nft 'delete table inet hold'")?;
            ensure!(said.status.code() == Some(70), "{said:?}");
            let said = ground.moves(0, &[])?;
            ensure!(!said.stdout.contains("errno"), "{said:?}");
            let moved = ground.flows(1)?.len();
            if moved <= PAIRS {
                ground.all_move(0, PAIRS + 1 - moved)?;
            }
            wait_until(LIMIT, "the first one is over there", || {
                ground.logs().contains("a move has broken off")
            })?;
            let (two, set) = (ground.node("two"), format!("coming{}", digit(family)));
            ensure!(!has_elements(two, &set), "{}", ground.logs());
            exchange(&pairs, "moved")
        })();
        over.store(true, Relaxed);
        let drained = receive(&full.server, &filled, 0);
        let sent = fill.join().unwrap();
        moved?;
        Ok::<_, anyhow::Error>((sent?, drained?))
    })?;
    ensure!(moved == (sent, End::Fin), "{moved:?} of {sent}");
    ground.no_resets()
}

/// Waits until the first box has something of a connection that nobody reads.
fn has_something(ground: &Ground) -> Result<()> {
    wait_until(LIMIT, "the box has something of it", || {
        let flows = ask(&ground.socket(0), "GET /v1/flows?limit=1000");
        flows.is_ok_and(|it| has_much(&it))
    })
}

/// Tells whether a connection has much on its way up, by the answer about all flows.
fn has_much(flows: &str) -> bool {
    let flows: Value = serde_json::from_str(flows).unwrap_or_default();
    let queue = |flow: &Value| {
        let parts = flow["up"]["queue"].as_object();
        let parts = parts.into_iter().flat_map(|it| it.values());
        parts.filter_map(Value::as_u64).sum::<u64>()
    };
    let flows = flows["flows"].as_array();
    flows.is_some_and(|it| it.iter().any(|flow| queue(flow) > 100_000))
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
        exchange(pairs, "after that").with_context(what)?;
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
            exchange(pairs, "back again")?;
        }
    }
    // Who gives binds nothing.
    let is_made = !(which == 0 && fault.starts_with("bind"));
    ensure!(failed > 0 || !is_made, "no call has failed");
    ensure!(failed + 1 < MOST, "not all calls have failed");
    Ok(())
}
