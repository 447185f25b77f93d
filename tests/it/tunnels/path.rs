//! What the path between two boxes carries, of which a box first knows only its own link.

use anyhow::Result;
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, Fleet, require, wait_until};
use rstest::rstest;

use super::running::Running;
use crate::harness::LIMIT;

/// Bytes that go each way.
const SIZE: u64 = 2_000_000;

/// Nobody is told to send less of what may be fragmented, and outer packets must not be fragmented:
/// so the box makes them small enough, once it has learned what the path carries.
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

/// The second half of the long path takes packets of 1400 bytes only, of which the boxes know
/// nothing until the router there tells them.
#[rstest]
fn a_narrow_hop_on_the_long_path(
    #[values(Family::V4, Family::V6)] outer: Family,
    #[values(Family::V4, Family::V6)] inner: Family,
) -> Result<()> {
    require!(root, tunnels, program("ping"));
    let fleet = Fleet::narrow_chain("a", "i", 1400)?;
    let running = Running::start(fleet, outer, &Family::BOTH)?;
    let fleet = &running.fleet;
    let server = fleet.address("b", inner)?;
    Pair::open(fleet.host("a"), fleet.host("b"), server)?.stream(SIZE)?;

    let overhead = match outer {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    let header = match inner {
        Family::V4 => 28,
        Family::V6 => 48,
    };
    let fits = 1400 - overhead;
    let client = fleet.host("a");
    let too_big = format!(
        "ping -M do -c 5 -i 0.3 -W 10 -s {} {server} || true",
        1400 - header
    );
    let said = client.sh(&too_big)?;
    assert!(
        said.contains(&format!("mtu = {fits}")) || said.contains(&format!("mtu={fits}")),
        "{said}"
    );
    client.sh(&format!(
        "ping -M do -c 1 -W 10 -s {} {server}",
        fits - header
    ))?;
    running.finish()
}

/// An ICMP error comes back through boxes that are not neighbours of the one that sends it, with
/// strict reverse-path filters on the way.
#[rstest]
fn a_narrow_hop_behind_the_third_of_four_boxes(
    #[values(Family::V4, Family::V6)] inner: Family,
) -> Result<()> {
    require!(root, tunnels, program("ping"));
    let boxes = ["a", "i", "j", "b"];
    let mut fleet = Fleet::describe();
    for name in boxes {
        fleet = fleet.helper(name);
    }
    let fleet = fleet
        .path("a", "i")
        .path("i", "j")
        .narrow_path("j", "b", 1400)
        .campus("a", "a")
        .campus("b", "b")
        .build()?;
    for name in boxes {
        for scope in ["all", "default"] {
            let key = format!("net.ipv4.conf.{scope}.rp_filter");
            fleet.helper(name).sysctl(&key, "1")?;
        }
    }
    // Even the loose filter drops what comes from an address to which there is no way at all.
    for (name, router) in boxes.into_iter().zip(["0.2", "1.2", "3.2", "5.2"]) {
        let route = format!("ip route add default via 198.18.{router}");
        fleet.helper(name).sh(&route)?;
    }
    let running = Running::with_boxes(fleet, &boxes, Family::V4, &Family::BOTH, |it| it)?;
    let fleet = &running.fleet;
    let server = fleet.address("b", inner)?;
    let header = if inner == Family::V4 { 28 } else { 48 };
    let said = fleet.host("a").sh(&format!(
        "ping -M do -c 5 -i 0.3 -W 10 -s {} {server} || true",
        1400 - header
    ))?;
    assert!(
        said.contains("mtu = 1380") || said.contains("mtu=1380"),
        "{said}"
    );
    Pair::open(fleet.host("a"), fleet.host("b"), server)?.stream(SIZE)?;
    running.finish()
}
