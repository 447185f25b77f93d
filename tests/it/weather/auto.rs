//! What splitting is worth, and `split = "auto"`: connections are split where that pays, and routed where it does not:
//! on the guest's virtual clock.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ipnet::Ipv4Net;
use nix::poll::PollFlags;
use pepd_testbed::link::{Loss, Rate, Seed, Shape};
use pepd_testbed::traffic::{await_event, connect};
use pepd_testbed::{Family, Link, Pepd, Topology, World, ask, require};
use rstest::rstest;
use serde_json::Value;

use crate::harness::{PEPD, count, pass};

/// How many clients there are, and how long each waits before the next transfer: about ten begin in a second.
const CLIENTS: usize = 30;
const WAIT: Duration = Duration::from_millis(2500);

/// Has the box decide.
const AUTO: &str = "split = \"auto\"";

/// The time that a transfer may stand still.
const PATIENCE: Duration = Duration::from_secs(300);

/// A path from the client by the box to the server, with a router on either side of the box, and what is fetched over
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// 2 ms on either side of the box, nothing is lost, and what is fetched fits the server's first window: nothing
    /// is gained.
    Near,
    /// 10 ms on the client's side, of which 5 % are lost, and 200 ms on the other.
    Far,
}

impl Path {
    const ALL: [Self; 2] = [Self::Near, Self::Far];

    /// Returns its routers: the client's and the server's.
    fn routers(self) -> [&'static str; 2] {
        match self {
            Self::Near => ["near", "by"],
            Self::Far => ["far", "off"],
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Near => 10_000,
            Self::Far => 200_000,
        }
    }

    /// Returns how its links to the box are: the client's and the server's.
    fn shapes(self) -> [Shape; 2] {
        let shape = |ms| Shape::new(Duration::from_millis(ms), Rate::mbit(100));
        match self {
            Self::Near => [shape(1), shape(1)],
            Self::Far => {
                let loss = Loss::independent(0.05);
                [Shape { loss, ..shape(5) }, shape(100)]
            }
        }
    }

    /// Has all send by this path what they say. The server's control is the one that hosts have.
    fn take(self, world: &World) -> Result<()> {
        let net = net(self);
        world.hb().sh(&format!(
            "ip route replace 10.1.0.2/32 via 10.8.{net}.2; ip route replace 10.2.0.2/32 via 10.5.{net}.2"
        ))?;
        world.client().sh(&format!(
            "ip route replace default via 10.3.{net}.1 src 10.1.0.2"
        ))?;
        world.server().sh(&format!(
            "ip route replace default via 10.4.{net}.1 src 10.2.0.2 congctl cubic"
        ))?;
        Ok(())
    }
}

fn net(path: Path) -> u8 {
    match path {
        Path::Near => 1,
        Path::Far => 2,
    }
}

/// The box, and two ways from there to the client and to the server.
fn world() -> Result<World> {
    let link = |left: &str, right: &str, net: &str| -> Result<Link> {
        let end = |end: u8| format!("{net}.{end}/24").parse::<Ipv4Net>();
        Ok(Link::between(left, right).v4(end(2)?, end(1)?))
    };
    let mut description = Topology::describe()
        .host("client")
        .router("hb")
        .host("server");
    for path in Path::ALL {
        let net = net(path);
        let sides = [("client", "10.8", "10.3"), ("server", "10.5", "10.4")];
        for ((router, shape), (host, outer, inner)) in
            path.routers().into_iter().zip(path.shapes()).zip(sides)
        {
            let outer = link(router, "hb", &format!("{outer}.{net}"))?;
            description = description
                .router(router)
                .link(outer.emulated(shape, Seed(net.into())))
                .link(link(host, router, &format!("{inner}.{net}"))?)
                .route(router, "default", "hb");
        }
    }
    let world = World::custom(description.build()?);
    world.client().sh("ip address add 10.1.0.2/32 dev lo")?;
    world.server().sh("ip address add 10.2.0.2/32 dev lo")?;
    for path in Path::ALL {
        let [left, right] = path.routers().map(|name| world.topology().node(name));
        let net = net(path);
        left.sh(&format!("ip route add 10.1.0.2/32 via 10.3.{net}.2"))?;
        right.sh(&format!("ip route add 10.2.0.2/32 via 10.4.{net}.2"))?;
    }
    for node in ["hb", "client", "server", "near", "far", "by", "off"] {
        let node = world.topology().node(node);
        node.sh("for each in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $each; done")?;
    }
    Ok(world)
}

/// Connections one after the other, by many clients, until it is over.
struct Clients<'w> {
    world: &'w World,
    server: SocketAddr,
    /// What each asks for.
    bytes: AtomicUsize,
    over: AtomicBool,
    done: AtomicU64,
    /// Which took how long: from the call of connect(2) to the end of what came, in seconds.
    times: Mutex<Vec<(SocketAddr, f64)>>,
}

impl Clients<'_> {
    fn run(&self) -> Result<()> {
        while !self.over.load(Relaxed) {
            let begun = Instant::now();
            let mut client = connect(self.world.client(), self.server)?;
            // One that is not split takes half a minute now and then.
            client.set_read_timeout(Some(PATIENCE))?;
            let bytes = self.bytes.load(Relaxed);
            client.write_all(&u32::try_from(bytes)?.to_be_bytes())?;
            let mut all = Vec::new();
            client.read_to_end(&mut all)?;
            ensure!(all.len() == bytes, "{} of {bytes} bytes", all.len());
            let took = begun.elapsed().as_secs_f64();
            let mut times = self.times.lock().ok().context("a client panicked")?;
            times.push((client.local_addr()?, took));
            drop((times, client));
            self.done.fetch_add(1, Relaxed);
            pass(WAIT);
        }
        Ok(())
    }

    /// Waits until so many connections more have ended.
    fn wait_for(&self, connections: u64) {
        let until = self.done.load(Relaxed) + connections;
        while self.done.load(Relaxed) < until && !self.over.load(Relaxed) {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

/// Gives each that connects as many bytes as it asks for, until it is over.
fn serve(listener: &TcpListener, over: &AtomicBool) -> Result<()> {
    listener.set_nonblocking(true)?;
    std::thread::scope(|scope| {
        while !over.load(Relaxed) {
            await_event(listener, PollFlags::POLLIN, Duration::from_millis(100))?;
            while let Ok((server, _)) = listener.accept() {
                // One whose client has gone has nobody to tell.
                scope.spawn(move || give(server).ok());
            }
        }
        Ok(())
    })
}

fn give(mut server: TcpStream) -> Result<()> {
    server.set_nonblocking(false)?;
    let mut bytes = [0; 4];
    server.read_exact(&mut bytes)?;
    let bytes = usize::try_from(u32::from_be_bytes(bytes))?;
    server.write_all(&vec![b'.'; bytes])?;
    Ok(())
}

/// Returns how many connections the box has split and how many routed by now.
fn counted(world: &World) -> Result<[u64; 2]> {
    let routed = count(world, "auto")? + count(world, "measured")?;
    Ok([count(world, "captured")?, routed])
}

/// Returns which share of the connections is split that begin until so many have ended.
fn split_of(clients: &Clients<'_>, connections: u64) -> Result<f64> {
    let before = counted(clients.world)?;
    clients.wait_for(connections);
    let after = counted(clients.world)?;
    let [split, routed] = [0, 1].map(|at| (after[at] - before[at]) as f64);
    ensure!(
        split + routed > 0.0,
        "no connection in {before:?} to {after:?}"
    );
    Ok(split / (split + routed))
}

/// Has clients come over a path, with this in `[capture]` and `[measure]`; gives what the work returns, and the
/// daemon's log.
fn with_clients<T>(
    path: Path,
    [capture, measure]: [&str; 2],
    work: impl FnOnce(&World, &Clients<'_>) -> Result<T>,
) -> Result<(T, String)> {
    let world = world()?;
    path.take(&world)?;
    let config = World::config()
        .replace("port = 7300\n", &format!("port = 7300\n{capture}\n"))
        .replace("\"reno\"", "\"bbr\"");
    let config = format!("{config}\n[measure]\n{measure}\n{}", world.admin());
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    let listener = world.listen(Family::V4)?;
    let clients = Clients {
        world: &world,
        server: listener.local_addr()?,
        bytes: AtomicUsize::new(path.bytes()),
        over: AtomicBool::new(false),
        done: AtomicU64::new(0),
        times: Mutex::default(),
    };
    let is_over = AtomicBool::new(false);
    let done = std::thread::scope(|scope| -> Result<T> {
        let server = scope.spawn(|| serve(&listener, &is_over));
        let all: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| clients.run()))
            .collect();
        let done = work(&world, &clients);
        clients.over.store(true, Relaxed);
        let ended: Vec<_> = all.into_iter().map(ScopedJoinHandle::join).collect();
        // Not before: the last ones still want to be served.
        is_over.store(true, Relaxed);
        server.join().ok().context("the server panicked")??;
        for one in ended {
            one.ok().context("a client panicked")??;
        }
        done
    });
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    match done {
        Ok(done) => Ok((done, log)),
        Err(error) => Err(error.context(log)),
    }
}

/// Within 200 connections it is known whether splitting pays, and 95 % go that way.
#[rstest]
#[case(Path::Near, false)]
#[case(Path::Far, true)]
fn connections_are_split_where_that_pays(#[case] path: Path, #[case] pays: bool) -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let (share, _) = with_clients(path, [AUTO, "unsplit = \"2%\""], |_, clients| {
        clients.wait_for(200);
        split_of(clients, 400)
    })?;
    println!("{path:?}: {share:.3} are split");
    ensure!(if pays { share > 0.95 } else { share < 0.05 }, "{share}");
    Ok(())
}

/// A path that becomes another, and what is fetched with it, is followed within a minute, where enough connections
/// are measured.
#[test]
fn a_path_that_becomes_another_is_followed() -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let measured = "unsplit = \"8%\"";
    with_clients(Path::Near, [AUTO, measured], |world, clients| {
        clients.wait_for(300);
        for (path, pays) in [(Path::Far, true), (Path::Near, false)] {
            path.take(world)?;
            clients.bytes.store(path.bytes(), Relaxed);
            pass(Duration::from_secs(60));
            let share = split_of(clients, 200)?;
            println!("now {path:?}: {share:.3} are split");
            ensure!(if pays { share > 0.85 } else { share < 0.15 }, "{share}");
        }
        Ok(())
    })?;
    Ok(())
}

/// By what factor the box says that whole transfers are faster which are split, it does: the clients have their own
/// clocks.
#[test]
fn what_splitting_is_worth_is_what_clients_see() -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let measured = "unsplit = \"50%\"";
    let ((times, said), log) = with_clients(Path::Far, ["", measured], |world, clients| {
        clients.wait_for(240);
        let status = || -> Result<Value> {
            let status = ask(&world.admin_socket(), "GET /v1/status")?;
            Ok(serde_json::from_str(&status)?)
        };
        let of = |status: &Value| {
            let all = status["worth"]["pairs"][0]["compared"].as_array()?;
            let found = all.iter().find(|it| it["quantity"] == "up_to_1MB")?;
            Some(found["gain"].clone())
        };
        let said = of(&status()?).context("nothing is compared")?;
        let times = clients.times.lock().ok().context("a client panicked")?;
        Ok((times.clone(), said))
    })?;
    let ends = log.lines().filter(|line| line.contains("connection ended"));
    let clients = ends.filter_map(|line| line.split_once(" client=")?.1.split(' ').next());
    let split: BTreeSet<&str> = clients.collect();
    let (split, unsplit): (Vec<_>, Vec<_>) = times
        .iter()
        .partition(|(client, _)| split.contains(client.to_string().as_str()));
    let mut factors = Vec::new();
    for (_, unsplit) in &unsplit {
        factors.extend(split.iter().map(|(_, split)| unsplit / split));
    }
    factors.sort_by(f64::total_cmp);
    let seen = *factors.get(factors.len() / 2).context("none of a kind")?;
    let [low, factor, high] = ["low", "factor", "high"].map(|key| said[key].as_f64());
    println!(
        "{} split and {} not: {seen:.2}; the box says {said}",
        split.len(),
        unsplit.len()
    );
    ensure!(low <= Some(seen) && Some(seen) <= high, "{seen}: {said}");
    let factor = factor.context("factor")?;
    ensure!((0.95..1.05).contains(&(factor / seen)), "{seen}: {said}");
    Ok(())
}
