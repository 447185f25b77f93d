//! What the example and the test of the same name measure, and on what path.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pepd_sys::sockopt;
use pepd_testbed::link::{Rate, Shape};
use pepd_testbed::traffic::listen;
use pepd_testbed::{Family, Netns, Pepd, World};
use socket2::{Domain, Socket, Type};

pub const LIMIT: Duration = Duration::from_secs(60);
/// One way over the long link, and over the short one.
pub const LONG: Duration = Duration::from_millis(200);
pub const SHORT: Duration = Duration::from_millis(10);
/// The number of times that what is counted is asked.
pub const COUNTED: usize = 5;

/// Returns a link on either side of the box, so long one way.
pub fn path(client_leg: Duration, server_leg: Duration) -> Result<World> {
    let shape = |delay| Shape::new(delay, Rate::mbit(100));
    World::emulated(shape(client_leg), shape(server_leg))
}

/// Asks, and says when it was connected (with Fast Open, if it is `fast`, connect(2) does not
/// wait), and when the first byte of the answer was there.
pub fn question(server: SocketAddr, fast: bool) -> Result<(Duration, Duration)> {
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

/// Answers so many questions.
pub fn answer(listener: &TcpListener, questions: usize) -> Result<()> {
    for _ in 0..questions {
        let (mut stream, _) = listener.accept()?;
        stream.read_exact(&mut [0; 64])?;
        stream.write_all(b"x")?;
    }
    Ok(())
}

/// The ways in which the first address of a name is dead, and what makes it so.
pub const DEAD: [(&str, &str); 3] = [
    ("refuses", "reject with tcp reset"),
    ("is unreachable", "reject with icmpx type host-unreachable"),
    ("drops", "drop"),
];

/// Gives the server a second address, which is dead.
pub fn make_dead(world: &World, rule: &str) -> Result<()> {
    for node in [world.server(), world.hb()] {
        node.sysctl("net.ipv4.icmp_ratelimit", "0")?;
        node.sysctl("net.ipv6.icmp.ratelimit", "0")?;
    }
    world.server().sh(&format!(
        "ip address add 10.2.0.3/24 dev to-hb; ip address add fd00:b::3/64 dev to-hb nodad; \
         nft add table inet dead; \
         nft add chain inet dead c '{{ type filter hook input priority 0; }}'; \
         nft add rule inet dead c ip daddr 10.2.0.3 meta l4proto tcp {rule}; \
         nft add rule inet dead c ip6 daddr fd00:b::3 meta l4proto tcp {rule}"
    ))?;
    Ok(())
}

/// Has the server answer to HTTP at all its addresses, until this process ends.
pub fn serve_pages(server: &Netns) -> Result<()> {
    let listener = listen(server, Family::V6.any(80))?;
    std::thread::spawn(move || listener.incoming().flatten().try_for_each(page));
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

/// Returns a client that is told two addresses, the dead one of the one family and the living one
/// of the other or the same. It prints how long the page took, in seconds.
pub fn curl(world: &World, dead: Family, living: Family) -> Command {
    let dead = match dead {
        Family::V4 => "10.2.0.3",
        Family::V6 => "[fd00:b::3]",
    };
    let living = match living {
        Family::V4 => "10.2.0.2",
        Family::V6 => "[fd00:b::2]",
    };
    let mut curl = world.client().command("curl");
    curl.args(["-qsS", "--connect-timeout", "20", "--max-time", "50"])
        .args(["-o", "/dev/null", "-w", "%{time_total}", "--resolve"])
        .arg(format!("two.example:80:{dead},{living}"))
        .arg("http://two.example/");
    curl
}

/// What connect(2) says where nobody is, and after what time.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub errno: i32,
    pub time: Duration,
}

/// Measures the answers of a closed port (the median), of an absent host, and of one that drops:
/// through one router or three, and with the boxes there or without.
pub fn answers(pepd: &Path, family: Family, chain: bool, split: bool) -> Result<[Answer; 3]> {
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
        .map(|node| Pepd::start(pepd, world.topology().node(node), &World::config()))
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
    // Neighbours are known from here on.
    world.pair(family)?;
    let mut refused = (0..COUNTED)
        .map(|_| ask(world.client(), SocketAddr::new(server, 9)))
        .collect::<Result<Vec<_>>>()?;
    refused.sort_unstable_by_key(|answer| answer.time);
    Ok([
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
