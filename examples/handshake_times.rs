//! How long it takes to be connected, to have the first byte, to be told that there is nobody, and
//! to reach another address where that is so.
//!
//!     cargo build --release --bin pepd --example handshake_times
//!     cargo xtask vm --virtual-time --copy ip --copy nft --copy ss --copy ping --copy curl \
//!         --copy haproxy --copy target/release/pepd -- target/release/examples/handshake_times
//!
//! Three tables for docs/handshake.md; `distance`, `failover` or `errors` after the path of pepd asks
//! for some of them. In virtual time they are the same on any machine; natively (as root) they
//! hold as far as the machine is idle.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pepd_sys::sockopt;
use pepd_testbed::link::{Endpoint, Link, Mtu, Rate, Seed, Shape};
use pepd_testbed::traffic::listen;
use pepd_testbed::{Family, Netns, Pepd, Process, Topology, World, run, wait_until};
use socket2::{Domain, Socket, Type};

const LIMIT: Duration = Duration::from_secs(60);
/// One way over the long link, and over the short one.
const LONG: Duration = Duration::from_millis(200);
const SHORT: Duration = Duration::from_millis(10);
const MBIT: u64 = 100;
/// Connections that are counted, after those that bring the cookies of Fast Open.
const COUNTED: usize = 5;
const BEFORE: usize = 3;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let pepd = arguments.next();
    let pepd = PathBuf::from(pepd.unwrap_or_else(|| "target/release/pepd".to_owned()));
    ensure!(pepd.exists(), "no {}: build it first", pepd.display());
    let wanted: Vec<String> = arguments.collect();
    type Table = fn(&PathBuf) -> Result<()>;
    let tables: [(&str, Table); 3] = [
        ("distance", distance),
        ("failover", failover),
        ("errors", errors),
    ];
    for (name, table) in tables {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            table(&pepd)?;
        }
    }
    Ok(())
}

/// What is on the box between a client and a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Routing,
    EndToEnd,
    EndToEndFast,
    Early,
    EarlyFast,
    Haproxy,
}

impl Way {
    const ALL: [(Self, &str); 6] = [
        (Self::Routing, "plain routing"),
        (Self::EndToEnd, "pepd, end-to-end"),
        (
            Self::EndToEndFast,
            "pepd, end-to-end, the client does Fast Open",
        ),
        (Self::Early, "pepd, early"),
        (Self::EarlyFast, "pepd, early, `fast_open` upstream"),
        (Self::Haproxy, "HAProxy"),
    ];

    /// Whether the client's own SYN may have data.
    fn client_is_fast(self) -> bool {
        self == Self::EndToEndFast
    }

    fn config(self) -> Option<String> {
        let fast =
            |config: String| config.replace("congestion =", "fast_open = true\ncongestion =");
        match self {
            Self::Routing | Self::Haproxy => None,
            Self::EndToEnd => Some(World::config()),
            Self::EndToEndFast => Some(fast(World::config())),
            Self::Early => Some(World::early_config()),
            Self::EarlyFast => Some(fast(World::early_config())),
        }
    }
}

/// Two emulated links, and the box between them. They go before the namespaces.
struct Path {
    _links: [Link; 2],
    world: World,
}

impl Path {
    fn build(client_leg: Duration, server_leg: Duration) -> Result<Self> {
        let topology = Topology::describe()
            .host("client")
            .router("hb")
            .host("server")
            .build()?;
        let end = |node: &str, device| Endpoint::named(topology.node(node).name(), device);
        let join = |host, delay| {
            let shape = Shape::new(delay, Rate::mbit(MBIT));
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
        let links = [join("client", client_leg)?, join("server", server_leg)?];
        for (host, v4, v6) in [
            ("client", "10.1.0", "fd00:a:"),
            ("server", "10.2.0", "fd00:b:"),
        ] {
            topology.node(host).sh(&format!(
                "ip address add {v4}.2/24 dev box; ip address add {v6}:2/64 dev box nodad; \
                 ip route add default dev box; ip -6 route add default dev box"
            ))?;
            topology.node("hb").sh(&format!(
                "ip address add {v4}.1/24 dev {host}; ip address add {v6}:1/64 dev {host} nodad"
            ))?;
            topology.node(host).sysctl("net.ipv4.tcp_fastopen", "3")?;
        }
        topology.node("hb").sysctl("net.ipv4.tcp_fastopen", "3")?;
        Ok(Self {
            _links: links,
            world: World::custom(topology),
        })
    }
}

fn distance(pepd: &PathBuf) -> Result<()> {
    println!("| on the box | client 20 ms, server 400 ms | | client 400 ms, server 20 ms | |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    println!("| | connected | first byte | connected | first byte |");
    for (way, title) in Way::ALL {
        let mut line = format!("| {title} ");
        for (client_leg, server_leg) in [(SHORT, LONG), (LONG, SHORT)] {
            let path = Path::build(client_leg, server_leg)?;
            let (connected, first) = measure(&path.world, way, pepd).context(title)?;
            let connected = match way.client_is_fast() {
                // There is no telling from connect(2), which does not wait.
                true => "–".to_owned(),
                false => milliseconds(connected),
            };
            line += &format!("| {connected} | {} ", milliseconds(first));
        }
        println!("{line}|");
    }
    println!();
    Ok(())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1e3)
}

/// The median times to be connected and to have the first byte.
fn measure(world: &World, way: Way, pepd: &PathBuf) -> Result<(Duration, Duration)> {
    let daemon = way
        .config()
        .map(|config| Pepd::start(pepd, world.hb(), &config))
        .transpose()?;
    let haproxy = (way == Way::Haproxy)
        .then(|| start_haproxy(world.hb()))
        .transpose()?;
    let address = SocketAddr::new(World::server_address(Family::V4), 8080);
    let listener = listen(world.server(), address)?;
    sockopt::set_fast_open(listener.as_fd(), 16)?;
    let mut times = std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener));
        let times = world.client().run(|| {
            (0..BEFORE + COUNTED)
                .map(|_| question(address, way.client_is_fast()))
                .collect::<Result<Vec<_>>>()
        });
        server.join().map_err(|_| anyhow::anyhow!("the server"))??;
        times
    })?;
    drop((daemon, haproxy));
    let counted = times.split_off(BEFORE);
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[COUNTED / 2]
    };
    let connected = median(counted.iter().map(|(connected, _)| *connected).collect());
    let first = median(counted.iter().map(|(_, first)| *first).collect());
    Ok((connected, first))
}

fn serve(listener: &TcpListener) -> Result<()> {
    for _ in 0..BEFORE + COUNTED {
        let (mut stream, _) = listener.accept()?;
        stream.read_exact(&mut [0; 64])?;
        stream.write_all(b"x")?;
    }
    Ok(())
}

fn question(server: SocketAddr, fast: bool) -> Result<(Duration, Duration)> {
    let started = Instant::now();
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    if fast {
        sockopt::set_fast_open_connect(socket.as_fd(), 1)?;
    }
    socket.connect(&server.into())?;
    let connected = started.elapsed();
    let mut stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.write_all(&[b'?'; 64])?;
    stream.read_exact(&mut [0])?;
    let first = started.elapsed();
    stream.read_to_end(&mut Vec::new())?;
    Ok((connected, first))
}

/// How the first address of a name is dead, and what makes it so.
const DEAD: [(&str, &str); 3] = [
    ("refuses", "reject with tcp reset"),
    ("is unreachable", "reject with icmpx type host-unreachable"),
    ("drops", "drop"),
];

/// A name with a dead address and a living one: how long curl takes for a page.
fn failover(pepd: &PathBuf) -> Result<()> {
    println!("| the first address | the second | plain routing | end-to-end | early |");
    println!("| --- | --- | ---: | ---: | ---: |");
    for (dead, rule) in DEAD {
        for first in [Family::V6, Family::V4] {
            for second in [Family::V4, Family::V6] {
                let times = [Way::Routing, Way::EndToEnd, Way::Early]
                    .into_iter()
                    .map(|way| page(pepd, way, rule, first, second))
                    .collect::<Result<Vec<_>>>()?;
                let [routed, others @ ..] = times.as_slice() else {
                    continue;
                };
                let routed = routed.context("curl got nothing over plain routing")?;
                let mut line = format!("| {first}, {dead} | {second} | {} ", milliseconds(routed));
                for time in others {
                    line += &time.map_or("| no page ".to_owned(), |time| {
                        let ratio = time.as_secs_f64() / routed.as_secs_f64();
                        format!("| {} ({ratio:.3}×) ", milliseconds(time))
                    });
                }
                println!("{line}|");
            }
        }
    }
    println!();
    Ok(())
}

/// The median time of a page, or none where curl gets none.
fn page(
    pepd: &PathBuf,
    way: Way,
    rule: &str,
    first: Family,
    second: Family,
) -> Result<Option<Duration>> {
    let path = Path::build(SHORT, LONG)?;
    let world = &path.world;
    for node in [world.server(), world.hb()] {
        node.sysctl("net.ipv4.icmp_ratelimit", "0")?;
        node.sysctl("net.ipv6.icmp.ratelimit", "0")?;
    }
    world.server().sh(&format!(
        "ip address add 10.2.0.3/24 dev box; ip address add fd00:b::3/64 dev box nodad; \
         nft add table inet dead; \
         nft add chain inet dead c '{{ type filter hook input priority 0; }}'; \
         nft add rule inet dead c ip daddr 10.2.0.3 meta l4proto tcp {rule}; \
         nft add rule inet dead c ip6 daddr fd00:b::3 meta l4proto tcp {rule}"
    ))?;
    let _daemon = way
        .config()
        .map(|config| Pepd::start(pepd, world.hb(), &config))
        .transpose()?;
    let listener = listen(world.server(), Family::V6.any(80))?;
    std::thread::spawn(move || listener.incoming().flatten().try_for_each(answer));
    let address = |family, dead| match (family, dead) {
        (Family::V4, true) => "10.2.0.3",
        (Family::V4, false) => "10.2.0.2",
        (Family::V6, true) => "[fd00:b::3]",
        (Family::V6, false) => "[fd00:b::2]",
    };
    let addresses = format!(
        "two.example:80:{},{}",
        address(first, true),
        address(second, false)
    );
    let mut times = Vec::new();
    for _ in 0..3 {
        let mut curl = world.client().command("curl");
        curl.args([
            "-qsS",
            "--connect-timeout",
            "20",
            "--max-time",
            "50",
            "-o",
            "/dev/null",
        ])
        .args(["-w", "%{time_total}", "--resolve", &addresses])
        .arg("http://two.example/");
        let said = match run(&mut curl, LIMIT)?.success() {
            Ok(said) => said,
            Err(_) if way == Way::Early => return Ok(None),
            Err(error) => return Err(error),
        };
        times.push(Duration::from_secs_f64(said.trim().parse()?));
    }
    times.sort_unstable();
    Ok(Some(times[times.len() / 2]))
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
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

const HAPROXY: &str = "global
    nbthread 1
    maxconn 1000
defaults
    mode tcp
    timeout connect 60s
    timeout client 1h
    timeout server 1h
listen handshake
    bind 0.0.0.0:7301 transparent
    source 0.0.0.0 usesrc clientip
    server destination 0.0.0.0:0
";

const HAPROXY_CAPTURE: &str = "nft -f - <<'END'
table ip handshake {
    chain capture {
        type filter hook prerouting priority mangle; policy accept;
        meta l4proto tcp socket transparent 1 meta mark set 1 accept
        ip saddr 10.1.0.0/16 tcp flags & (fin | syn | rst | ack) == syn tproxy to :7301 meta mark set 1 accept
    }
}
END
ip rule add fwmark 1 lookup 100
ip route add local default dev lo table 100
";

fn start_haproxy(hb: &Netns) -> Result<Process> {
    hb.sh(HAPROXY_CAPTURE)?;
    let file = std::env::temp_dir().join("handshake-times-haproxy.cfg");
    std::fs::write(&file, HAPROXY)?;
    let mut command = hb.command("haproxy");
    let process = Process::spawn(command.args(["-db", "-f"]).arg(&file))?;
    let listens = || {
        hb.sh("ss -Hltn sport = :7301")
            .is_ok_and(|listeners| !listeners.is_empty())
    };
    wait_until(LIMIT, "HAProxy listens", listens).with_context(|| process.log())?;
    std::fs::remove_file(&file)?;
    Ok(process)
}

/// Where nobody is: what connect(2) says, and after what time.
fn errors(pepd: &PathBuf) -> Result<()> {
    println!("| | errno | plain routing | one box | three routers | three boxes |");
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    for family in Family::BOTH {
        let columns: Vec<Vec<Answer>> =
            [(false, false), (false, true), (true, false), (true, true)]
                .into_iter()
                .map(|(chain, split)| answers(pepd, family, chain, split))
                .collect::<Result<_>>()?;
        for (row, title) in ["a closed port", "an absent host", "a host that drops"]
            .into_iter()
            .enumerate()
        {
            let cells: Vec<&Answer> = columns.iter().map(|column| &column[row]).collect();
            ensure!(
                cells.iter().all(|cell| cell.errno == cells[0].errno),
                "{family}, {title}: not the same errno: {columns:?}"
            );
            let mut line = format!("| {family}: {title} | {} ", cells[0].name());
            for pair in cells.chunks(2) {
                let ratio = pair[1].time.as_secs_f64() / pair[0].time.as_secs_f64();
                line += &format!(
                    "| {} | {} ({ratio:.3}×) ",
                    seconds(pair[0].time),
                    seconds(pair[1].time)
                );
            }
            println!("{line}|");
        }
    }
    Ok(())
}

fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{:.2} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.3} s", time.as_secs_f64()),
    }
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    errno: i32,
    time: Duration,
}

impl Answer {
    fn name(self) -> &'static str {
        match self.errno {
            110 => "ETIMEDOUT",
            111 => "ECONNREFUSED",
            113 => "EHOSTUNREACH",
            _ => "another",
        }
    }
}

fn answers(pepd: &PathBuf, family: Family, chain: bool, split: bool) -> Result<Vec<Answer>> {
    let world = if chain {
        World::chain()?
    } else {
        World::standard()?
    };
    let boxes: &[&str] = match (split, chain) {
        (false, _) => &[],
        (true, false) => &["hb"],
        (true, true) => &["hb", "middle", "far"],
    };
    let _daemons = boxes
        .iter()
        .map(|node| Pepd::start(pepd, world.topology().node(node), &World::config()))
        .collect::<Result<Vec<_>>>()?;
    // Three SYNs more, 15 s in all.
    world.client().sysctl("net.ipv4.tcp_syn_retries", "3")?;
    world.server().sh("nft add table inet silent; \
         nft add chain inet silent c '{ type filter hook input priority 0; }'; \
         nft add rule inet silent c tcp dport 7 drop")?;
    let server = World::server_address(family);
    let absent = match family {
        Family::V4 => Ipv4Addr::new(10, 2, 0, 77).into(),
        Family::V6 => "fd00:b::77".parse()?,
    };
    // Neighbours are known from here on.
    world.pair(family)?;
    let mut refused = Vec::new();
    for _ in 0..COUNTED {
        refused.push(ask(world.client(), SocketAddr::new(server, 9))?);
    }
    refused.sort_unstable_by_key(|answer| answer.time);
    Ok(vec![
        refused[COUNTED / 2],
        ask(world.client(), SocketAddr::new(absent, 80))?,
        ask(world.client(), SocketAddr::new(server, 7))?,
    ])
}

fn ask(client: &Netns, to: SocketAddr) -> Result<Answer> {
    client.run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        let started = Instant::now();
        let error = socket.connect(&to.into()).err().context("connected")?;
        let time = started.elapsed();
        let errno = error.raw_os_error().context("no errno")?;
        Ok(Answer { errno, time })
    })
}
