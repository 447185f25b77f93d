//! Connection establishment end to end: a client that is not connected is told what it would be
//! told without pepd.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use pepd_testbed::traffic::{End, Pair, Pattern, accept, connect, listen, receive};
use pepd_testbed::{Family, Netns, Stage, Via, World, accepted, require, run, wait_until};
use rstest::rstest;
use socket2::{Domain, SockRef, Socket, Type};

use super::held_syn::{LIMIT, nothing_is_held, silence};
use crate::harness::PEPD;

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

/// Returns the errno of `connect`, or 0.
fn errno(client: &Netns, to: SocketAddr) -> Result<i32> {
    client.run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        Ok(match socket.connect(&to.into()) {
            Ok(()) => 0,
            Err(error) => error.raw_os_error().context("no errno")?,
        })
    })
}

/// Returns what a client is told about a closed port, hosts that are not there, networks that are
/// not there, and every kind of rejection.
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

/// The destination accepts and resets at once: the client is connected, and then reset.
#[rstest]
fn a_reset_right_after_the_answer_arrives(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    let listener = world.listen(family)?;
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
    let listener = world.listen(family)?;
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
                    // The RST was there before the call had checked.
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

/// The way in which a host is dead.
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
