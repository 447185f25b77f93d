//! For how long the kernel waits for who does not answer, and who is given up and when: while a link is gone nobody is.

use std::io::{ErrorKind, Read as _};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use pepd_testbed::traffic::{Pair, Pattern, receive_exactly, send};
use pepd_testbed::{Family, Stage, Via, World, require, wait_until};
use rstest::rstest;

use super::outages::{BYTES, Side, fill, open, tell, timer, wait_for_log};
use super::timers::{DOUBLINGS, wait_for_doublings};
use crate::harness::{LIMIT, PEPD};

/// Where the kernel has such a limit, a leg is not left alone for longer; where it has none, the start
/// says so.
#[rstest]
fn a_timer_is_doubled_only_so_far(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let limited = World::config().replace("[leg.wan]", "[leg.wan]\nrto_max = \"1s\"");
    let stage = Stage::with_config(PEPD, &limited)?;
    let pair = stage.world.pair(family)?;
    pair.exchange(1000)?;
    let has_limit = pepd_sys::sockopt::rto_max(pair.client.as_fd()).is_ok();
    let log = stage.pepd.as_ref().context("the daemon")?.log();
    assert_eq!(
        log.contains("option=\"TCP_RTO_MAX_MS\""),
        !has_limit,
        "{log}"
    );
    if has_limit {
        Side::Server.lose(&stage.world)?;
        send(&pair.client, &Pattern::new(1), 0, BYTES)?;
        let mut last = None;
        // Without the limit it would wait for six seconds then, and the next time for twelve.
        wait_until(LIMIT, "five times it has had no answer", || {
            last = timer(&stage.world, &pair.client, Side::Server)
                .ok()
                .flatten();
            last.as_ref()
                .is_some_and(|timer| timer.doublings >= DOUBLINGS)
        })?;
        let last = last.context("a timer")?;
        assert!(last.left <= Duration::from_secs(1), "{last:?}");
    }
    stage.finish()
}

/// Who says nothing during an outage, and is probed in vain more often than would end a connection, is there
/// afterwards.
#[rstest]
fn who_is_probed_in_vain_meanwhile_is_not_given_up_afterwards(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let stage = open(
        Via::Pepd,
        "keepalive = { idle = \"1s\", interval = \"1s\", count = 2 }\n",
    )?;
    let pair = stage.world.pair(family)?;
    pair.exchange(10_000)?;
    tell(&stage, "wan gone")?;
    Side::Server.lose(&stage.world)?;
    let probes = || {
        let timer = timer(&stage.world, &pair.client, Side::Server).ok()??;
        (timer.kind == "keepalive").then_some(timer.doublings)
    };
    wait_until(LIMIT, "more probes than would do", || probes() > Some(3))?;
    Side::Server.restore(&stage.world)?;
    tell(&stage, "wan up")?;
    // With the next one that is sent.
    wait_until(LIMIT, "an answer", || probes() == Some(0))?;
    pair.exchange(10_000)?;
    stage.finish()
}

/// Who is not there any more when the link is is given up: the time for that counts from then on. So is who had no room when
/// it went.
#[rstest]
fn who_is_gone_for_good_is_given_up_afterwards(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values("on", "persist")] kind: &str,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let stage = open(Via::Pepd, "user_timeout = \"10s\"\n")?;
    let pair = stage.world.pair(family)?;
    pair.exchange(10_000)?;
    let timer = || timer(&stage.world, &pair.client, Side::Server);
    if kind == "persist" {
        let is_asking = || timer().is_ok_and(|timer| timer.is_some_and(|it| it.kind == kind));
        fill(&pair.client, &Pattern::new(7), is_asking)?;
        pair.client.set_nonblocking(false)?;
    }
    tell(&stage, "wan gone")?;
    Side::Server.lose(&stage.world)?;
    if kind == "on" {
        send(&pair.client, &Pattern::new(7), 0, BYTES)?;
    }
    wait_for_doublings(timer, kind)?;
    tell(&stage, "wan up")?;
    pair.client.set_read_timeout(Some(LIMIT))?;
    let end = (&pair.client).read(&mut [0]).unwrap_err();
    assert_eq!(end.kind(), ErrorKind::ConnectionReset, "{end}");
    Side::Server.restore(&stage.world)?;
    stage.finish()
}

/// What is paced is sent again some milliseconds after its timer has expired, so that the kernel sees the time since then
/// as less than nothing.
#[rstest]
fn what_is_paced_is_not_given_up(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let stage = open(Via::Pepd, "rate = \"480kbit\"\ninitial_window = 100\n")?;
    // Else each segment puts off the timer while there are more to be sent.
    let world = &stage.world;
    world
        .hb()
        .sh("echo 0 > /proc/sys/net/ipv4/tcp_early_retrans")?;
    let pair = world.pair(family)?;
    pair.exchange(10_000)?;
    tell(&stage, "wan gone")?;
    Side::Server.lose(world)?;
    let (pattern, bytes) = (Pattern::new(5), 300_000);
    thread::scope(|scope| {
        let sender = scope.spawn(|| send(&pair.client, &pattern, 0, bytes));
        let goes_on = || {
            let timer = || timer(world, &pair.client, Side::Server);
            wait_for_doublings(timer, "on")?;
            Side::Server.restore(world)?;
            tell(&stage, "wan up")?;
            receive_exactly(&pair.server, &pattern, 0, bytes)
        };
        let received = goes_on();
        if received.is_err() {
            pair.client.shutdown(Shutdown::Both)?;
        }
        received.and(sender.join().unwrap())
    })?;
    stage.finish()
}

/// Opens a connection with a user timeout, and gives the configuration in which its leg has another name.
fn with_another_name(family: Family) -> Result<(Stage, Pair, String)> {
    let timeout = "user_timeout = \"2s\"\n";
    let stage = open(Via::Pepd, timeout)?;
    let pair = stage.world.pair(family)?;
    pair.exchange(10_000)?;
    let config = World::config().replace("[leg.wan]\n", &format!("[leg.wan]\n{timeout}"));
    let config = format!("{config}{}", stage.world.admin()).replace("wan", "radio");
    Ok((stage, pair, config))
}

/// A leg that a reload renames during an outage of its link has its user timeout afterwards: the link counts as up then. So it
/// has where the process dies before it has given it back, because something waits still.
#[rstest]
fn who_is_renamed_meanwhile_is_given_up_as_ever(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(false, true)] dies: bool,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let pattern = Pattern::new(7);
    let (mut stage, pair, config) = with_another_name(family)?;
    tell(&stage, "wan gone")?;
    if dies {
        Side::Server.lose(&stage.world)?;
        send(&pair.client, &pattern, 0, BYTES)?;
        wait_for_doublings(|| timer(&stage.world, &pair.client, Side::Server), "on")?;
    }
    stage.pepd()?.reload(&config)?;
    if dies {
        stage.pepd()?.dies(Signal::SIGKILL)?;
        Side::Server.restore(&stage.world)?;
        receive_exactly(&pair.server, &pattern, 0, BYTES)?;
    }
    pair.exchange(10_000)?;
    Side::Server.lose(&stage.world)?;
    send(&pair.client, &pattern, 0, BYTES)?;
    pair.client.set_read_timeout(Some(LIMIT))?;
    // By the kernel's own patience it would take a quarter of an hour.
    let end = (&pair.client).read(&mut [0]).unwrap_err();
    assert_eq!(end.kind(), ErrorKind::ConnectionReset, "{end}");
    Side::Server.restore(&stage.world)?;
    stage.finish()
}

/// A leg that a reload has renamed goes on, too, when the link of its new name is back; and is not given up meanwhile.
#[rstest]
fn who_was_renamed_before_goes_on_too(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let pattern = Pattern::new(7);
    let (mut stage, pair, config) = with_another_name(family)?;
    stage.pepd()?.reload(&config)?;
    tell(&stage, "radio gone")?;
    Side::Server.lose(&stage.world)?;
    send(&pair.client, &pattern, 0, BYTES)?;
    wait_for_doublings(|| timer(&stage.world, &pair.client, Side::Server), "on")?;
    Side::Server.restore(&stage.world)?;
    tell(&stage, "radio up")?;
    wait_for_log(&stage, "legs are restarted leg=\"radio\"")?;
    receive_exactly(&pair.server, &pattern, 0, BYTES)?;
    stage.finish()
}
