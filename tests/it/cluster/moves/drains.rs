//! A box that is to end hands all its connections to the other one before.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use pepd_testbed::traffic::{End, Pair, Pattern, receive};
use pepd_testbed::{Family, require, wait_until};
use serde_json::Value;

use super::ground::{Ground, exchange};
use super::kinds::send_until;
use crate::harness::LIMIT;

/// Its connections.
const PAIRS: usize = 20;

fn open(ground: &Ground) -> Result<Vec<Pair>> {
    (0..PAIRS).map(|_| ground.pair()).collect()
}

/// Waits until the other box has them all.
fn await_moved(ground: &Ground) -> Result<()> {
    wait_until(LIMIT, "all have moved", || {
        ground.flows(1).is_ok_and(|flows| flows.len() == PAIRS)
    })
}

/// Leads everything to the other box, and waits until the first has ended; gives what it has logged.
fn ends(ground: &mut Ground) -> Result<String> {
    ground.lead_to(1)?;
    let first = ground.daemons[0].take().context("a daemon")?;
    let (status, log) = first.wait()?;
    ensure!(status.success(), "{log}");
    Ok(log)
}

#[test]
fn it_ends_once_they_have_moved_and_nothing_comes_any_more() -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(Family::V4, ["", ""])?;
    let pairs = open(&ground)?;
    let nobody = ground.tells(0, &["drain", "--to", "three"])?;
    ensure!(nobody.status.code() == Some(69), "{nobody:?}");
    let why = "no [[neighbor]] is named three; there are: two";
    ensure!(nobody.stderr.contains(why), "{nobody:?}");
    ensure!(ground.tells(0, &["ready"])?.status.success(), "it goes on");

    let said = ground.tells(0, &["drain", "--to", "two"])?.success()?;
    ensure!(said.contains("have moved to two"), "{said}");
    await_moved(&ground)?;
    let flow = pepd_testbed::ask(&ground.socket(1), "GET /v1/flows?limit=1")?;
    let flow: Value = serde_json::from_str(&flow)?;
    let came = &flow["flows"][0]["came"];
    ensure!(
        came["from"] == "one" && came["pause"].as_f64() > Some(0.0),
        "{flow}"
    );
    let id = flow["flows"][0]["id"].to_string();
    let said = ground.tells(1, &["flow", &id])?.success()?;
    ensure!(said.contains("it came from one"), "{said}");
    // What comes here is sent on, and that is counted, and waited for.
    exchange(&pairs, "by way of the first box")?;
    wait_until(LIMIT, "it says what it waits for", || {
        let ready = ground.tells(0, &["ready"]);
        ready.is_ok_and(|it| it.stdout.contains("sent on to two"))
    })?;
    wait_until(LIMIT, "it is counted", || {
        let status = ground.tells(0, &["status"]);
        status.is_ok_and(|it| {
            it.stdout
                .contains("connections that have moved, and were sent on")
        })
    })?;
    exchange(&pairs, "while it waits")?;
    let log = ends(&mut ground)?;
    ensure!(log.contains("20 connections have moved to two"), "{log}");
    exchange(&pairs, "without the first box")?;
    ground.pair()?.exchange(1000)?;
    ground.no_resets()
}

/// The other box comes late, and the process dies before: the next one goes on with it.
#[test]
fn it_goes_on_with_it_whatever_dies() -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(Family::V4, ["", ""])?;
    let pairs = open(&ground)?;
    ground.daemons[1].take().context("a daemon")?.stop()?;
    let said = ground.tells(0, &["drain", "--to", "two"])?;
    ensure!(said.status.code() == Some(69), "{said:?}");
    ensure!(ground.tells(0, &["ready"])?.status.success(), "it goes on");
    // Who asks nobody before may have it begin all the same.
    pepd_testbed::ask(&ground.socket(0), "POST /v1/drain?to=two")?;
    let tells_why = |ground: &Ground, times: usize| {
        wait_until(LIMIT, "it says why none moves", || {
            ground
                .logs()
                .matches("nothing moves: two at 10.9.0.1:7310")
                .count()
                == times
        })
    };
    tells_why(&ground, 1)?;
    exchange(&pairs, "before it dies")?;
    ground.daemon(0)?.says("STOPPING=1")?;
    kill(ground.daemon(0)?.daemon()?, Signal::SIGKILL)?;
    ground.daemon(0)?.says("STOPPING=1")?;
    tells_why(&ground, 2)?;
    exchange(&pairs, "after it has died")?;
    ground.start(1, "")?;
    await_moved(&ground)?;
    exchange(&pairs, "by way of the first box")?;
    ends(&mut ground)?;
    exchange(&pairs, "without the first box")?;
    ground.no_resets()
}

/// A process that dies when all have moved leaves it to the next one to wait for the routes.
#[test]
fn it_waits_for_the_routes_whatever_dies() -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(Family::V4, ["", ""])?;
    let pairs = open(&ground)?;
    ground.tells(0, &["drain", "--to", "two"])?.success()?;
    let waits = |ground: &Ground, times: usize| {
        wait_until(LIMIT, "it waits for the routes", || {
            let words = "what still comes here for them is sent on";
            ground.logs().matches(words).count() == times
        })
    };
    waits(&ground, 1)?;
    kill(ground.daemon(0)?.daemon()?, Signal::SIGKILL)?;
    waits(&ground, 2)?;
    exchange(&pairs, "by way of the first box")?;
    ends(&mut ground)?;
    exchange(&pairs, "without the first box")?;
    ground.no_resets()
}

/// They have moved before, and the process that gave them away has died since: the next one, which has given none, waits for
/// the routes all the same when it is told to end.
#[test]
fn it_waits_for_the_routes_of_what_another_process_gave() -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(Family::V4, ["", ""])?;
    let pairs = open(&ground)?;
    ground.all_move(0, PAIRS)?;
    kill(ground.daemon(0)?.daemon()?, Signal::SIGKILL)?;
    ground.daemon(0)?.says("READY=1")?;
    exchange(&pairs, "by way of the first box")?;
    ground.tells(0, &["drain"])?.success()?;
    wait_until(LIMIT, "it waits for the routes", || {
        let words = "all connections have moved to two: what still comes here for them is sent on";
        ground.logs().contains(words)
    })?;
    exchange(&pairs, "while it waits")?;
    ends(&mut ground)?;
    exchange(&pairs, "without the first box")?;
    ground.no_resets()
}

/// What does not get over in time comes back, and meanwhile it is not for gone that it is taken.
#[test]
fn it_does_not_end_while_they_may_come_back() -> Result<()> {
    require!(root, program("nft"), program("tc"));
    let mut ground = Ground::open(Family::V4, ["", ""])?;
    let full = ground.pair()?;
    let (pattern, over) = (Pattern::new(17), AtomicBool::new(false));
    let (status, log) = thread::scope(|scope| {
        let fill = scope.spawn(|| send_until(&full.client, &pattern, &over));
        let ended = (|| {
            // Nobody reads: what waits in the box takes eight seconds. On a busy machine its buffers do not grow much.
            wait_until(LIMIT, "it is full", || {
                waiting(&ground).is_ok_and(|bytes| bytes > 1 << 20)
            })?;
            let slow = "dev=$(ip -o route get 10.9.0.1 | sed 's/.* dev \\([^ ]*\\).*/\\1/')";
            let one = ground.node("one");
            one.sh(&format!(
                "{slow}; tc qdisc add dev $dev root tbf rate 1mbit burst 20k latency 500ms"
            ))?;
            ground.tells(0, &["drain", "--to", "two"])?.success()?;
            wait_until(LIMIT, "it is not over there in time", || {
                ground
                    .logs()
                    .contains("the other box did not have it within 5 s")
            })?;
            ensure!(
                ground.tells(0, &["ready", "--live"])?.status.success(),
                "it is here"
            );
            one.sh(&format!("{slow}; tc qdisc del dev $dev root"))?;
            wait_until(LIMIT, "it moves", || {
                ground.flows(1).is_ok_and(|flows| flows.len() == 1)
            })?;
            ground.lead_to(1)?;
            ground.daemons[0].take().context("a daemon")?.wait()
        })();
        over.store(true, Relaxed);
        let got = receive(&full.server, &pattern, 0);
        let sent = fill.join().unwrap();
        let ended = ended?;
        ensure!(got? == (sent?, End::Fin), "not all of it");
        Ok::<_, anyhow::Error>(ended)
    })?;
    ensure!(status.success() && log.contains("cut=0"), "{log}");
    ground.no_resets()
}

/// The bytes that wait in the first box.
fn waiting(ground: &Ground) -> Result<u64> {
    let flows = pepd_testbed::ask(&ground.socket(0), "GET /v1/flows")?;
    let flows: Value = serde_json::from_str(&flows)?;
    let queue = &flows["flows"][0]["up"]["queue"];
    let bytes = ["unread", "pipe", "unsent"].map(|of| queue[of].as_u64());
    Ok(bytes.into_iter().flatten().sum())
}
