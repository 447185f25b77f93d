//! Connection establishment end to end: what a client sees is what it would see without pepd.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use pepd_sys::sockopt;
use pepd_testbed::traffic::{
    self, End, Pair, Pattern, accept, connect, listen, receive, send_first,
};
use pepd_testbed::{Family, Netns, Stage, Via, World, accepted, require, run, wait_until};
use rstest::rstest;
use socket2::{Domain, SockRef, Socket, Type};

const PEPD: &str = env!("CARGO_BIN_EXE_pepd");
const LIMIT: Duration = Duration::from_secs(60);

/// Ports of the server with something special about them, and the rule that makes it so.
const ODD_PORTS: [(u16, &str); 5] = [
    (1001, "reject with icmpx type host-unreachable"),
    (1002, "reject with icmpx type no-route"),
    (1003, "reject with icmpx type admin-prohibited"),
    (1004, "reject with icmpx type port-unreachable"),
    (1005, "drop"),
];

fn make_ports_odd(server: &Netns) -> Result<()> {
    let rules: String = ODD_PORTS
        .iter()
        .map(|(port, what)| format!("tcp dport {port} {what}\n"))
        .collect();
    let table =
        format!("table inet odd {{\nchain c {{\ntype filter hook input priority 0;\n{rules}}}\n}}");
    server.sh(&format!("echo '{table}' | nft -f -"))?;
    Ok(())
}

/// ICMP errors are rare by default: one a second and client, after the first few.
fn icmp_without_limit(world: &World) -> Result<()> {
    for node in [world.server(), world.hb()] {
        node.sysctl("net.ipv4.icmp_ratelimit", "0")?;
        node.sysctl("net.ipv6.icmp.ratelimit", "0")?;
    }
    Ok(())
}

/// The errno of `connect`, or 0.
fn errno(client: &Netns, to: SocketAddr) -> Result<i32> {
    client.run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        Ok(match socket.connect(&to.into()) {
            Ok(()) => 0,
            Err(error) => error.raw_os_error().context("no errno")?,
        })
    })
}

/// What a client is told about a closed port, hosts that are not there, networks that are not
/// there, and every kind of rejection.
fn answers(stage: &Stage, family: Family) -> Result<Vec<i32>> {
    let world = &stage.world;
    make_ports_odd(world.server())?;
    icmp_without_limit(world)?;
    // Three SYNs and no more: a second or two each.
    world.client().sysctl("net.ipv4.tcp_syn_retries", "1")?;
    let server = World::server_address(family);
    let (absent, nowhere): (IpAddr, IpAddr) = match family {
        Family::V4 => ("10.2.0.77".parse()?, "10.2.9.9".parse()?),
        Family::V6 => ("fd00:b::77".parse()?, "fd00:b:0:9::9".parse()?),
    };
    let mut questions = vec![SocketAddr::new(server, 9), SocketAddr::new(nowhere, 80)];
    questions.extend(ODD_PORTS.map(|(port, _)| SocketAddr::new(server, port)));
    let mut answers = Vec::new();
    for to in questions {
        answers.push(errno(world.client(), to)?);
    }
    // Longer than neighbour discovery takes to fail.
    world.client().sysctl("net.ipv4.tcp_syn_retries", "6")?;
    answers.push(errno(world.client(), SocketAddr::new(absent, 80))?);
    Ok(answers)
}

#[rstest]
fn a_client_is_told_what_it_would_be_told_without_pepd(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let routed = answers(&Stage::open(Via::Routing, PEPD)?, family)?;
    let stage = Stage::open(Via::Pepd, PEPD)?;
    assert_eq!(answers(&stage, family)?, routed);
    let (refused, timed_out, unreachable) = (111, 110, 113);
    assert_eq!(routed[0], refused);
    assert!(
        routed.contains(&timed_out) && routed.contains(&unreachable),
        "{routed:?}"
    );
    assert_eq!(
        accepted(stage.world.hb())?,
        0,
        "nobody was answered by the box"
    );
    nothing_is_held(&stage)?;
    stage.world.pair(family)?;
    stage.finish()
}

#[rstest]
#[case::connect("-sT")]
#[case::syn("-sS")]
fn nmap_sees_the_same_ports(
    #[case] scan: &str,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nmap"));
    let ports = |via| -> Result<(Vec<String>, Stage)> {
        let stage = Stage::open(via, PEPD)?;
        let server = World::server_address(family);
        make_ports_odd(stage.world.server())?;
        icmp_without_limit(&stage.world)?;
        let open: Vec<_> = [1000, 1010, 1049]
            .into_iter()
            .map(|port| listen(stage.world.server(), SocketAddr::new(server, port)))
            .collect::<Result<_>>()?;
        let mut nmap = stage.world.client().command("nmap");
        nmap.args([
            scan,
            "-n",
            "-Pn",
            "--reason",
            "--max-retries",
            "1",
            // Long enough for the kernel to repeat its SYN: on a path without delay an ICMP error
            // comes while connect(2) still holds the socket, which then only makes a note of it
            // (sk_err_soft, net/ipv6/tcp_ipv6.c).
            "--initial-rtt-timeout",
            "2500ms",
            "--min-rtt-timeout",
            "2500ms",
            "--max-rtt-timeout",
            "2500ms",
            "-p",
            "1000-1049",
            "-v",
        ]);
        if family == Family::V6 {
            nmap.arg("-6");
        }
        let said = run(nmap.arg(server.to_string()), LIMIT)?.success()?;
        drop(open);
        let states = said
            .lines()
            .filter(|line| line.contains("/tcp"))
            // How many hops away an answer came from, and which router an ICMP error, is not
            // the question.
            .map(|line| line.split(" ttl ").next().unwrap_or(line))
            .map(|line| line.split(" from ").next().unwrap_or(line).to_owned())
            .filter(|line| !line.starts_with("Discovered"))
            .collect();
        Ok((states, stage))
    };
    let (routed, _) = ports(Via::Routing)?;
    let (split, stage) = ports(Via::Pepd)?;
    assert_eq!(split, routed);
    assert_eq!(
        routed.iter().filter(|line| line.contains("open")).count(),
        3
    );
    stage.world.pair(family)?;
    stage.finish()
}

/// A server that repeats to each client its token and says which port it came from. Its threads
/// end with the test's process.
fn echo_tokens(listener: &TcpListener) -> Result<()> {
    for _ in 0..8 {
        let listener = listener.try_clone()?;
        std::thread::spawn(move || {
            while let Ok((mut stream, peer)) = listener.accept() {
                let mut token = [0; 8];
                if stream.read_exact(&mut token).is_ok() {
                    let _ = stream.write_all(&token);
                    let _ = stream.write_all(&peer.port().to_be_bytes());
                }
            }
        });
    }
    Ok(())
}

fn ask_on(stream: &mut TcpStream, token: u64) -> Result<()> {
    stream.write_all(&token.to_be_bytes())?;
    let mut answer = [0; 10];
    stream.read_exact(&mut answer)?;
    assert_eq!(
        answer[..8],
        token.to_be_bytes(),
        "somebody else's connection"
    );
    assert_eq!(answer[8..], stream.local_addr()?.port().to_be_bytes());
    Ok(())
}

#[rstest]
#[case::one_after_the_other(10_000, 1)]
#[case::many_at_once(2_000, 500)]
fn nobody_gets_somebody_elses_connection(
    #[case] connections: u64,
    #[case] at_once: u64,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let connections = match std::env::var_os("PEPD_GUEST") {
        // Its processors are emulated.
        Some(_) => connections.min(2_000),
        None => connections,
    };
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    // Ports in TIME_WAIT come back sooner or later.
    world
        .client()
        .sysctl("net.ipv4.ip_local_port_range", "10000 65000")?;
    let listener = listen(
        world.server(),
        SocketAddr::new(World::server_address(family), 0),
    )?;
    // Room for all of them, however slow the machine is: who waits for a SYN that the server
    // has dropped tells nothing about the box.
    SockRef::from(&listener).listen(1024)?;
    let to = listener.local_addr()?;
    echo_tokens(&listener)?;
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..at_once)
            .map(|_| {
                let next = &next;
                scope.spawn(move || {
                    world.client().run(|| {
                        loop {
                            let token = next.fetch_add(1, Ordering::Relaxed);
                            if token >= connections {
                                return Ok(());
                            }
                            let mut stream = TcpStream::connect(to)?;
                            stream.set_read_timeout(Some(LIMIT))?;
                            ask_on(&mut stream, token)?;
                        }
                    })
                })
            })
            .collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().unwrap())
    })?;
    nothing_is_held(&stage)?;
    wait_until(LIMIT, "no connection is left on the box", || {
        let left = world
            .hb()
            .sh("ss -Htna state established state syn-sent state close-wait");
        left.is_ok_and(|left| left.trim().is_empty())
    })?;
    let counter = |name| {
        let said = world.hb().sh(&format!("nft list counter inet pepd {name}"));
        said.map(|said| before(&said, " bytes"))
    };
    let routed = counter("gate_closed")? + counter("unread")?;
    let (_, log) = stage.pepd.take().unwrap().stop()?;
    let (_, counts) = log.rsplit_once("ended: ").context("no counts")?;
    assert!(counts.contains(" 0 pending"), "{log}");
    let split = before(counts, " accepted, ");
    let routed = routed + before(counts, " let through");
    println!("{split} split, {routed} SYNs routed");
    let all = match std::env::var_os("PEPD_GUEST") {
        // A box that hangs for seconds routes what comes, and says so.
        Some(_) => split <= connections && split + routed >= connections,
        None => split == connections,
    };
    assert!(all, "{split} split, {routed} SYNs routed: {log}");
    Ok(())
}

/// The number right before `word`; 0 where there is none.
fn before(text: &str, word: &str) -> u64 {
    let number = text.split_once(word).and_then(|(text, _)| {
        let start = text
            .rfind(|c: char| !c.is_ascii_digit())
            .map_or(0, |at| at + 1);
        text[start..].parse().ok()
    });
    number.unwrap_or(0)
}

/// Nothing waits for a verdict.
fn nothing_is_held(stage: &Stage) -> Result<()> {
    wait_until(LIMIT, "no packet waits in a queue", || {
        held(stage.world.hb()) == Some(0)
    })
}

/// Packets that wait for their verdict (nfnetlink_queue's queue_total).
fn held(hb: &Netns) -> Option<u64> {
    let queues = hb.sh("cat /proc/net/netfilter/nfnetlink_queue").ok()?;
    let waiting = queues.lines().map(|line| {
        let field = line.split_whitespace().nth(2)?;
        field.parse::<u64>().ok()
    });
    waiting.sum()
}

/// Connects while nothing comes back from the server, on a thread.
fn connect_meanwhile(
    stage: &Stage,
    to: SocketAddr,
) -> Result<std::thread::JoinHandle<Result<TcpStream>>> {
    let attempt = stage
        .world
        .client()
        .spawn(move || Ok(TcpStream::connect(to)?))?;
    wait_until(LIMIT, "the SYN is held", || {
        held(stage.world.hb()).is_some_and(|waiting| waiting > 0)
    })?;
    Ok(attempt)
}

fn silence(server: &Netns, port: u16) -> Result<()> {
    server.sh(&format!(
        "nft add table inet silent; \
         nft add chain inet silent c '{{ type filter hook input priority 0; }}'; \
         nft add rule inet silent c tcp dport {port} drop"
    ))?;
    Ok(())
}

fn end_of_silence(server: &Netns) -> Result<()> {
    server.sh("nft delete table inet silent")?;
    Ok(())
}

/// What happens to the daemon while a SYN is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    Kill,
    Pause,
    Reload,
    ReloadToEarly,
    End,
}

#[rstest]
fn a_held_syn_is_never_lost(
    #[values(
        Event::Nothing,
        Event::Kill,
        Event::Pause,
        Event::Reload,
        Event::ReloadToEarly,
        Event::End
    )]
    event: Event,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let config = World::config().replace("drain = \"5s\"", "drain = \"1s\"");
    let mut stage = Stage::with_config(PEPD, &config)?;
    stage.world.pair(family)?;
    let server = stage.world.server();
    let listener = listen(server, SocketAddr::new(World::server_address(family), 4000))?;
    silence(server, 4000)?;
    let attempt = connect_meanwhile(&stage, listener.local_addr()?)?;
    let mut daemon = stage.pepd.take().unwrap();
    match event {
        Event::Nothing => {}
        Event::Kill => daemon.kill()?,
        Event::Pause => {
            // Longer than the gate stays open: the client's next SYNs are routed.
            daemon.pause()?;
            let hb = stage.world.hb();
            wait_until(LIMIT, "the gate is closed", || {
                let gate = hb.sh("nft list set inet pepd gate; nft list set inet pepd second_gate");
                gate.is_ok_and(|gate| !gate.contains("expires"))
            })?;
            daemon.resume()?;
        }
        Event::Reload => {
            // Other listeners too.
            daemon.reload(&config.replace("\"reno\"", "\"cubic\""))?;
        }
        Event::ReloadToEarly => {
            let early = config.replacen("port = 7300", "port = 7300\nhandshake = \"early\"", 1);
            daemon.reload(&early)?;
        }
        Event::End => {
            daemon.stop()?;
        }
    }
    end_of_silence(stage.world.server())?;
    let client = attempt.join().unwrap()?;
    client.set_read_timeout(Some(LIMIT))?;
    let (server, peer) = accept(&listener)?;
    assert_eq!(peer, client.local_addr()?);
    Pair { client, server }.exchange(100_000)
}

/// A daemon that was paused must not take up SYNs whose connection has come about without it.
#[rstest]
fn what_was_routed_during_a_pause_goes_on(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(Via::Pepd, PEPD)?;
    stage.world.pair(family)?;
    let pepd = stage.pepd.as_ref().unwrap();
    pepd.pause()?;
    // Its SYN waits unread; one of those that follow is routed, once the gate has closed.
    let pair = stage.world.pair(family)?;
    assert!(
        held(stage.world.hb()).unwrap() > 0,
        "its first SYN still waits"
    );
    pepd.resume()?;
    nothing_is_held(&stage)?;
    pair.exchange(100_000)?;
    stage.finish()
}

/// A SYN that was routed, because others took its place, may have been answered: the one that
/// repeats it must not be held.
#[rstest]
fn what_repeats_a_routed_syn_is_routed(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    // Of which a source may have one.
    let config = format!("{}\n[limits]\npending = 2\n", World::config());
    let stage = Stage::with_config(PEPD, &config)?;
    let world = &stage.world;
    world.pair(family)?;
    answer_the_clients_own(world.server(), family)?;
    silence(world.server(), 4001)?;
    let address = |port| SocketAddr::new(World::server_address(family), port);
    let listener = listen(world.server(), address(4000))?;
    // Until the client has sent its SYN again.
    let deaf = Deaf::to_answers(world.client())?;
    world
        .hb()
        .sh("nft add table inet seen; nft add counter inet seen syns; \
         nft add chain inet seen c '{ type filter hook prerouting priority -500; }'; \
         nft add rule inet seen c tcp dport 4000 counter name syns")?;
    let syns = || world.hb().sh("nft list counter inet seen syns");
    let attempt = connect_meanwhile(&stage, address(4000))?;
    let split = accepted(world.hb())?;
    // Once the first has had its time, one that comes takes its place; the first is routed from
    // there on, however often it comes.
    wait_until(LIMIT, "the server has answered", || {
        let newer = begin(world.client(), address(4001), 1);
        let answered = world.server().sh("ss -Htn state syn-recv");
        newer.is_ok() && answered.is_ok_and(|answered| answered.contains(":4000"))
    })?;
    let before = syns()?;
    wait_until(LIMIT, "the client has sent its SYN again", || {
        syns().is_ok_and(|now| now != before)
    })?;
    deaf.no_more()?;
    let client = attempt.join().unwrap()?;
    client.set_read_timeout(Some(LIMIT))?;
    let (server, peer) = accept(&listener)?;
    assert_eq!(peer, client.local_addr()?);
    Pair { client, server }.exchange(100_000)?;
    assert_eq!(accepted(world.hb())?, split);
    stage.finish()
}

/// The server answers the client's own SYNs to port 4000, which come over one router, and not the
/// box's.
fn answer_the_clients_own(server: &Netns, family: Family) -> Result<()> {
    let hops = match family {
        Family::V4 => "ip ttl 64",
        Family::V6 => "ip6 hoplimit 64",
    };
    server.sh(&format!(
        "nft add table inet picky; \
         nft add chain inet picky c '{{ type filter hook input priority 0; }}'; \
         nft add rule inet picky c tcp dport 4000 {hops} drop"
    ))?;
    Ok(())
}

/// A client to whom what port 4000 answers comes to nothing.
struct Deaf<'a>(&'a Netns);

impl<'a> Deaf<'a> {
    fn to_answers(client: &'a Netns) -> Result<Self> {
        client.sh("nft add table inet deaf; \
             nft add chain inet deaf c '{ type filter hook input priority 0; }'; \
             nft add rule inet deaf c tcp sport 4000 drop")?;
        Ok(Self(client))
    }

    fn no_more(self) -> Result<()> {
        self.0.sh("nft delete table inet deaf")?;
        Ok(())
    }
}

/// Sends so many SYNs, right behind each other.
fn begin(client: &Netns, to: SocketAddr, count: usize) -> Result<Vec<Socket>> {
    client.run(|| {
        (0..count)
            .map(|_| {
                let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
                socket.set_nonblocking(true)?;
                // Under way.
                let _ = socket.connect(&to.into());
                Ok(socket)
            })
            .collect()
    })
}

/// A SYN that has to make room is routed only when the box's own socket from the client's port is
/// gone: it would reset the destination's answer.
#[rstest]
fn what_makes_room_is_not_reset_by_the_box(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    const CLIENTS: usize = 64;
    // Of which a source may have half.
    let config = format!("{}\n[limits]\npending = {}\n", World::config(), 2 * CLIENTS);
    let stage = Stage::with_config(PEPD, &config)?;
    let world = &stage.world;
    world.pair(family)?;
    answer_the_clients_own(world.server(), family)?;
    // Before those of the box are dropped with the rest.
    world.server().sh("nft add counter inet picky resets; \
         nft insert rule inet picky c tcp dport 4000 tcp flags rst counter name resets")?;
    silence(world.server(), 4001)?;
    let address = |port| SocketAddr::new(World::server_address(family), port);
    let listener = listen(world.server(), address(4000))?;
    SockRef::from(&listener).listen(1024)?;
    let clients = begin(world.client(), address(4000), CLIENTS)?;
    wait_until(LIMIT, "all have been connected", || {
        // These take the places of the first, once those have had their time.
        let newer = begin(world.client(), address(4001), CLIENTS);
        let connected = clients.iter().filter(|client| client.peer_addr().is_ok());
        newer.is_ok() && connected.count() == CLIENTS
    })?;
    let resets = world.server().sh("nft list counter inet picky resets")?;
    assert_eq!(before(&resets, " bytes"), 0, "{resets}");
    stage.finish()
}

/// Why a SYN is routed without the daemon's knowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absence {
    /// The gate is closed.
    Pause,
    /// Nobody reads the queue.
    Kill,
}

/// So may have been one that was routed while the daemon was away, and then it is back.
#[rstest]
fn what_repeats_a_syn_that_was_routed_without_the_daemon_is_routed(
    #[values(Absence::Pause, Absence::Kill)] absence: Absence,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    world.pair(family)?;
    answer_the_clients_own(world.server(), family)?;
    let address = SocketAddr::new(World::server_address(family), 4000);
    let listener = listen(world.server(), address)?;
    // Until the client has sent its SYN again.
    let deaf = Deaf::to_answers(world.client())?;
    let gate_is_open = || {
        let gate = world
            .hb()
            .sh("nft list set inet pepd gate; nft list set inet pepd second_gate");
        gate.is_ok_and(|gate| gate.contains("expires"))
    };
    let daemon = stage.pepd.take().unwrap();
    let paused = match absence {
        Absence::Pause => {
            daemon.pause()?;
            wait_until(LIMIT, "the gate is closed", || !gate_is_open())?;
            Some(daemon)
        }
        Absence::Kill => {
            daemon.kill()?;
            None
        }
    };
    let attempt = world
        .client()
        .spawn(move || Ok(TcpStream::connect(address)?))?;
    wait_until(LIMIT, "the server has answered", || {
        let answered = world.server().sh("ss -Htn state syn-recv");
        answered.is_ok_and(|answered| answered.contains(":4000"))
    })?;
    let daemon = match paused {
        Some(daemon) => {
            daemon.resume()?;
            daemon
        }
        None => pepd_testbed::Pepd::start(PEPD, world.hb(), &World::config())?,
    };
    wait_until(LIMIT, "the gate is open", gate_is_open)?;
    let count = |name| {
        let said = world.hb().sh(&format!("nft list counter inet pepd {name}"));
        said.map(|said| before(&said, " bytes"))
    };
    let held = count("held")?;
    wait_until(LIMIT, "the client has sent its SYN again", || {
        count("repeated").is_ok_and(|repeated| repeated > 0)
    })?;
    deaf.no_more()?;
    let client = attempt.join().unwrap()?;
    client.set_read_timeout(Some(LIMIT))?;
    let (server, peer) = accept(&listener)?;
    assert_eq!(peer, client.local_addr()?);
    Pair { client, server }.exchange(100_000)?;
    assert_eq!(count("held")?, held, "no SYN of it was held");
    // Another connection of the same client's is split as ever.
    wait_until(LIMIT, "a SYN is held again", || {
        world.pair(family).is_ok() && count("held").is_ok_and(|now| now > held)
    })?;
    stage.pepd = Some(daemon);
    stage.finish()
}

#[rstest]
fn one_port_of_a_client_reaches_two_destinations(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    let pairs: Vec<Pair> = [4001, 4002]
        .into_iter()
        .map(|port| {
            let address = SocketAddr::new(World::server_address(family), port);
            let listener = listen(world.server(), address)?;
            let client = from_port(world, family, 23_456, address)?;
            let (server, peer) = accept(&listener)?;
            assert_eq!(peer.port(), 23_456, "the client's own port");
            Ok(Pair { client, server })
        })
        .collect::<Result<_>>()?;
    for pair in &pairs {
        pair.exchange(10_000)?;
    }
    assert!(accepted(world.hb())? >= 2);
    stage.finish()
}

/// A client may use a port again whose last connection is in TIME_WAIT, at the server and on
/// the box.
#[rstest]
fn a_port_in_time_wait_is_used_again(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    let address = SocketAddr::new(World::server_address(family), 4001);
    let listener = listen(world.server(), address)?;
    for round in 0..3 {
        let client = from_port(world, family, 23_456, address)?;
        let (server, peer) = accept(&listener)?;
        assert_eq!(peer, client.local_addr()?, "round {round}");
        let pair = Pair { client, server };
        pair.exchange(1_000)?;
        // The server closes first: it and the box, not the client, are in TIME_WAIT.
        drop(pair.server);
        let end = receive(&pair.client, &Pattern::new(0), 0)?;
        assert_eq!(end, (0, End::Fin), "round {round}");
    }
    assert!(accepted(world.hb())? >= 3);
    stage.finish()
}

/// Connects from this very port, as soon as the client's own last connection from it is gone: the
/// acknowledgement of its FIN may still be under way.
fn from_port(world: &World, family: Family, port: u16, to: SocketAddr) -> Result<TcpStream> {
    let mut outcome = None;
    wait_until(LIMIT, "the port is free on the client", || {
        let tried = try_from_port(world, family, port, to);
        let taken = tried
            .as_ref()
            .is_err_and(|error| traffic::kind(error) == Some(ErrorKind::AddrNotAvailable));
        outcome = Some(tried);
        !taken
    })?;
    outcome.context("no attempt was made")?
}

fn try_from_port(world: &World, family: Family, port: u16, to: SocketAddr) -> Result<TcpStream> {
    world.client().run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::new(World::client_address(family), port).into())?;
        socket.connect(&to.into())?;
        socket.set_read_timeout(Some(LIMIT))?;
        Ok(socket.into())
    })
}

/// Where a program on the box listens on the client's port, the connection is routed, from that
/// port, and not split from another.
#[rstest]
fn a_client_port_that_the_box_itself_listens_on_is_routed(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    let _wildcard = listen(world.hb(), family.any(23_456))?;
    let address = SocketAddr::new(World::server_address(family), 4001);
    let listener = listen(world.server(), address)?;
    let client = from_port(world, family, 23_456, address)?;
    let (server, peer) = accept(&listener)?;
    assert_eq!(peer, client.local_addr()?);
    Pair { client, server }.exchange(10_000)?;
    assert_eq!(accepted(world.hb())?, 0);
    world.pair(family)?;
    stage.finish()
}

/// The destination accepts and resets at once: the client is connected, and then reset.
#[rstest]
fn a_reset_right_after_the_answer_arrives(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    let listener = listen(
        world.server(),
        SocketAddr::new(World::server_address(family), 0),
    )?;
    for _ in 0..20 {
        let client = connect(world.client(), listener.local_addr()?)?;
        let (server, _) = accept(&listener)?;
        SockRef::from(&server).set_linger(Some(Duration::ZERO))?;
        drop(server);
        assert_eq!(receive(&client, &Pattern::new(0), 0)?, (0, End::RESET));
    }
    stage.finish()
}

/// The destination accepts, says something and resets at once, maybe before the client has been
/// answered. The client is never refused: it is connected first, and what was said arrives.
#[rstest]
fn a_reset_before_the_client_is_answered_is_no_refusal(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    const ROUNDS: usize = 200;
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    let listener = listen(
        world.server(),
        SocketAddr::new(World::server_address(family), 0),
    )?;
    let to = listener.local_addr()?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.write_all(b"no");
                let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            }
        });
        world.client().run(|| {
            for round in 0..ROUNDS {
                let error = match TcpStream::connect(to) {
                    Ok(mut client) => {
                        client.set_read_timeout(Some(LIMIT))?;
                        client.read_to_end(&mut Vec::new()).unwrap_err()
                    }
                    // The RST was there before the call had looked.
                    Err(error) => error,
                };
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "round {round}");
            }
            Ok(())
        })
    })?;
    if via == Via::Pepd {
        nothing_is_held(&stage)?;
        assert!(accepted(world.hb())? >= ROUNDS as u64);
    }
    stage.finish()
}

/// How a host is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dead {
    Closed,
    Silent,
    Absent,
}

/// Of two addresses of a name the first is dead: curl goes on to the second.
#[rstest]
fn curl_fails_over_to_the_living_address(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Dead::Closed, Dead::Silent, Dead::Absent)] dead: Dead,
    #[values(Family::V4, Family::V6)] living: Family,
) -> Result<()> {
    require!(root, program("nginx"), program("curl"));
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    let nginx = pepd_testbed::Nginx::start(world.server())?;
    nginx.put_file("page", b"text")?;
    let (first, table): (IpAddr, _) = match living {
        Family::V4 => (World::server_address(Family::V6), "ip6"),
        Family::V6 => (World::server_address(Family::V4), "ip"),
    };
    let first = match (dead, living) {
        (Dead::Absent, Family::V4) => "fd00:b::77".parse()?,
        (Dead::Absent, Family::V6) => "10.2.0.77".parse()?,
        _ => first,
    };
    let how = match dead {
        Dead::Closed => "reject with tcp reset",
        Dead::Silent | Dead::Absent => "drop",
    };
    world.server().sh(&format!(
        "nft add table {table} closed; \
         nft add chain {table} closed c '{{ type filter hook input priority 0; }}'; \
         nft add rule {table} closed c tcp dport 80 {how}"
    ))?;
    let second = World::server_address(living);
    let bracketed = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    let mut curl = world.client().command("curl");
    curl.args(["-sS", "-w", " %{remote_ip}", "--resolve"])
        .arg(format!(
            "two.example:80:{},{}",
            bracketed(first),
            bracketed(second)
        ))
        .arg("http://two.example/page");
    assert_eq!(run(&mut curl, LIMIT)?.success()?, format!("text {second}"));
    stage.finish()
}

/// The client's SYN shapes the upstream one: DSCP and MSS.
#[rstest]
fn the_servers_syn_is_shaped_by_the_clients(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    let listener = listen(
        world.server(),
        SocketAddr::new(World::server_address(family), 0),
    )?;
    sockopt::set_save_syn(listener.as_fd(), 1)?;
    let to = listener.local_addr()?;
    let client = world.client().run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        sockopt::set_max_segment(socket.as_fd(), 900)?;
        match family {
            Family::V4 => sockopt::set_tos_v4(socket.as_fd(), 46 << 2)?,
            Family::V6 => sockopt::set_tclass_v6(socket.as_fd(), 46 << 2)?,
        }
        socket.connect(&to.into())?;
        Ok(TcpStream::from(socket))
    })?;
    let (server, _) = accept(&listener)?;
    let mut headers = [0; 120];
    let len = sockopt::saved_syn(server.as_fd(), &mut headers)?;
    let (dscp, options) = match family {
        Family::V4 => (headers[1] >> 2, &headers[40..len]),
        Family::V6 => (
            (headers[0] & 0x0f) << 2 | headers[1] >> 6,
            &headers[60..len],
        ),
    };
    assert_eq!(dscp, 46);
    assert_eq!(options[..4], [2, 4, 3, 132], "an MSS of 900: {options:?}");
    Pair { client, server }.exchange(10_000)?;
    stage.finish()
}

/// Data in the client's own SYN (Fast Open) arrives, whether the box has its cookie or not.
#[rstest]
fn data_in_the_clients_syn_is_not_lost(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(true, false)] leg_has_fast_open: bool,
) -> Result<()> {
    require!(root);
    let world = World::standard()?;
    for host in [world.client(), world.hb(), world.server()] {
        host.sysctl("net.ipv4.tcp_fastopen", "3")?;
    }
    let mut config = World::config();
    if leg_has_fast_open {
        config = config.replacen("[leg.lan]", "[leg.lan]\nfast_open = true", 1);
    }
    let stage = Stage::in_world(world, Via::Pepd, PEPD, &config)?;
    let world = &stage.world;
    let listener = listen(
        world.server(),
        SocketAddr::new(World::server_address(family), 0),
    )?;
    let to = listener.local_addr()?;
    // The first brings the cookie, if there is one.
    for round in 0..4_u64 {
        let mut client = world.client().run(|| {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
            sockopt::set_fast_open_connect(socket.as_fd(), 1)?;
            socket.connect(&to.into())?;
            socket.set_read_timeout(Some(LIMIT))?;
            Ok(TcpStream::from(socket))
        })?;
        send_first(&client, &round.to_be_bytes())?;
        let (mut server, _) = accept(&listener)?;
        let mut heard = [0; 8];
        server.read_exact(&mut heard)?;
        assert_eq!(heard, round.to_be_bytes());
        server.write_all(&heard)?;
        client.read_exact(&mut heard)?;
        assert_eq!(heard, round.to_be_bytes());
    }
    let taken = world.hb().sh("nstat -az TcpExtTCPFastOpenPassive")?;
    let taken: HashSet<&str> = taken.split_whitespace().collect();
    assert_eq!(taken.contains("3"), leg_has_fast_open, "{taken:?}");
    stage.finish()
}

/// A rule may say otherwise than `[capture]`.
#[rstest]
fn a_rule_chooses_the_handshake(
    #[values("early", "end-to-end")] by_rule: &str,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let base = if by_rule == "early" {
        World::config()
    } else {
        World::early_config()
    };
    let rule = format!(
        "\n[[rule]]\ndestination_port = [4009]\naction = \"split\"\nhandshake = \"{by_rule}\"\n"
    );
    let stage = Stage::with_config(PEPD, &format!("{base}{rule}"))?;
    let world = &stage.world;
    let closed = |port| SocketAddr::new(World::server_address(family), port);
    // Who is answered first shows in whether the box ever accepts.
    for (port, early) in [(4009, by_rule == "early"), (4010, by_rule != "early")] {
        let before = accepted(world.hb())?;
        let _ = errno(world.client(), closed(port))?;
        wait_until(LIMIT, "as the rule says", || {
            accepted(world.hb()).is_ok_and(|now| (now > before) == early)
        })?;
    }
    for port in [4009, 4010] {
        let listener = listen(world.server(), closed(port))?;
        Pair::through(&listener, world.client())?.exchange(10_000)?;
    }
    stage.finish()
}

/// Three boxes in a row, each of which holds the SYN for the next.
#[rstest]
fn a_chain_of_boxes_tells_the_same(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root);
    let world = World::chain()?;
    let stage = Stage::in_world(world, Via::Pepd, PEPD, &World::config())?;
    let world = &stage.world;
    let boxes = ["middle", "far"]
        .into_iter()
        .map(|node| pepd_testbed::Pepd::start(PEPD, world.topology().node(node), &World::config()))
        .collect::<Result<Vec<_>>>()?;
    let server = World::server_address(family);
    let absent: IpAddr = match family {
        Family::V4 => "10.2.0.77".parse()?,
        Family::V6 => "fd00:b::77".parse()?,
    };
    assert_eq!(errno(world.client(), SocketAddr::new(server, 9))?, 111);
    assert_eq!(errno(world.client(), SocketAddr::new(absent, 80))?, 113);
    // Two SYNs and no more.
    world.client().sysctl("net.ipv4.tcp_syn_retries", "1")?;
    silence(world.server(), 4000)?;
    assert_eq!(errno(world.client(), SocketAddr::new(server, 4000))?, 110);
    let listener = listen(world.server(), SocketAddr::new(server, 0))?;
    Pair::through(&listener, world.client())?.exchange(1_000_000)?;
    for node in ["hb", "middle", "far"] {
        assert!(accepted(world.topology().node(node))? >= 1, "{node}");
    }
    drop(boxes);
    stage.finish()
}
