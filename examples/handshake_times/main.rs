//! How long it takes to be connected, to have the first byte, to be told that there is nobody, and
//! to reach another address where that is so.
//!
//!     cargo build --release --bin pepd --example handshake_times
//!     cargo xtask vm --virtual-time --copy ip --copy nft --copy ss --copy ping --copy curl \
//!         --copy haproxy --copy target/release/pepd -- target/release/examples/handshake_times
//!
//! Three tables for docs/handshake.md; `distance`, `failover` or `errors` after the path of pepd
//! asks for some of them. In virtual time they are the same on any machine; natively (as root) they
//! hold as far as the machine is idle.

mod times;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pepd_sys::sockopt;
use pepd_testbed::traffic::listen;
use pepd_testbed::{Family, Netns, Pepd, Process, World, run, wait_until};
use times::{Answer, COUNTED, DEAD, LIMIT, LONG, SHORT};

/// Connections that are not counted, but bring the cookies of Fast Open.
const BEFORE: usize = 3;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let pepd = arguments.next();
    let pepd = PathBuf::from(pepd.unwrap_or_else(|| "target/release/pepd".to_owned()));
    ensure!(pepd.exists(), "no {}: build it first", pepd.display());
    let wanted: Vec<String> = arguments.collect();
    type Table = fn(&Path) -> Result<()>;
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

    /// Returns whether the client's own SYN may have data.
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

fn distance(pepd: &Path) -> Result<()> {
    println!("| on the box | client 20 ms, server 400 ms | | client 400 ms, server 20 ms | |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    println!("| | connected | first byte | connected | first byte |");
    for (way, title) in Way::ALL {
        let mut line = format!("| {title} ");
        for (client_leg, server_leg) in [(SHORT, LONG), (LONG, SHORT)] {
            let world = times::path(client_leg, server_leg)?;
            let (connected, first) = measure(&world, way, pepd).context(title)?;
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

/// Returns the median times to be connected and to have the first byte.
fn measure(world: &World, way: Way, pepd: &Path) -> Result<(Duration, Duration)> {
    for node in [world.client(), world.hb(), world.server()] {
        node.sysctl("net.ipv4.tcp_fastopen", "3")?;
    }
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
    let mut all = std::thread::scope(|scope| {
        let server = scope.spawn(|| times::answer(&listener, BEFORE + COUNTED));
        let all = world.client().run(|| {
            (0..BEFORE + COUNTED)
                .map(|_| times::question(address, way.client_is_fast()))
                .collect::<Result<Vec<_>>>()
        });
        server.join().map_err(|_| anyhow::anyhow!("the server"))??;
        all
    })?;
    drop((daemon, haproxy));
    let counted = all.split_off(BEFORE);
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[COUNTED / 2]
    };
    let connected = median(counted.iter().map(|(connected, _)| *connected).collect());
    let first = median(counted.iter().map(|(_, first)| *first).collect());
    Ok((connected, first))
}

/// Measures a name with a dead address and a living one: how long curl takes for a page.
fn failover(pepd: &Path) -> Result<()> {
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

/// Returns the median time of a page, or none where curl gets none.
fn page(
    pepd: &Path,
    way: Way,
    rule: &str,
    first: Family,
    second: Family,
) -> Result<Option<Duration>> {
    let world = times::path(SHORT, LONG)?;
    times::make_dead(&world, rule)?;
    let _daemon = way
        .config()
        .map(|config| Pepd::start(pepd, world.hb(), &config))
        .transpose()?;
    times::serve_pages(world.server())?;
    let mut times = Vec::new();
    for _ in 0..3 {
        let mut curl = times::curl(&world, first, second);
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

/// Measures where nobody is: what connect(2) says, and after what time.
fn errors(pepd: &Path) -> Result<()> {
    println!("| | errno | plain routing | one box | three routers | three boxes |");
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    for family in Family::BOTH {
        let columns: Vec<[Answer; 3]> =
            [(false, false), (false, true), (true, false), (true, true)]
                .into_iter()
                .map(|(chain, split)| times::answers(pepd, family, chain, split))
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
            let mut line = format!("| {family}: {title} | {} ", name(*cells[0]));
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

fn name(answer: Answer) -> &'static str {
    match answer.errno {
        110 => "ETIMEDOUT",
        111 => "ECONNREFUSED",
        113 => "EHOSTUNREACH",
        _ => "another",
    }
}
