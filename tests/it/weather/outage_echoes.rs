//! What was received when the acknowledgements were lost is acknowledged after the outage: that is no
//! round trip, and where the kernel takes it for one, no timer waits for as long.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use pepd_testbed::traffic::{Pair, Pattern, receive_exactly, send};
use pepd_testbed::{Family, Netns, Pepd, World, require, wait_until};
use rstest::rstest;

use super::outage_times::tell;
use super::timers::{timer_of, wait_for_doublings};
use super::{LOSE, RESTORE};
use crate::harness::{LIMIT, PEPD};

/// Less than a first window, so that all of it arrives though nothing is acknowledged.
const BYTES: u64 = 10_000;

/// Loses what a host sends, and nothing that it receives.
const SAY_NOTHING: &str = "nft 'add table inet outage; add chain inet outage out { type filter hook \
                           output priority 0; policy drop; }'";

/// Returns the smoothed round-trip time of the socket between two addresses, once all that it has sent is
/// acknowledged.
fn round_trip(host: &Netns, ours: SocketAddr, theirs: SocketAddr) -> Result<Duration> {
    let mut said = String::new();
    wait_until(LIMIT, "all is acknowledged", || {
        let list = host.sh(&format!("ss -HtniO src {ours} and dst {theirs}"));
        said = list.unwrap_or_default();
        !said.is_empty() && !said.contains(" unacked:")
    })?;
    let (_, rest) = said.split_once(" rtt:").context("rtt")?;
    let milliseconds: f64 = rest.split_once('/').context("rtt")?.0.parse()?;
    Ok(Duration::from_secs_f64(milliseconds / 1e3))
}

/// Starts a daemon, and opens a connection that has carried something.
fn begin(family: Family) -> Result<(World, Pepd, Pair)> {
    let world = World::standard()?;
    let config = format!("{}\n{}", World::config(), world.admin());
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    let pair = world.pair(family)?;
    pair.exchange(BYTES)?;
    Ok((world, daemon, pair))
}

fn ends(client: &TcpStream) -> Result<(SocketAddr, SocketAddr)> {
    Ok((client.local_addr()?, client.peer_addr()?))
}

/// The box's own leg takes no round-trip time from it, which would be as long as the outage and would
/// count for an eighth at once.
#[rstest]
fn what_is_acknowledged_late_is_no_round_trip(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let (world, daemon, pair) = begin(family)?;
    let tell = |state| tell(&world.admin_socket(), state);
    world.server().sh(SAY_NOTHING)?;
    tell("gone")?;
    let begun = Instant::now();
    let pattern = Pattern::new(5);
    send(&pair.client, &pattern, 0, BYTES)?;
    let (client, server) = ends(&pair.client)?;
    wait_for_doublings(|| timer_of(world.hb(), client, server), "on")?;
    receive_exactly(&pair.server, &pattern, 0, BYTES)?;
    let outage = begun.elapsed();
    world.server().sh(RESTORE)?;
    tell("up")?;
    let rtt = round_trip(world.hb(), client, server)?;
    assert!(rtt < outage / 16, "{rtt:?} after {outage:?}");
    // Its timestamps are none of the past for the peer (RFC 7323, section 5).
    pair.exchange(BYTES)?;
    let (status, log) = daemon.stop()?;
    assert!(status.success() && !log.contains("panicked"), "{log}");
    Ok(())
}

/// What `ss` says of a socket's timeout: how long it is, in milliseconds, and how often it was doubled.
fn doubled(host: &Netns, (ours, theirs): (SocketAddr, SocketAddr)) -> Option<(u32, u32)> {
    let list = host.sh(&format!("ss -Htin src {ours} and dst {theirs}"));
    let list = list.ok()?;
    let figure = |name: &str| {
        list.split_once(name)?
            .1
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    };
    Some((figure(" rto:")?, figure(" backoff:")?))
}

/// After an outage a leg's timer waits for a second at most, which the kernel would take for the least patience;
/// some seconds later it waits as ever, and the leg is still there though nothing was acknowledged.
#[rstest]
fn a_timer_has_a_limit_for_the_first_seconds(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let (world, daemon, pair) = begin(family)?;
    let tell = |state| tell(&world.admin_socket(), state);
    let has_limits = pepd_sys::sockopt::rto_max(pair.client.as_fd()).is_ok();
    world.server().sh(LOSE)?;
    tell("gone")?;
    let pattern = Pattern::new(5);
    send(&pair.client, &pattern, 0, BYTES)?;
    let ends = ends(&pair.client)?;
    let timer = || timer_of(world.hb(), ends.0, ends.1);
    wait_for_doublings(timer, "on")?;
    // It is not, but so is said.
    tell("up")?;
    if has_limits {
        wait_until(LIMIT, "it waits no longer than a second", || {
            doubled(world.hb(), ends).is_some_and(|(rto, times)| rto == 1000 && times > 4)
        })?;
    }
    wait_for_doublings(timer, "on")?;
    world.server().sh(RESTORE)?;
    receive_exactly(&pair.server, &pattern, 0, BYTES)?;
    pair.exchange(BYTES)?;
    let (status, log) = daemon.stop()?;
    assert!(status.success() && !log.contains("panicked"), "{log}");
    Ok(())
}
