//! How the connections of a leg share its rate: by source, and by weight.
//!
//! `fixed-rate` and `find-rate` are the same program in the kernel; with a rate that is given there is
//! nothing to wait for.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::link::{Rate, Seed, Shape};
use pepd_testbed::traffic::{Pair, accept, connect_from, listen};
use pepd_testbed::{Family, Link, Pepd, Topology, World, require};
use rstest::rstest;

use crate::harness::PEPD;
use crate::streams::{fill, take};

/// The leg's rate, just below what its link carries, and of that what is payload at best.
const LEG: &str = "congestion = \"fixed-rate\"\nrate = \"19800kbit\"\n";
const PAYLOAD: f64 = 19.8e6 / 8.0 * 1428.0 / 1500.0;

/// Which of the helper box's links is the narrow one: that which the leg with the rate leads over. Where
/// the other one were as narrow, what comes over it would be shared there, by its senders, and the leg would have
/// nothing to share until the box's buffers are full.
#[derive(Clone, Copy, PartialEq)]
enum Narrow {
    ToTheClient,
    ToTheServers,
}

/// A client with two addresses, of different sources, and behind the helper box's link an edge with two
/// hosts, one of which is far.
///
/// ```text
///   client ── (narrow: 20 Mbit/s) ── hb ── (or here) ── edge ──┬── server  10.2.0.2
///                                                              └── (+ 190 ms) ── distant 10.2.1.2
/// ```
fn world(narrow: Narrow) -> Result<World> {
    let ms = Duration::from_millis;
    let rate = |is_narrow| Rate::mbit(if is_narrow { 20 } else { 1000 });
    let [to_client, to_servers] =
        [Narrow::ToTheClient, Narrow::ToTheServers].map(|it| rate(it == narrow));
    let link = |left: &str, right: &str, v4: &str, v6: &str| -> Result<Link> {
        let v4 = |end: u8| format!("{v4}.{end}/24").parse();
        let v6 = |end: u8| format!("{v6}:{end}/64").parse();
        Ok(Link::between(left, right)
            .v4(v4(2)?, v4(1)?)
            .v6(v6(2)?, v6(1)?))
    };
    let client = link("client", "hb", "10.1.0", "fd00:a:")?;
    let shared = link("edge", "hb", "10.8.0", "fd00:8:")?;
    let server = link("server", "edge", "10.2.0", "fd00:b:")?;
    let distant = link("distant", "edge", "10.2.1", "fd00:b:0:1:")?;
    let topology = Topology::describe()
        .host("client")
        .router("hb")
        .router("edge")
        .host("server")
        .host("distant")
        .link(client.emulated(Shape::new(ms(1), to_client), Seed(1)))
        .link(shared.emulated(Shape::new(ms(4), to_servers), Seed(2)))
        .link(server)
        .link(distant.emulated(Shape::new(ms(95), Rate::mbit(1000)), Seed(3)))
        .route("client", "default", "hb")
        .route("edge", "default", "hb")
        .route("server", "default", "edge")
        .route("distant", "default", "edge")
        .route("hb", "10.2.0.0/16", "edge")
        .route("hb", "fd00:b::/48", "edge")
        .build()?;
    let world = World::custom(topology);
    let device = Topology::device("hb");
    world.client().sh(&format!(
        "ip addr add {}/32 dev {device}; ip addr add {}/128 dev {device} nodad",
        second(Family::V4),
        second(Family::V6),
    ))?;
    let device = Topology::device("client");
    world.hb().sh(&format!(
        "ip route add {}/32 dev {device}; ip -6 route add {}/128 dev {device}",
        second(Family::V4),
        second(Family::V6),
    ))?;
    Ok(world)
}

fn first(family: Family) -> IpAddr {
    World::client_address(family)
}

fn second(family: Family) -> IpAddr {
    World::sibling_address(family)
}

fn address(host: &str, family: Family) -> Result<IpAddr> {
    let net = ["server", "distant"].iter().position(|it| *it == host);
    let net = net.context("a host behind the edge")?;
    let address = match family {
        Family::V4 => format!("10.2.{net}.2"),
        Family::V6 => format!("fd00:b:0:{net}::2"),
    };
    Ok(address.parse()?)
}

fn open(world: &World, from: IpAddr, host: &str, port: u16) -> Result<Pair> {
    let family = if from.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    };
    let to = SocketAddr::new(address(host, family)?, port);
    let listener = listen(world.topology().node(host), to)?;
    let to = listener.local_addr()?;
    let client = connect_from(world.client(), SocketAddr::new(from, 0), to)?;
    let (server, _) = accept(&listener)?;
    Ok(Pair { client, server })
}

/// Fills all of them for so long after another time; gives the bytes a second that each has brought.
fn rates(pairs: &[Pair], before: Duration, time: Duration) -> Result<Vec<f64>> {
    let over = AtomicBool::new(false);
    for pair in pairs {
        pair.server.set_nonblocking(true)?;
    }
    std::thread::scope(|scope| {
        let senders: Vec<_> = pairs
            .iter()
            .map(|pair| scope.spawn(|| fill(&pair.client, &over)))
            .collect();
        let measured = (|| {
            read_all(pairs, before)?;
            read_all(pairs, time)
        })();
        over.store(true, Relaxed);
        for sender in senders {
            sender.join().ok().context("a sender panicked")??;
        }
        measured
    })
}

fn read_all(pairs: &[Pair], time: Duration) -> Result<Vec<f64>> {
    let begun = Instant::now();
    let mut bytes = vec![0; pairs.len()];
    while begun.elapsed() < time {
        for (pair, bytes) in pairs.iter().zip(&mut bytes) {
            *bytes += take(&pair.server)?;
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok(bytes.iter().map(|it| *it as f64 / seconds).collect())
}

const SECOND: Duration = Duration::from_secs(1);

/// Eight connections of one client and one of another.
#[rstest]
#[case::by_source_to_the_server(Family::V4, true, "share = \"source\"\n", 1.0)]
#[case::by_source_to_the_client(Family::V6, false, "share = \"source\"\n", 1.0)]
#[case::by_flow(Family::V6, true, "", 8.0)]
fn one_and_eight(
    #[case] family: Family,
    #[case] upload: bool,
    #[case] share: &str,
    #[case] wanted: f64,
) -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let (narrow, leg) = match upload {
        true => (Narrow::ToTheServers, "cubic"),
        false => (Narrow::ToTheClient, "reno"),
    };
    let world = world(narrow)?;
    let leg = format!("congestion = \"{leg}\"\n");
    let config = World::config().replace(&leg, &format!("{LEG}{share}"));
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    let mut pairs = vec![open(&world, second(family), "server", 0)?];
    for _ in 0..8 {
        pairs.push(open(&world, first(family), "server", 0)?);
    }
    if !upload {
        pairs = pairs.into_iter().map(Pair::swapped).collect();
    }
    let rates = rates(&pairs, 3 * SECOND, 6 * SECOND)?;
    let all: f64 = rates.iter().sum();
    let ratio = (all - rates[0]) / rates[0];
    println!(
        "{family}, {share:?}: 8 to 1 as {ratio:.3}; {:.3} of the leg",
        all / PAYLOAD
    );
    ensure!((ratio / wanted - 1.0).abs() < 0.15, "{ratio}: {rates:?}");
    ensure!(all > 0.9 * PAYLOAD, "{rates:?}");
    drop(pairs);
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// What a rule gives weight 3 has three times as much.
#[rstest]
#[case::flows(Family::V6, "")]
#[case::sources(Family::V4, "share = \"source\"\n")]
fn weights(#[case] family: Family, #[case] share: &str) -> Result<()> {
    const PORT: u16 = 4433;
    require!(root, virtual_time, program("nft"));
    let world = world(Narrow::ToTheServers)?;
    let rule = format!("[[rule]]\ndestination_port = [{PORT}]\naction = \"split\"\nweight = 3\n");
    let config = World::config().replace("congestion = \"cubic\"\n", &format!("{LEG}{share}"));
    let daemon = Pepd::start(PEPD, world.hb(), &format!("{config}{rule}"))?;
    let pairs = [
        open(&world, first(family), "server", PORT)?,
        open(&world, second(family), "server", 0)?,
    ];
    let rates = rates(&pairs, 3 * SECOND, 6 * SECOND)?;
    let ratio = rates[0] / rates[1];
    println!("{family}, {share:?}: {ratio:.3}");
    ensure!((2.6..3.4).contains(&ratio), "{ratio}: {rates:?}");
    drop(pairs);
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// Round trips of 10 and 200 ms have the same.
#[test]
fn near_and_far() -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let world = world(Narrow::ToTheServers)?;
    let lines = format!("{LEG}buffer = \"8MiB\"\n");
    let config = World::config().replace("congestion = \"cubic\"\n", &lines);
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    let pairs = [
        open(&world, first(Family::V4), "server", 0)?,
        open(&world, first(Family::V4), "distant", 0)?,
    ];
    let rates = rates(&pairs, 4 * SECOND, 8 * SECOND)?;
    let ratio = rates[0] / rates[1];
    println!("{ratio:.3}");
    ensure!((0.85..1.18).contains(&ratio), "{ratio}: {rates:?}");
    drop(pairs);
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}
