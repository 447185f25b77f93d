//! SYN cookies: a listener whose queue is full answers with them and remembers nothing. Whoever
//! brings one back is connected all the same.

use std::net::SocketAddr;

use anyhow::Result;
use pepd_testbed::forge::{Flood, stranger};
use pepd_testbed::traffic::{Pair, listen};
use pepd_testbed::{Family, Netns, Stage, Via, World, require, splits, wait_until};
use rstest::rstest;

use super::held_syn::LIMIT;
use crate::harness::PEPD;

/// A kernel that answers every SYN with a cookie.
#[rstest]
fn whoever_is_answered_with_a_cookie_is_connected(
    #[values(Via::Early, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nstat"));
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    world.hb().sysctl("net/ipv4/tcp_syncookies", "2")?;
    let listener = world.listen(family)?;
    for number in 0..20 {
        let (pair, split) = splits(world.hb(), || Pair::through(&listener, world.client()))?;
        assert!(split, "connection {number} is not split");
        pair.exchange(10_000)?;
    }
    assert!(counted(world.hb(), "TcpExtSyncookiesRecv")? >= 20);
    assert_eq!(counted(world.hb(), "TcpExtSyncookiesFailed")?, 0);
    stage.finish()
}

/// The queues are full of forged SYNs to one server, and others connect to another.
#[rstest]
fn a_flood_of_forged_syns_resets_nobody_else(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nstat"));
    let mut stage = Stage::open(Via::Routing, PEPD)?;
    // The listeners' queues are full at once.
    stage.world.hb().sysctl("net/core/somaxconn", "64")?;
    let pepd = pepd_testbed::Pepd::start(PEPD, stage.world.hb(), &World::early_config())?;
    stage.pepd = Some(pepd);
    let world = &stage.world;
    // The strangers' networks: a listener drops SYNs that it has no route to answer by.
    let route = match family {
        Family::V4 => "ip route add 10.1.0.0/16 via 10.1.0.2",
        Family::V6 => "ip route add fd00:a:0:9::/64 via fd00:a::2",
    };
    world.hb().sh(route)?;
    world.pair(family)?;
    let victim = SocketAddr::new(World::server_address(family), 7);
    let _listener = listen(world.server(), victim)?;
    world.server().sh("nft add table inet seen; \
         nft add chain inet seen c '{ type filter hook input priority 0; }'; \
         nft add rule inet seen c 'tcp dport 7 tcp flags & (syn | ack) == syn counter'")?;
    let flood = Flood::of_syns(
        world.client(),
        5_000,
        move |number| stranger(number, victim.ip()),
        victim,
    )?;
    wait_until(LIMIT, "the queues are full", || {
        counted(world.hb(), "TcpExtSyncookiesSent").is_ok_and(|sent| sent > 0)
    })?;
    let listener = world.listen(family)?;
    for _ in 0..100 {
        Pair::through(&listener, world.sibling())?.exchange(1000)?;
    }
    let sent = flood.stop()?;
    let rule = world.server().sh("nft list chain inet seen c")?;
    let mut words = rule.split_whitespace();
    let seen = words.find(|word| *word == "packets").and(words.next());
    let seen: u64 = seen.unwrap_or("0").parse()?;
    println!("{family}: {sent} forged SYNs, the server saw {seen}");
    // As with plain routing, at most.
    assert!(seen <= sent, "{seen} of {sent}");
    let redeemed = counted(world.hb(), "TcpExtSyncookiesRecv")?;
    assert!(redeemed > 0, "nobody was answered with a cookie");
    assert_eq!(counted(world.hb(), "TcpExtSyncookiesFailed")?, 0);
    wait_until(LIMIT, "new connections are split again", || {
        world.probe(family).is_ok_and(|(_, split)| split)
    })?;
    stage.finish()
}

/// Reads one of the kernel's counters in a namespace.
fn counted(netns: &Netns, name: &str) -> Result<u64> {
    let text = netns.sh(&format!("nstat -az {name}"))?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next());
    Ok(value.unwrap_or("0").parse()?)
}
