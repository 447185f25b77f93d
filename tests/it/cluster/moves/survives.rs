//! Whatever fails while connections move, exactly one box serves each of them, and no byte is wrong.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, Pepd, require, wait_until};
use rstest::rstest;

use super::ground::{Ground, exchange};
use crate::harness::{LIMIT, PEPD, count_at};

/// Either box's process dies afterwards, and another one goes on.
#[rstest]
fn a_process_dies_after_a_move(
    #[values(0, 1)] which: usize,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(family, ["", ""])?;
    let pairs: Vec<_> = (0..5).map(|_| ground.pair()).collect::<Result<_>>()?;
    // One that has had its client's FIN before it moves.
    let half = ground.pair()?;
    half.client.shutdown(Shutdown::Write)?;
    ensure!((&half.server).read(&mut [0])? == 0, "no FIN");
    ground.all_move(0, 6)?;
    exchange(&pairs, "moved")?;
    ground.daemon(which)?.dies(Signal::SIGKILL)?;
    wait_until(LIMIT, "it goes on", || {
        ground.flows(1).is_ok_and(|flows| flows.len() == 6)
    })?;
    exchange(&pairs, "after a death")?;
    // And back: what has come from another box is known as such by the process after.
    ground.all_move(1, 6)?;
    exchange(&pairs, "moved back")?;
    (&half.server).write_all(b"the rest")?;
    half.server.shutdown(Shutdown::Write)?;
    let mut rest = String::new();
    (&half.client).read_to_string(&mut rest)?;
    ensure!(rest == "the rest", "{rest:?}");
    ground.no_resets()
}

/// What is between both boxes' daemons: it breaks after so many bytes of what the one says to the other.
struct Between {
    address: SocketAddr,
    carried: AtomicUsize,
    most: AtomicUsize,
    is_over: AtomicBool,
}

impl Between {
    /// Carries one session; both ends see it end when it breaks.
    fn carry(&self, listener: &TcpListener, to: SocketAddr) {
        while let Ok((near, _)) = listener.accept() {
            if self.is_over.load(Relaxed) {
                return;
            }
            let Ok(far) = TcpStream::connect(to) else {
                continue;
            };
            thread::scope(|scope| {
                scope.spawn(|| self.pass(&near, &far));
                self.pass(&far, &near);
            });
        }
    }

    fn pass(&self, mut from: &TcpStream, mut to: &TcpStream) {
        let mut buffer = [0; 1400];
        while let Ok(some @ 1..) = from.read(&mut buffer) {
            let before = self.carried.fetch_add(some, Relaxed);
            let left = self.most.load(Relaxed).saturating_sub(before);
            if to.write_all(&buffer[..some.min(left)]).is_err() || left < some {
                break;
            }
        }
        // Where it has broken the other direction ends as well.
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}

/// The session between the boxes breaks anywhere: after each of so many bytes.
#[test]
fn the_session_breaks_anywhere() -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(Family::V4, ["", ""])?;
    let one = ground.node("one");
    let listener = one.run(|| Ok(TcpListener::bind("127.0.0.1:7399")?))?;
    let between = Between {
        address: listener.local_addr()?,
        carried: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
    };
    // The first box reaches the other one's daemon by way of that.
    let daemon = ground.daemons[0].take().context("a daemon")?;
    daemon.stop()?;
    let config = ground.config(0).replace(
        "address = \"10.9.0.1:7310\"",
        "address = \"127.0.0.1:7399\"",
    );
    ensure!(config.contains("7399"), "{config}");
    let started = Pepd::start(PEPD, ground.node("one"), &config)?;
    ground.daemons[0] = Some(started);
    let pairs: Vec<_> = (0..3).map(|_| ground.pair()).collect::<Result<_>>()?;
    let ended = thread::scope(|scope| {
        let (between, listener) = (&between, &listener);
        let node = ground.node("one");
        scope.spawn(move || {
            node.run(|| {
                between.carry(listener, "10.9.0.1:7310".parse()?);
                Ok(())
            })
        });
        let moved = moves_until_whole(&ground, between, &pairs);
        between.is_over.store(true, Relaxed);
        ground
            .node("one")
            .run(|| Ok(TcpStream::connect(between.address)?))?;
        moved
    });
    ended.with_context(|| ground.logs())?;
    ground.no_resets()
}

/// Has the session break later each time, until it does not; each time all connections go on somewhere.
fn moves_until_whole(ground: &Ground, between: &Between, pairs: &[Pair]) -> Result<()> {
    let mut broken = 0;
    for most in (40..).step_by(97) {
        between.carried.store(0, Relaxed);
        between.most.store(most, Relaxed);
        let moved = ground.moves(0, &[])?;
        // One box serves each, and it is the one that the packets come to.
        exchange(
            pairs,
            &format!("broken after {most} bytes: {}", moved.stdout),
        )?;
        // Of no box are they more or fewer than once, as soon as it has been asked again.
        let count = |at| ground.flows(at).map_or(0, |flows| flows.len());
        let mut here = [0, 0];
        wait_until(LIMIT, "each is at one box", || {
            here = [count(0), count(1)];
            here == [3, 0] || here == [0, 3]
        })
        .with_context(|| format!("{most} bytes: {moved:?}"))?;
        if here == [3, 0] {
            broken += 1;
            continue;
        }
        if moved.status.success() && between.carried.load(Relaxed) <= most {
            ensure!(broken > 3, "it broke {broken} times only");
            return Ok(());
        }
        // It broke after the other box was told to serve: that serves, and is asked about it once more.
        between.most.store(usize::MAX, Relaxed);
        ground.all_move(1, 3)?;
    }
    Ok(())
}

/// A box dies with all that is on it while connections come from it: none is served by both.
#[test]
fn who_would_take_is_gone() -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(Family::V4, ["", ""])?;
    let pairs: Vec<_> = (0..3).map(|_| ground.pair()).collect::<Result<_>>()?;
    ground.daemons[1].take().context("a daemon")?.kill()?;
    let moved = ground.moves(0, &[])?;
    ensure!(moved.status.code() == Some(69), "{moved:?}");
    exchange(&pairs, "it cannot be reached")?;
    ground.start(1, "")?;
    wait_until(LIMIT, "it takes them", || {
        ground
            .moves(0, &["--dry-run"])
            .is_ok_and(|it| it.status.success())
    })?;
    ground.all_move(0, 3)?;
    exchange(&pairs, "moved")?;
    ground.no_resets()
}

/// What has moved is sent on, also where no campus has a prefix of its family any more, and by the process after that.
#[rstest]
fn a_family_that_goes_takes_nothing_along(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(family, ["", ""])?;
    let pairs: Vec<_> = (0..3).map(|_| ground.pair()).collect::<Result<_>>()?;
    ground.all_move(0, 3)?;
    let gone = match family {
        Family::V4 => ["\"10.1.0.0/24\", ", "\"10.2.0.0/24\", "],
        Family::V6 => [", \"fd00:1::/64\"", ", \"fd00:2::/64\""],
    };
    let kept = ground.config(0);
    let config = gone
        .iter()
        .fold(kept.clone(), |config, it| config.replace(it, ""));
    ensure!(config.len() < kept.len());
    ground.daemon(0)?.reload(&config)?;
    exchange(&pairs, "reloaded")?;
    ground.daemon(0)?.dies(Signal::SIGKILL)?;
    exchange(&pairs, "after a death")?;
    ground.daemon(0)?.reload(&kept)?;
    exchange(&pairs, "as before")?;
    ground.all_move(1, 3)?;
    exchange(&pairs, "back again")?;
    ground.no_resets()
}

/// A box that has another neighbor, too, and names it first.
#[rstest]
fn it_may_be_any_of_the_neighbors(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(family, ["", ""])?;
    ground.daemons[0].take().context("a daemon")?.stop()?;
    let config = ground.config(0);
    let (before, two) = config.split_once("[[neighbor]]").context("a neighbor")?;
    let three = two
        .replace("two", "three")
        .replace("/key\"", "/key-of-another\"")
        .replace("10.9.0.1", "10.9.0.77")
        .replace("fd00:9::1", "fd00:9::77");
    let config = format!("{before}[[neighbor]]{three}[[neighbor]]{two}");
    ground.daemons[0] = Some(Pepd::start(PEPD, ground.node("one"), &config)?);
    let pairs: Vec<_> = (0..3).map(|_| ground.pair()).collect::<Result<_>>()?;
    ground.all_move(0, 3)?;
    exchange(&pairs, "moved")?;
    ground.all_move(1, 3)?;
    exchange(&pairs, "back again")?;
    ground.no_resets()
}

/// Two boxes that send on to each other, as when one of them has died in the midst of a move: what goes to and fro ends.
#[rstest]
fn nothing_goes_to_and_fro_for_ever(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(family, ["", ""])?;
    let pair = ground.pair()?;
    ground.all_move(0, 1)?;
    let digit = if family == Family::V4 { 4 } else { 6 };
    let set = format!("inet pepd moved{digit}_0");
    let listed = ground.node("one").sh(&format!("nft list set {set}"))?;
    let elements = listed.split_once("elements = {").context(listed.clone())?.1;
    let elements: Vec<_> = elements
        .split_terminator(['}', ','])
        .filter_map(|it| it.split_once(" timeout"))
        .collect();
    ensure!(elements.len() == 2, "{listed}");
    for (element, _) in elements {
        ground
            .node("two")
            .sh(&format!("nft 'add element {set} {{ {} }}'", element.trim()))?;
    }
    let sent_on = || count_at(ground.node("one"), "sent_on");
    let before = sent_on()?;
    (&pair.client).write_all(b"to and fro")?;
    // What the client sends again goes to and fro for a moment each time, and that less and less often.
    wait_until(LIMIT, "it rests", || {
        let counted = sent_on().unwrap_or_default();
        counted > before && (0..20).all(|_| sent_on().is_ok_and(|now| now == counted))
    })
}

/// Somebody's firewall empties the tables when it starts: what was sent on is sent on again once they are back.
#[rstest]
#[case::of_whoever_has_moved_them(Family::V4, None)]
#[case::of_who_was_killed_since(Family::V4, Some(Signal::SIGKILL))]
#[case::of_who_was_killed_since(Family::V6, Some(Signal::SIGKILL))]
fn the_tables_are_emptied(#[case] family: Family, #[case] dies: Option<Signal>) -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(family, ["", ""])?;
    let pairs: Vec<_> = (0..5).map(|_| ground.pair()).collect::<Result<_>>()?;
    ground.all_move(0, 5)?;
    exchange(&pairs, "moved")?;
    if let Some(signal) = dies {
        // What the next process knows of them it has from the kernel.
        ground.daemon(0)?.dies(signal)?;
        exchange(&pairs, "and the process has died")?;
    }
    // All but the test's own.
    ground
        .node("one")
        .sh("for of in inet ip ip6; do nft delete table $of pepd; done")?;
    wait_until(LIMIT, "they are back", || {
        ground.logs().contains("it is there again")
    })?;
    exchange(&pairs, "emptied")?;
    // They may come back, and are not sent on then.
    ground.all_move(1, 5)?;
    exchange(&pairs, "back again")?;
    ground.no_resets()
}
