//! The operator's own firewall, looked at from the outside: what the router would have dropped
//! causes nothing, neither at the server nor at the client, and its rules in `forward` decide on new
//! connections that are to be split as they do on those that are routed.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pepd_testbed::forge::{Forger, Segment};
use pepd_testbed::traffic::{self, PATIENCE, Pair};
use pepd_testbed::{Family, Netns, Stage, Via, World, accepted, require, wait_until};
use rstest::rstest;
use socket2::{Domain, Socket, Type};

use crate::harness::{LIMIT, PEPD};

/// How long a client asks that is not to be answered: its first SYN, and no more.
const SHORT: Duration = Duration::from_millis(500);

/// Starts the daemon behind a firewall.
fn behind(firewall: &str, via: Via) -> Result<Stage> {
    let world = World::standard()?;
    world.hb().sh(firewall)?;
    watched(&world)?;
    let config = match via {
        Via::Early => World::early_config(),
        Via::Pepd | Via::Routing => World::config(),
    };
    Stage::in_world(world, via, PEPD, &config)
}

/// Has both ends count what a handshake consists of.
fn watched(world: &World) -> Result<()> {
    for host in [world.client(), world.server()] {
        host.sh("nft -f - <<'END'
table inet seen {
    counter syns { }
    counter answers { }
    chain c {
        type filter hook prerouting priority raw;
        tcp flags & (fin | syn | rst | ack) == syn counter name syns
        tcp flags & (syn | ack) == syn | ack counter name answers
        tcp flags & rst == rst counter name answers
    }
}
END")?;
    }
    Ok(())
}

/// Returns how many of them a host has seen.
fn seen(host: &Netns, what: &str) -> Result<u64> {
    packets(host, &format!("inet seen {what}"))
}

fn packets(host: &Netns, counter: &str) -> Result<u64> {
    let said = host.sh(&format!("nft list counter {counter}"))?;
    let (_, packets) = said.split_once("packets ").context("no packets")?;
    let packets = packets.split(' ').next().context("no number")?;
    Ok(packets.parse()?)
}

fn listen(stage: &Stage, family: Family, port: u16) -> Result<TcpListener> {
    let address = SocketAddr::new(World::server_address(family), port);
    traffic::listen(stage.world.server(), address)
}

/// Returns whether a connection through the box was split; it works.
fn is_split(stage: &Stage, listener: &TcpListener) -> Result<bool> {
    let before = accepted(stage.world.hb())?;
    Pair::through(listener, stage.world.client())?.exchange(10_000)?;
    Ok(accepted(stage.world.hb())? > before)
}

/// Checks that a client that asks gets nothing, and the server hears nothing.
fn nothing_happens(stage: &Stage, to: SocketAddr) -> Result<()> {
    let world = &stage.world;
    let before = (
        seen(world.server(), "syns")?,
        seen(world.client(), "answers")?,
    );
    let said = world
        .client()
        .run(|| Ok(TcpStream::connect_timeout(&to, SHORT)))?;
    let error = said.err().context("connected")?;
    ensure!(error.kind() == ErrorKind::TimedOut, "{to}: {error}");
    let after = (
        seen(world.server(), "syns")?,
        seen(world.client(), "answers")?,
    );
    ensure!(before == after, "{to}: {before:?}, {after:?}");
    Ok(())
}

/// A host of neither campus says that it is the client. (For IPv6 the kernel has no such filter of
/// its own.)
const REVERSE_PATH: &str = "
for device in all default to-client to-sibling to-server to-outsider; do
    sysctl -qw net.ipv4.conf.$device.rp_filter=1
done
nft -f - <<'END'
table inet anti_spoofing {
    chain c {
        type filter hook prerouting priority raw + 10;
        meta nfproto ipv6 icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
        meta nfproto ipv6 fib saddr . iif oif missing drop
    }
}
END";

#[rstest]
fn a_syn_forged_on_the_wrong_side_causes_nothing(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let stage = behind(REVERSE_PATH, via)?;
    let world = &stage.world;
    let listener = listen(&stage, family, 80)?;
    assert_eq!(is_split(&stage, &listener)?, via != Via::Routing);
    let before = (
        seen(world.server(), "syns")?,
        seen(world.client(), "answers")?,
    );
    let forger = Forger::new(world.outsider())?;
    for number in 0..20u16 {
        let from = SocketAddr::new(World::client_address(family), 30_000 + number);
        let syn = Segment::syn(from, listener.local_addr()?, 1000 * u32::from(number));
        forger.send(&syn)?;
    }
    // What comes after them finds everything as it was.
    assert_eq!(is_split(&stage, &listener)?, via != Via::Routing);
    let after = (
        seen(world.server(), "syns")?,
        seen(world.client(), "answers")?,
    );
    assert_eq!(after, (before.0 + 1, before.1 + 1));
    stage.finish()
}

#[rstest]
#[case::as_a_filter_should("raw + 10")]
#[case::late("mangle")]
#[case::after_pepd("mangle + 10")]
fn what_is_dropped_before_routing_causes_nothing(
    #[case] priority: &str,
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let firewall = format!(
        "nft -f - <<'END'
table inet filter {{
    chain c {{
        type filter hook prerouting priority {priority};
        tcp dport 81 drop
    }}
}}
END"
    );
    let stage = behind(&firewall, via)?;
    let open = listen(&stage, family, 80)?;
    let forbidden = listen(&stage, family, 81)?;
    nothing_happens(&stage, forbidden.local_addr()?)?;
    assert!(is_split(&stage, &open)?);
    stage.finish()
}

/// A router's firewall: what it lets through is split, what it drops is not heard of, and what it
/// refuses is refused.
const FORWARD: &str = "nft -f - <<'END'
table inet filter {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state invalid drop
        ct state established,related accept
        tcp dport 80 ct state new accept
        tcp dport 82 reject with tcp reset
        tcp dport 83 reject with icmpx type admin-prohibited
    }
}
END";

#[rstest]
fn the_rules_in_forward_decide(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    decides(&behind(FORWARD, via)?, via, family)?;
    Ok(())
}

/// Checks what [`FORWARD`] says.
fn decides(stage: &Stage, via: Via, family: Family) -> Result<()> {
    let open = listen(stage, family, 80)?;
    let _others = [81, 82, 83].map(|port| listen(stage, family, port));
    let to = |port| SocketAddr::new(World::server_address(family), port);
    for _ in 0..3 {
        assert_eq!(is_split(stage, &open)?, via != Via::Routing);
    }
    nothing_happens(stage, to(81))?;
    let before = seen(stage.world.server(), "syns")?;
    for (port, kind) in [
        (82, ErrorKind::ConnectionRefused),
        (83, ErrorKind::HostUnreachable),
    ] {
        let error = traffic::connect(stage.world.client(), to(port)).unwrap_err();
        let found = traffic::kind(&error);
        // EACCES for IPv6 (RFC 4443, code 1).
        let same = found == Some(kind) || found == Some(ErrorKind::PermissionDenied);
        ensure!(same, "port {port}: {error}");
    }
    assert_eq!(seen(stage.world.server(), "syns")?, before);
    assert_eq!(is_split(stage, &open)?, via != Via::Routing);
    Ok(())
}

#[rstest]
#[case::legacy("legacy")]
#[case::nf_tables("nft")]
fn the_rules_of_iptables_decide(
    #[case] kind: &str,
    #[values(Via::Pepd, Via::Early)] via: Via,
) -> Result<()> {
    require!(root, program("iptables-legacy"), program("iptables-nft"));
    let firewall: String = [
        ("iptables", "icmp-host-prohibited"),
        ("ip6tables", "icmp6-adm-prohibited"),
    ]
    .map(|(program, prohibited)| {
        let forward = format!("{program}-{kind} -w -A FORWARD");
        format!(
            "{forward} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
                 {forward} -p tcp --dport 80 -m conntrack --ctstate NEW -j ACCEPT
                 {forward} -p tcp --dport 82 -j REJECT --reject-with tcp-reset
                 {forward} -p tcp --dport 83 -j REJECT --reject-with {prohibited}
                 {program}-{kind} -w -P FORWARD DROP\n"
        )
    })
    .concat();
    for family in Family::BOTH {
        decides(&behind(&firewall, via)?, via, family)?;
    }
    Ok(())
}

/// The client's SYNs while the first is held are its own, and not `invalid`.
#[rstest]
fn a_stateful_firewall_sees_no_second_connection(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let stage = behind(FORWARD, Via::Pepd)?;
    let world = &stage.world;
    let listener = listen(&stage, family, 80)?;
    world.server().sh("nft add table inet silent; \
         nft add chain inet silent c '{ type filter hook input priority 0; }'; \
         nft add rule inet silent c tcp dport 80 drop")?;
    world
        .hb()
        .sh("nft add table inet came; nft add counter inet came syns; \
         nft add chain inet came c '{ type filter hook prerouting priority raw - 10; }'; \
         nft add rule inet came c iifname to-client tcp flags syn counter name syns")?;
    let to = listener.local_addr()?;
    let attempt = world.client().spawn(move || Ok(TcpStream::connect(to)?))?;
    wait_until(LIMIT, "the client has repeated its SYN", || {
        packets(world.hb(), "inet came syns").is_ok_and(|syns| syns >= 3)
    })?;
    world.server().sh("nft delete table inet silent")?;
    let client = attempt.join().unwrap()?;
    let (server, peer) = traffic::accept(&listener)?;
    assert_eq!(peer, client.local_addr()?);
    Pair { client, server }.exchange(10_000)?;
    stage.finish()
}

/// One client port again and again, while its last connection is in TIME_WAIT here.
#[rstest]
fn a_client_port_is_used_again_through_a_firewall(
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let stage = behind(FORWARD, via)?;
    let listener = listen(&stage, family, 80)?;
    let from = SocketAddr::new(World::client_address(family), 40_000);
    for round in 0..4 {
        let client = traffic::connect_from(stage.world.client(), from, listener.local_addr()?)
            .with_context(|| format!("round {round}"))?;
        let (server, _) = traffic::accept(&listener)?;
        let pair = Pair { client, server };
        pair.exchange(10_000)?;
        // The server first: the box's TIME_WAIT is the client leg's.
        drop(pair.server);
        ensure!(traffic::read(&pair.client, &mut [0])? == 0);
    }
    assert!(accepted(stage.world.hb())? >= 4);
    stage.finish()
}

/// Connects by packets that come so far.
fn connect_within(netns: &Netns, from: SocketAddr, to: SocketAddr, hops: u32) -> Result<TcpStream> {
    let stream = netns.run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        match to.ip() {
            IpAddr::V4(_) => socket.set_ttl_v4(hops)?,
            IpAddr::V6(_) => socket.set_unicast_hops_v6(hops)?,
        }
        socket.set_reuse_address(true)?;
        socket.bind(&from.into())?;
        socket.connect_timeout(&to.into(), PATIENCE)?;
        Ok(TcpStream::from(socket))
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// The router is a router to a packet that ends there.
#[rstest]
fn a_syn_whose_time_is_over_is_answered_as_ever(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let stage = behind("true", via)?;
    let listener = listen(&stage, family, 80)?;
    let from = SocketAddr::new(World::client_address(family), 40_001);
    let (client, to) = (stage.world.client(), listener.local_addr()?);
    let error = connect_within(client, from, to, 1).unwrap_err();
    assert_eq!(traffic::kind(&error), Some(ErrorKind::HostUnreachable));
    assert_eq!(seen(stage.world.server(), "syns")?, 0);
    connect_within(client, from, to, 2)?;
    stage.finish()
}

/// An address of campus b that another host of campus b has: what the client asks is not what the
/// connection is with, and so it is routed.
const ELSEWHERE: &str = "nft -f - <<'END'
table inet nat {
    chain in {
        type nat hook prerouting priority dstnat;
        ip daddr 10.2.0.77 dnat ip to 10.2.0.2
        ip6 daddr fd00:b::77 dnat ip6 to fd00:b::2
    }
}
END";

#[rstest]
fn what_is_sent_elsewhere_is_routed(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(true, false)] from_the_start: bool,
) -> Result<()> {
    require!(root, program("nft"));
    let stage = behind(if from_the_start { ELSEWHERE } else { "true" }, via)?;
    if !from_the_start {
        stage.world.hb().sh(ELSEWHERE)?;
        if via != Via::Routing {
            wait_until(LIMIT, "pepd has seen the translation", || {
                let table = stage.world.hb().sh("nft list table inet pepd");
                table.is_ok_and(|table| table.contains("ct status dnat"))
            })?;
        }
    }
    let listener = listen(&stage, family, 80)?;
    let elsewhere: IpAddr = match family {
        Family::V4 => "10.2.0.77".parse()?,
        Family::V6 => "fd00:b::77".parse()?,
    };
    let split = accepted(stage.world.hb())?;
    for _ in 0..3 {
        let client = traffic::connect(stage.world.client(), SocketAddr::new(elsewhere, 80))?;
        let (server, peer) = traffic::accept(&listener)?;
        assert_eq!(peer, client.local_addr()?);
        Pair { client, server }.exchange(10_000)?;
    }
    assert_eq!(accepted(stage.world.hb())?, split);
    if via != Via::Routing {
        assert_eq!(packets(stage.world.hb(), "inet pepd translated")?, 3);
    }
    assert_eq!(is_split(&stage, &listener)?, via != Via::Routing);
    stage.finish()
}

/// What is copied to the loopback device passes the chains of a host that is careful.
const CAREFUL: &str = "nft -f - <<'END'
table inet host {
    chain prerouting {
        type filter hook prerouting priority raw + 10;
        icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
        fib saddr . iif oif missing drop
    }
    chain input {
        type filter hook input priority filter; policy drop;
        meta mark and 0x70000000 == 0x70000000 accept
        ct state established,related accept
        ct state invalid drop
        iif lo accept
        iif != lo ip daddr 127.0.0.0/8 drop
        meta l4proto ipv6-icmp accept
    }
    chain output {
        type filter hook output priority filter; policy drop;
        oif lo accept
        ct state established,related,new,untracked accept
    }
    chain postrouting {
        type nat hook postrouting priority srcnat;
        ip saddr 10.1.0.0/16 oifname != to-server masquerade
        ip6 saddr fd00:a::/48 oifname != to-server masquerade
    }
}
END";

#[rstest]
fn a_careful_host_lets_the_copy_through(
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let stage = behind(CAREFUL, via)?;
    let listener = listen(&stage, family, 80)?;
    for _ in 0..3 {
        assert!(is_split(&stage, &listener)?);
    }
    stage.finish()
}

/// A killed daemon's connections are routed at once, or when the client asks again.
#[rstest]
fn after_a_kill_the_firewall_goes_on(
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let mut stage = behind(FORWARD, via)?;
    let open = listen(&stage, family, 80)?;
    let forbidden = listen(&stage, family, 81)?;
    assert!(is_split(&stage, &open)?);
    stage.pepd.take().unwrap().kill()?;
    for _ in 0..3 {
        assert!(!is_split(&stage, &open)?);
    }
    nothing_happens(&stage, forbidden.local_addr()?)?;
    Ok(())
}
