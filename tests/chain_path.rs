//! What the path between two boxes carries, of which a box first knows only its own link.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod chain_common;

use anyhow::Result;
use chain_common::{LIMIT, Running};
use pepd_testbed::{Family, Fleet, require, wait_until};
use rstest::rstest;

/// Nobody is told to send less of what may be fragmented, and outer packets may not be: so it is
/// the box that makes them small enough, once it has learned what the path carries.
#[rstest]
fn what_may_be_fragmented_gets_through(
    #[values(Family::V4, Family::V6)] outer: Family,
) -> Result<()> {
    require!(root, tunnels, program("ping"), program("nft"));
    let fleet = Fleet::narrow_chain("a", "i", 1400)?;
    let running = Running::start(fleet, outer, &Family::BOTH)?;
    let fleet = &running.fleet;
    wait_until(LIMIT, "a large packet and its answer", || {
        let ping = "ping -M dont -c 1 -W 5 -s 1452 10.2.0.2";
        fleet.host("a").sh(ping).is_ok()
    })?;
    let (mtu, sizes) = match outer {
        Family::V4 => (1380, "ipv4 : 1340, ipv6 : 1320"),
        Family::V6 => (1360, "ipv4 : 1320, ipv6 : 1300"),
    };
    for (name, peer) in [("a", "i"), ("i", "a")] {
        // And so does the MSS of what is routed through it.
        let follows = format!(
            "ip link show pepd-{peer} | grep -q 'mtu {mtu} ' &&
             nft list chain inet pepd clamped | grep 'iifname \"pepd-{peer}\"' | grep -q '{sizes}'"
        );
        wait_until(LIMIT, "the tunnel's MTU follows its path", || {
            fleet.helper(name).sh(&follows).is_ok()
        })?;
    }
    running.finish()
}
