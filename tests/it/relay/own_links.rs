//! `congestion = "find-rate"`: a host behind the leg that has a narrower link of its own, and hosts that have none.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::link::{Loss, QueueLimit, Rate, Seed, Shape};
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, Link, Pepd, Topology, TopologyBuilder, World, require};
use rstest::rstest;

use super::find_rate::{RATE, config, over_a_leg, rate};
use crate::harness::PEPD;
use crate::streams::{take, watch, while_filled};

/// What the host's own link carries, in Mbit/s, and the packets for which that has room.
const OWN: u64 = 2;
const ROOM: u64 = 100;

/// Until the leg's rate is found, and the queue before the host's own link is empty.
const SETTLE: Duration = Duration::from_secs(15);
const WATCHED: Duration = Duration::from_secs(20);

/// The client and the helper box; behind the leg a router, a server beside it, and the host `slow`:
///
/// ```text
///   client ── hb ── (the leg) ── far ── server 10.2.0.2
///                                  └─ (its own link) ── slow 10.2.1.2
/// ```
fn world(leg: Shape) -> Result<World> {
    let own = Shape {
        queue: QueueLimit::Packets(ROOM),
        ..Shape::new(Duration::from_millis(1), Rate::mbit(OWN))
    };
    let near = Shape::new(Duration::from_millis(5), Rate::mbit(100));
    let description = Topology::describe()
        .host("client")
        .router("hb")
        .router("far")
        .host("server")
        .host("slow");
    let links = [
        ("client", "hb", "10.1.0", Some(near)),
        ("hb", "far", "10.8.0", Some(leg)),
        ("server", "far", "10.2.0", None),
        ("slow", "far", "10.2.1", Some(own)),
    ];
    let routes = [
        ("client", "default", "hb"),
        ("hb", "10.2.0.0/16", "far"),
        ("far", "default", "hb"),
        ("server", "default", "far"),
        ("slow", "default", "far"),
    ];
    joined(description, &links, &routes)
}

/// Two nodes, the first three numbers of their link's addresses, of which the second one has the 1, and what it is like if it is
/// emulated.
pub(super) type Joined = (&'static str, &'static str, &'static str, Option<Shape>);

/// Joins nodes by such links, and has each of some reach a prefix by a neighbour.
pub(super) fn joined(
    mut description: TopologyBuilder,
    links: &[Joined],
    routes: &[(&str, &str, &str)],
) -> Result<World> {
    for (left, right, net, shape) in links {
        let end = |end: u8| format!("{net}.{end}/24").parse();
        let mut link = Link::between(left, right).v4(end(2)?, end(1)?);
        if let Some(shape) = shape {
            link = link.emulated(shape.clone(), Seed(1));
        }
        description = description.link(link);
    }
    for (node, to, via) in routes {
        description = description.route(node, to, via);
    }
    Ok(World::custom(description.build()?))
}

/// Reads from all for so long, and gives how much each had, and the most connections that were kept to what their own
/// path carries meanwhile.
fn watch_each(world: &World, pairs: &[Pair], time: Duration) -> Result<(Vec<u64>, u64)> {
    let begun = Instant::now();
    let mut had = vec![0; pairs.len()];
    let mut most = 0;
    while begun.elapsed() < time {
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            for (pair, had) in pairs.iter().zip(&mut had) {
                *had += take(&pair.server)? as u64;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        let narrow = rate(world)?["narrow"].as_u64().context("narrow")?;
        most = most.max(narrow);
    }
    Ok((had, most))
}

/// The host has what its link carries, hardly anything is dropped before that, and the others have the rest. Without a
/// cap most of what is sent to it is dropped there.
#[rstest]
#[case::clean(0.0, 1)]
#[case::lossy(0.1, 1)]
#[case::beside_three(0.0, 3)]
fn the_others_have_what_a_narrow_host_cannot_take(
    #[case] loss: f64,
    #[case] others: usize,
) -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let world = world(Shape {
        loss: Loss::independent(loss),
        ..Shape::new(Duration::from_millis(20), Rate::mbit(RATE))
    })?;
    let daemon = Pepd::start(PEPD, world.hb(), &config(&world))?;
    let open = |host, address: [u8; 4]| {
        let host = world.topology().node(host);
        Pair::open(world.client(), host, address.into())
    };
    let mut pairs = vec![open("slow", [10, 2, 1, 2])?];
    for _ in 0..others {
        pairs.push(open("server", [10, 2, 0, 2])?);
    }
    while_filled(&pairs, || {
        watch(&pairs, SETTLE)?;
        let own = world.topology().emulated("slow", "far");
        own.restart()?;
        let (had, narrow) = watch_each(&world, &pairs, WATCHED)?;
        let own = own.report()?.b_to_a;
        let arrive = 1.0 - loss;
        let goodput = arrive * 1448.0 / 1500.0;
        let seconds = WATCHED.as_secs_f64();
        let megabits = |bytes: u64| 8.0 * bytes as f64 / 1e6 / seconds;
        let dropped = own.dropped.bytes as f64 / own.offered.bytes as f64;
        let slow = megabits(own.sent.bytes) / OWN as f64;
        let rest = RATE as f64 - megabits(own.offered.bytes) / arrive;
        let left = RATE as f64 - OWN as f64 / arrive;
        let part = megabits(had.iter().skip(1).sum()) / (left * goodput);
        println!(
            "{loss} lost, {others} others: {dropped:.4} of {:.2} Mbit/s dropped, {slow:.3} of its link, \
             {part:.3} of the rest ({rest:.2} Mbit/s); {narrow} narrow; {}",
            megabits(own.offered.bytes),
            rate(&world)?
        );
        ensure!(dropped < 0.05, "{dropped} of what came was dropped");
        ensure!(slow > 0.8, "{slow} of what its link carries");
        ensure!(part > 0.8, "{part} of the rest");
        ensure!(narrow == 1, "{narrow} are kept to less");
        Ok(())
    })?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// What the leg loses, and the queue before it, are nobody's own.
#[rstest]
#[case::clean(0.0, 8)]
#[case::lossy(0.1, 8)]
#[case::a_third_gone(0.3, 8)]
#[case::two(0.1, 2)]
fn nobody_is_kept_to_less_where_no_link_is_narrow(
    #[case] loss: f64,
    #[case] flows: usize,
) -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let (world, daemon, pairs) = over_a_leg(20, Loss::independent(loss), Family::V4, flows)?;
    while_filled(&pairs, || {
        let (had, narrow) = watch_each(&world, &pairs, WATCHED)?;
        println!("{loss} lost, {flows} flows: {narrow} narrow, {had:?}");
        ensure!(narrow == 0, "{narrow} are kept to less");
        Ok(())
    })?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}
