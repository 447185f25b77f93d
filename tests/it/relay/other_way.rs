//! `congestion = "find-rate"`: most hosts behind the leg are reached another way at once.

use std::time::Duration;

use anyhow::{Result, ensure};
use pepd_testbed::link::{Rate, Shape};
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Pepd, Topology, World, require};

use super::find_rate::{RATE, config, rate, share_of};
use super::own_links::joined;
use crate::harness::PEPD;
use crate::streams::{watch, while_filled};

/// The connections to the site whose way changes.
const MOVED: usize = 9;

/// The client and the helper box; behind the leg a router, a server beside it, and a site of many hosts, here one, which is
/// reached directly or by a satellite:
///
/// ```text
///   client ── hb ── (the leg) ── far ── server 10.2.0.2
///                                  ├─ site 10.2.1.2
///                                  └─ (150 ms) ── detour ── site 10.2.3.2
/// ```
fn world() -> Result<World> {
    let near = Shape::new(Duration::from_millis(5), Rate::mbit(100));
    let leg = Shape::new(Duration::from_millis(20), Rate::mbit(RATE));
    let satellite = Shape::new(Duration::from_millis(150), Rate::mbit(100));
    let description = Topology::describe()
        .host("client")
        .router("hb")
        .router("far")
        .router("detour")
        .host("server")
        .host("site");
    let links = [
        ("client", "hb", "10.1.0", Some(near)),
        ("hb", "far", "10.8.0", Some(leg)),
        ("server", "far", "10.2.0", None),
        ("site", "far", "10.2.1", None),
        ("detour", "far", "10.8.1", Some(satellite)),
        ("site", "detour", "10.2.3", None),
    ];
    let routes = [
        ("client", "default", "hb"),
        ("hb", "10.2.0.0/16", "far"),
        ("far", "default", "hb"),
        ("server", "default", "far"),
        ("site", "default", "far"),
        ("detour", "default", "far"),
    ];
    joined(description, &links, &routes)
}

/// Has the site be reached by the satellite, both ways.
fn fail_over(world: &World) -> Result<()> {
    let node = |name| world.topology().node(name);
    node("site").sh("ip route replace default via 10.2.3.1 src 10.2.1.2")?;
    node("detour").sh("ip route replace 10.2.1.2/32 via 10.2.3.2")?;
    node("far").sh("ip route replace 10.2.1.2/32 via 10.8.1.2")?;
    Ok(())
}

/// What the site answers comes 300 ms later than before, and is not waited for as long: it is no loss all the same, and the leg
/// is used.
#[test]
fn answers_that_come_later_at_once_are_no_losses() -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let world = world()?;
    let daemon = Pepd::start(PEPD, world.hb(), &config(&world))?;
    let open = |host, address: [u8; 4]| {
        let host = world.topology().node(host);
        Pair::open(world.client(), host, address.into())
    };
    let mut pairs = vec![open("server", [10, 2, 0, 2])?];
    for _ in 0..MOVED {
        pairs.push(open("site", [10, 2, 1, 2])?);
    }
    while_filled(&pairs, || {
        let share = |seconds| share_of(&pairs, Duration::from_secs(seconds), 1448.0 / 1514.0);
        watch(&pairs, Duration::from_secs(5))?;
        let before = share(5)?;
        fail_over(&world)?;
        let (at_first, later) = (share(10)?, share(10)?);
        let found = rate(&world)?;
        println!("{before:.3} of the limit, {at_first:.3} at first, {later:.3} later; {found}");
        ensure!(before > 0.9, "{before} before: {found}");
        ensure!(at_first > 0.35, "{at_first} at first: {found}");
        ensure!(later > 0.8, "{later} later: {found}");
        Ok(())
    })?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}
