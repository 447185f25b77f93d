//! Connections that are routed, unsplit, through tunnels, where nobody hears of path-MTU
//! discovery.

use std::io::{ErrorKind, Read as _};

use anyhow::{Context, Result};
use pepd_testbed::traffic::{Pair, Pattern, send};
use pepd_testbed::{Family, Fleet, Netns, require, wait_until};
use rstest::rstest;

use super::running::{BOXES, Running};
use crate::harness::LIMIT;

/// Drops and counts what says that a packet was too big.
const FILTER: &str = "nft -f - <<END
table inet filter {
    counter eaten { }
    chain eat {
        icmp type destination-unreachable icmp code frag-needed counter name eaten drop
        icmpv6 type packet-too-big counter name eaten drop
    }
    chain input { type filter hook input priority -400; jump eat; }
    chain forward { type filter hook forward priority -400; jump eat; }
}
END";

/// Everywhere: hosts, boxes, and routers between them.
fn eat_errors(fleet: &Fleet) -> Result<()> {
    for node in nodes(fleet) {
        node.sh(FILTER)?;
    }
    Ok(())
}

fn nodes(fleet: &Fleet) -> Vec<&Netns> {
    let hosts = ["a", "b"].map(|name| fleet.host(name));
    let boxes = BOXES.map(|name| fleet.helper(name));
    let paths = [0, 1].map(|index| fleet.path(index));
    hosts.into_iter().chain(boxes).chain(paths).collect()
}

/// Returns how many errors a node has dropped so far.
fn eaten(node: &Netns) -> Result<u64> {
    let listing = node.sh("nft list counter inet filter eaten")?;
    let count = listing.split("packets ").nth(1).context("no count")?;
    Ok(count.split(' ').next().unwrap_or_default().parse()?)
}

fn eaten_anywhere(fleet: &Fleet) -> Result<u64> {
    nodes(fleet).into_iter().map(eaten).sum()
}

fn open(fleet: &Fleet, inner: Family) -> Result<Pair> {
    let server = fleet.address("b", inner)?;
    Pair::open(fleet.host("a"), fleet.host("b"), server)
}

/// First the one way, then the other.
fn passes_both_ways(fleet: &Fleet, inner: Family) -> Result<()> {
    const SIZE: u64 = 200_000;
    let before = eaten_anywhere(fleet)?;
    open(fleet, inner)?.stream(SIZE)?;
    assert_eq!(eaten_anywhere(fleet)?, before);
    Ok(())
}

/// Each way by itself: the first segment never comes.
fn is_a_black_hole_both_ways(fleet: &Fleet, inner: Family) -> Result<()> {
    for (sender, swapped) in [("a", false), ("b", true)] {
        let pair = open(fleet, inner)?;
        let pair = if swapped { pair.swapped() } else { pair };
        let sender = fleet.host(sender);
        let before = eaten(sender)?;
        send(&pair.client, &Pattern::new(1), 0, 10_000)?;
        // The second is about a segment that was sent again.
        wait_until(LIMIT, "ICMP errors that nobody hears of", || {
            eaten(sender).is_ok_and(|now| now >= before + 2)
        })?;
        pair.server.set_nonblocking(true)?;
        let error = (&pair.server).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "swapped: {swapped}");
    }
    Ok(())
}

fn bypassing(config: String) -> String {
    format!("{config}[[rule]]\naction = \"bypass\"\n")
}

#[rstest]
fn no_black_hole(
    #[values(Family::V4, Family::V6)] outer: Family,
    #[values(Family::V4, Family::V6)] inner: Family,
) -> Result<()> {
    require!(root, tunnels, program("nft"));
    let mut running = Running::edited(Fleet::chain()?, outer, &Family::BOTH, bypassing)?;
    eat_errors(&running.fleet)?;
    let split = running.split()?;
    passes_both_ways(&running.fleet, inner)?;
    assert_eq!(running.split_since(&split)?, [false; 3]);

    for name in BOXES {
        running.take(name).kill()?;
    }
    let fleet = &running.fleet;
    passes_both_ways(fleet, inner)?;
    for name in BOXES {
        fleet.helper(name).sh("nft flush chain inet pepd clamp")?;
    }
    is_a_black_hole_both_ways(fleet, inner)
}

/// Returns the size that a host's TCP takes for the largest segment of its one connection, less its
/// options.
fn mss(host: &Netns) -> Result<String> {
    host.sh("ss -Htin state established | grep -o ' mss:[0-9]*'")
        .map(|it| it.trim().to_owned())
}

/// Box a has an uplink that carries less, of which the boxes at the other ends know nothing; and
/// behind them is all the world, to which box a's own packets do not go through the tunnel.
#[rstest]
fn a_tunnel_that_is_narrower_at_one_end(
    #[values(Family::V4, Family::V6)] inner: Family,
) -> Result<()> {
    require!(root, tunnels, program("nft"), program("ss"));
    let fleet = Fleet::narrow_chain("i", "a", 1400)?;
    let edit = |config: String| {
        let world = config
            .replace("10.2.0.0/16", "0.0.0.0/0")
            .replace("fd00:2::/48", "::/0");
        bypassing(world)
    };
    let running = Running::edited(fleet, Family::V4, &Family::BOTH, edit)?;
    let fleet = &running.fleet;
    eat_errors(fleet)?;
    passes_both_ways(fleet, inner)?;

    // 1400, less 20 for the tunnel, less the headers, less 12 for timestamps.
    let pair = open(fleet, inner)?;
    let expected = match inner {
        Family::V4 => "mss:1328",
        Family::V6 => "mss:1308",
    };
    assert_eq!(mss(fleet.host("a"))?, expected);
    assert_eq!(mss(fleet.host("b"))?, expected);
    drop(pair);
    running.finish()
}

#[rstest]
fn an_mss_is_never_raised(#[values(Family::V4, Family::V6)] inner: Family) -> Result<()> {
    require!(root, tunnels, program("ss"));
    let running = Running::edited(Fleet::chain()?, Family::V4, &Family::BOTH, bypassing)?;
    let fleet = &running.fleet;
    let server = fleet.address("b", inner)?;
    let route = match inner {
        Family::V4 => "ip route add 10.2.0.2/32 via 10.1.0.1 advmss 1000",
        Family::V6 => "ip -6 route add fd00:2::2/128 via fd00:1::1 advmss 1000",
    };
    fleet.host("a").sh(route)?;
    let pair = Pair::open(fleet.host("a"), fleet.host("b"), server)?;
    pair.exchange(10_000)?;
    assert_eq!(mss(fleet.host("b"))?, "mss:988");
    let lowered = match inner {
        Family::V4 => "mss:1428",
        Family::V6 => "mss:1408",
    };
    assert_eq!(mss(fleet.host("a"))?, lowered);
    drop(pair);
    running.finish()
}
