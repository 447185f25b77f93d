//! How long it takes to be connected, to be told that there is nobody, and to reach another address:
//! as long as without pepd. All of it is about times, hence on the guest's virtual clock. The tables
//! in docs/handshake.md are of the example of the same name, which measures more.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pepd_testbed::link::{Endpoint, Link, Mtu, Rate, Seed, Shape};
use pepd_testbed::traffic::listen;
use pepd_testbed::{Family, Netns, Pepd, Topology, World, require, run, wait_until};
use rstest::rstest;
use socket2::{Domain, SockRef, Socket, Type};

const PEPD: &str = env!("CARGO_BIN_EXE_pepd");
const LIMIT: Duration = Duration::from_secs(60);

/// One way over the client's link, and over the server's.
const DELAYS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];
/// The path's round trip.
const ROUND_TRIP: Duration = Duration::from_millis(420);

/// What a few processes take to run, which the virtual clock counts, too.
const WORK: Duration = Duration::from_millis(20);

/// Two emulated links, and the box between them. They go before the namespaces.
struct Path {
    _links: [Link; 2],
    world: World,
}

impl Path {
    fn build() -> Result<Self> {
        let topology = Topology::describe()
            .host("client")
            .router("hb")
            .host("server")
            .build()?;
        let end = |node: &str, device| Endpoint::named(topology.node(node).name(), device);
        let join = |host, delay| {
            let shape = Shape::new(delay, Rate::mbit(100));
            let ends = (end(host, "box"), end("hb", host));
            Link::connect(
                &ends.0,
                &ends.1,
                shape.clone(),
                shape,
                Seed(1),
                Mtu::ETHERNET,
            )
        };
        let links = [join("client", DELAYS[0])?, join("server", DELAYS[1])?];
        for (host, v4, v6) in [
            ("client", "10.1.0", "fd00:a:"),
            ("server", "10.2.0", "fd00:b:"),
        ] {
            // The second addresses are for what is dead.
            topology.node(host).sh(&format!(
                "ip address add {v4}.2/24 dev box; ip address add {v6}:2/64 dev box nodad; \
                 ip address add {v4}.3/24 dev box; ip address add {v6}:3/64 dev box nodad; \
                 ip route add default dev box; ip -6 route add default dev box"
            ))?;
            topology.node("hb").sh(&format!(
                "ip address add {v4}.1/24 dev {host}; ip address add {v6}:1/64 dev {host} nodad"
            ))?;
        }
        Ok(Self {
            _links: links,
            world: World::custom(topology),
        })
    }
}

fn bracketed(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// End to end a client is connected after the round trip of the whole path, and has its answer after
/// two, as without pepd.
#[rstest]
fn the_first_byte_comes_as_soon_as_without_pepd(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, virtual_time);
    for split in [false, true] {
        let path = Path::build()?;
        let world = &path.world;
        let _daemon = split
            .then(|| Pepd::start(PEPD, world.hb(), &World::config()))
            .transpose()?;
        let listener = listen(
            world.server(),
            SocketAddr::new(World::server_address(family), 0),
        )?;
        let to = listener.local_addr()?;
        // The first one loads what runs.
        let mut times = (Duration::ZERO, Duration::ZERO);
        for _ in 0..2 {
            let server = listener.try_clone()?;
            let server = std::thread::spawn(move || answer_one(&server));
            times = world.client().run(|| question(to))?;
            server.join().unwrap()?;
        }
        println!("{family}, split: {split}: {times:?}");
        for (time, round_trips) in [(times.0, 1), (times.1, 2)] {
            let least = ROUND_TRIP * round_trips;
            assert!(
                (least..least + WORK).contains(&time),
                "{family}, split: {split}: {time:?} for {round_trips} round trips"
            );
        }
    }
    Ok(())
}

fn answer_one(listener: &TcpListener) -> Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.read_exact(&mut [0; 64])?;
    stream.write_all(b"x")?;
    Ok(())
}

/// When it was connected, and when the first byte of the answer was there.
fn question(server: SocketAddr) -> Result<(Duration, Duration)> {
    let started = Instant::now();
    let mut stream = TcpStream::connect(server)?;
    let connected = started.elapsed();
    stream.set_nodelay(true)?;
    stream.write_all(&[b'?'; 64])?;
    stream.read_exact(&mut [0])?;
    Ok((connected, started.elapsed()))
}

/// More connections at once than may be pending: those for which there is no place are routed, and
/// no one waits for a second SYN.
#[rstest]
fn many_connections_at_once_need_no_second_syn(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, virtual_time);
    const CLIENTS: usize = 100;
    let path = Path::build()?;
    let world = &path.world;
    // Of which a source may have half.
    let config = format!("{}\n[limits]\npending = 40\n", World::config());
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    let address = SocketAddr::new(World::server_address(family), 4000);
    let listener = listen(world.server(), address)?;
    SockRef::from(&listener).listen(1024)?;
    world.client().run(|| {
        let sockets = (0..CLIENTS)
            .map(|_| {
                let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
                socket.set_nonblocking(true)?;
                // Under way.
                let _ = socket.connect(&address.into());
                Ok(socket)
            })
            .collect::<Result<Vec<_>>>()?;
        let started = Instant::now();
        wait_until(LIMIT, "all are connected", || {
            sockets.iter().all(|socket| socket.peer_addr().is_ok())
        })?;
        let time = started.elapsed();
        println!("{family}: {time:?}");
        // A SYN is sent again after a second.
        ensure!(time < Duration::from_millis(900), "{family}: {time:?}");
        Ok(())
    })?;
    let said = world.hb().sh("nft list counter inet pepd captured")?;
    ensure!(!said.contains("packets 0 "), "none was split: {said}");
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// How a host is dead, and what makes it so.
const DEAD: [(&str, &str); 3] = [
    ("closed", "reject with tcp reset"),
    ("unreachable", "reject with icmpx type host-unreachable"),
    ("silent", "drop"),
];

fn make_dead(server: &Netns, rule: &str) -> Result<()> {
    server.sh(&format!(
        "nft add table inet dead; \
         nft add chain inet dead c '{{ type filter hook input priority 0; }}'; \
         nft add rule inet dead c ip daddr 10.2.0.3 meta l4proto tcp {rule}; \
         nft add rule inet dead c ip6 daddr fd00:b::3 meta l4proto tcp {rule}"
    ))?;
    Ok(())
}

/// Of two addresses of a name the first is dead: curl has the page from the second in the same time.
#[rstest]
fn curl_fails_over_as_fast_as_without_pepd(
    #[values(0, 1, 2)] how: usize,
    #[values(Family::V4, Family::V6)] first: Family,
    #[values(Family::V4, Family::V6)] second: Family,
) -> Result<()> {
    require!(root, virtual_time, program("curl"));
    let (name, rule) = DEAD[how];
    let mut times = Vec::new();
    for split in [false, true] {
        let path = Path::build()?;
        let world = &path.world;
        for node in [world.server(), world.hb()] {
            node.sysctl("net.ipv4.icmp_ratelimit", "0")?;
            node.sysctl("net.ipv6.icmp.ratelimit", "0")?;
        }
        make_dead(world.server(), rule)?;
        let _daemon = split
            .then(|| Pepd::start(PEPD, world.hb(), &World::config()))
            .transpose()?;
        let listener = listen(world.server(), Family::V6.any(80))?;
        std::thread::spawn(move || listener.incoming().flatten().try_for_each(page));
        let dead: IpAddr = match first {
            Family::V4 => "10.2.0.3".parse()?,
            Family::V6 => "fd00:b::3".parse()?,
        };
        let addresses = format!(
            "two.example:80:{},{}",
            bracketed(dead),
            bracketed(World::server_address(second))
        );
        let mut time = 0.0;
        // The first one loads what runs.
        for _ in 0..2 {
            let mut curl = world.client().command("curl");
            curl.args(["-qsS", "--connect-timeout", "20", "--max-time", "50"])
                .args(["-o", "/dev/null", "-w", "%{time_total}"])
                .args(["--resolve", &addresses, "http://two.example/"]);
            time = run(&mut curl, LIMIT)?.success()?.trim().parse()?;
        }
        times.push(time);
    }
    let ratio: f64 = times[1] / times[0];
    println!("{first}, {name}, then {second}: {times:?} s, ratio {ratio:.3}");
    assert!(ratio < 1.1, "{first}, {name}, then {second}: {times:?} s");
    Ok(())
}

fn page(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        // A client that has another connection closes this one.
        if !matches!(stream.read(&mut byte), Ok(1..)) {
            return Ok(());
        }
        request.push(byte[0]);
    }
    let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\ntext");
    Ok(())
}

/// `connect` to a closed port, an absent host and a host that drops: the same errno as without pepd,
/// within 10 % of the time, through one box and through three.
#[rstest]
fn a_client_is_told_as_soon_as_without_pepd(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(false, true)] chain: bool,
) -> Result<()> {
    require!(root, virtual_time);
    let routed = answers(family, chain, false)?;
    let split = answers(family, chain, true)?;
    println!("{family}, chain: {chain}: {routed:?}, {split:?}");
    let expected = [111, 113, 110];
    for ((routed, split), errno) in routed.iter().zip(&split).zip(expected) {
        assert_eq!((routed.0, split.0), (errno, errno));
        // A path without delay refuses in no time; what the boxes add is bounded apart from that.
        let most = routed.1.mul_f64(1.1) + Duration::from_millis(2);
        assert!(
            split.1 < most,
            "{family}, chain: {chain}: {routed:?}, {split:?}"
        );
        assert!(routed.1 < split.1.mul_f64(1.1), "{routed:?}, {split:?}");
    }
    Ok(())
}

/// Errno and time of a closed port, of an absent host, and of one that drops.
fn answers(family: Family, chain: bool, split: bool) -> Result<Vec<(i32, Duration)>> {
    let world = match chain {
        true => World::chain()?,
        false => World::standard()?,
    };
    let boxes: &[&str] = match (split, chain) {
        (false, _) => &[],
        (true, false) => &["hb"],
        (true, true) => &["hb", "middle", "far"],
    };
    let _daemons = boxes
        .iter()
        .map(|node| Pepd::start(PEPD, world.topology().node(node), &World::config()))
        .collect::<Result<Vec<_>>>()?;
    // Three SYNs more, 15 s in all.
    world.client().sysctl("net.ipv4.tcp_syn_retries", "3")?;
    world.server().sh("nft add table inet silent; \
         nft add chain inet silent c '{ type filter hook input priority 0; }'; \
         nft add rule inet silent c tcp dport 7 drop")?;
    let server = World::server_address(family);
    let absent: IpAddr = match family {
        Family::V4 => "10.2.0.77".parse()?,
        Family::V6 => "fd00:b::77".parse()?,
    };
    // Neighbours are known from here on, and what runs is loaded.
    world.pair(family)?;
    let closed = SocketAddr::new(server, 9);
    ask(world.client(), closed)?;
    [
        closed,
        SocketAddr::new(absent, 80),
        SocketAddr::new(server, 7),
    ]
    .into_iter()
    .map(|to| ask(world.client(), to))
    .collect()
}

fn ask(client: &Netns, to: SocketAddr) -> Result<(i32, Duration)> {
    client.run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        let started = Instant::now();
        let error = socket.connect(&to.into()).err().context("connected")?;
        let time = started.elapsed();
        Ok((error.raw_os_error().context("no errno")?, time))
    })
}
