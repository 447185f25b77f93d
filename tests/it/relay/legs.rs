//! What each leg's socket is like, as `ss` and the peers see it.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use pepd_sys::sockopt::set_fast_open;
use pepd_testbed::traffic::{End, Pair, Pattern, accept, listen, receive, send_first};
use pepd_testbed::{Family, Netns, Stage, Via, World, accepted, require, wait_until};
use rstest::rstest;
use socket2::{Domain, Socket, Type};

use crate::harness::{LIMIT, PEPD, extended_counter};

/// The two sockets of a split connection, as `ss -tinomO` on the helper box prints them.
#[derive(Debug)]
struct Legs {
    /// Towards the client: its local address is the server's.
    client: String,
    /// Towards the server: its local address is the client's own.
    upstream: String,
}

impl Legs {
    fn of(world: &World, pair: &Pair) -> Result<Self> {
        let (client, server) = (pair.client.local_addr()?, pair.server.local_addr()?);
        let table = world.hb().sh("ss -tinomOH state established")?;
        let find = |local: SocketAddr, peer: SocketAddr| {
            let line = table.lines().find(|line| {
                let mut words = line.split_whitespace().skip(2);
                words.next() == Some(&local.to_string()) && words.next() == Some(&peer.to_string())
            });
            line.map(str::to_owned)
                .with_context(|| format!("no {local} {peer} in:\n{table}"))
        };
        Ok(Self {
            client: find(server, client)?,
            upstream: find(client, server)?,
        })
    }
}

#[rstest]
fn each_leg_has_the_settings_of_its_campus(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("ss"));
    let lan = "[leg.lan]
buffer = \"128KiB\"
mss = 1000
keepalive = { idle = \"100s\", interval = \"10s\", count = 6 }
";
    let wan = "[leg.wan]
mss = 1200
rate = \"80Mbit\"
keepalive = { idle = \"500s\", interval = \"10s\", count = 6 }
";
    let config = World::config()
        .replace("[leg.lan]\n", lan)
        .replace("[leg.wan]\n", wan);
    let stage = Stage::with_config(PEPD, &config)?;
    // Whoever connects: a leg belongs to the campus that it leads to.
    for to_server in [true, false] {
        let world = &stage.world;
        let pair = if to_server {
            world.pair(family)?
        } else {
            Pair::open(
                world.server(),
                world.client(),
                World::client_address(family),
            )?
        };
        pair.exchange(10_000)?;
        // As long as something is unacknowledged another timer runs.
        let mut legs = None;
        wait_until(LIMIT, "both legs' keepalive timers run", || {
            legs = Legs::of(world, &pair).ok();
            let quiet = |leg| keepalive(leg).is_some();
            legs.as_ref()
                .is_some_and(|legs| quiet(&legs.client) && quiet(&legs.upstream))
        })?;
        let Legs { client, upstream } = legs.unwrap();
        let (lan, wan) = if to_server {
            (client, upstream)
        } else {
            (upstream, client)
        };
        assert!(word(&lan, "reno") && !word(&lan, "cubic"), "{lan}");
        assert!(word(&wan, "cubic") && !word(&wan, "reno"), "{wan}");
        assert!(maximum_rate(&wan) == Some("80000000bps"), "{wan}");
        assert!(maximum_rate(&lan).is_none(), "{lan}");
        // The kernel doubles a buffer's size for its own bookkeeping (socket(7)).
        assert!(
            lan.contains(",rb262144,") && lan.contains(",tb262144,"),
            "{lan}"
        );
        // The timestamp option takes 12 bytes of each segment.
        assert_eq!(number(&lan, "mss:"), Some(1000 - 12), "{lan}");
        assert_eq!(number(&wan, "mss:"), Some(1200 - 12), "{wan}");
        assert!(
            keepalive(&lan).is_some_and(|seconds| (60..=100).contains(&seconds)),
            "{lan}"
        );
        assert!(
            keepalive(&wan).is_some_and(|seconds| (200..=500).contains(&seconds)),
            "{wan}"
        );
        // The hosts were told it, too.
        let (at_client, at_server) = if to_server {
            (&pair.client, &pair.server)
        } else {
            (&pair.server, &pair.client)
        };
        for (netns, stream, told) in [
            (world.client(), at_client, 1000),
            (world.server(), at_server, 1200),
        ] {
            let port = stream.local_addr()?.port();
            let line = netns.sh(&format!("ss -tinOH sport = :{port}"))?;
            assert!(
                number(&line, "mss:").is_some_and(|mss| mss <= told),
                "{line}"
            );
        }
    }
    stage.finish()
}

#[rstest]
fn the_dscp_of_the_syn_is_copied_to_both_legs(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    // Over plain routing the server's own DSCP, 0, comes back; the proxy copies the SYN's.
    let back = if via == Via::Pepd { "ef" } else { "cs0" };
    let at_server = DscpCounters::new(world.server(), World::client_address(family), "ef")?;
    let at_client = DscpCounters::new(world.client(), World::server_address(family), back)?;
    let mut pair = marked_pair(world, family, 46)?;
    // What the kernel sends before there is a socket to copy anything to has no DSCP: the SYN-ACK,
    // and, if the client speaks first, acknowledgements of what it says.
    pair.server.write_all(b"!")?;
    pair.client.read_exact(&mut [0])?;
    pair.exchange(50_000)?;
    at_server.all_as_expected_but(0)?;
    at_client.all_as_expected_but(1)?;
    stage.finish()
}

#[rstest]
fn a_dscp_of_the_configuration_is_set(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let config = World::config()
        .replace("[leg.lan]\n", "[leg.lan]\ndscp = 8\n")
        .replace("[leg.wan]\n", "[leg.wan]\ndscp = 34\n");
    let stage = Stage::with_config(PEPD, &config)?;
    let world = &stage.world;
    let at_server = DscpCounters::new(world.server(), World::client_address(family), "af41")?;
    let at_client = DscpCounters::new(world.client(), World::server_address(family), "cs1")?;
    marked_pair(world, family, 46)?.exchange(50_000)?;
    at_server.all_as_expected_but(0)?;
    at_client.all_as_expected_but(0)?;
    stage.finish()
}

/// Each leg gives up by its own timer, and the other end gets a RST.
#[rstest]
fn a_leg_gives_up_after_its_user_timeout(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let config = World::config().replace("[leg.wan]\n", "[leg.wan]\nuser_timeout = \"1s\"\n");
    let stage = Stage::with_config(PEPD, &config)?;
    let world = &stage.world;
    let mut pair = world.pair(family)?;
    pair.exchange(10_000)?;
    world.server().sh("nft add table inet gone
         nft 'add chain inet gone output { type filter hook output priority 0; policy drop; }'")?;
    pair.client.write_all(b"into the void")?;
    assert_eq!(receive(&pair.client, &Pattern::new(0), 0)?, (0, End::RESET));
    stage.finish()
}

/// A destination that does not answer at all: the attempt ends after `connect_timeout`.
#[rstest]
fn a_leg_gives_up_connecting_after_its_timeout(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let config =
        World::early_config().replace("[leg.wan]\n", "[leg.wan]\nconnect_timeout = \"1s\"\n");
    let stage = Stage::with_config(PEPD, &config)?;
    let world = &stage.world;
    world.server().sh("nft add table inet gone
         nft 'add chain inet gone input { type filter hook input priority 0; policy drop; }'")?;
    let to = SocketAddr::new(World::server_address(family), 7);
    let client = pepd_testbed::traffic::connect(world.client(), to)?;
    assert_eq!(receive(&client, &Pattern::new(0), 0)?, (0, End::RESET));
    stage.finish()
}

/// With `fast_open` on both legs a second connection carries its data in the SYN, on the way
/// to the helper box and from there on.
#[rstest]
fn fast_open_works_on_both_legs(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root);
    let config = World::early_config()
        .replace("[leg.lan]\n", "[leg.lan]\nfast_open = true\n")
        .replace("[leg.wan]\n", "[leg.wan]\nfast_open = true\n");
    let stage = Stage::in_world(World::standard()?, Via::Routing, PEPD, &config)?;
    for netns in [stage.world.client(), stage.world.hb(), stage.world.server()] {
        netns.sysctl("net.ipv4.tcp_fastopen", "3")?;
    }
    let mut stage = stage;
    stage.pepd = Some(pepd_testbed::Pepd::start(PEPD, stage.world.hb(), &config)?);
    let world = &stage.world;
    let address = SocketAddr::new(World::server_address(family), 0);
    let listener = listen(world.server(), address)?;
    set_fast_open(listener.as_fd(), 16)?;
    for round in 0..3 {
        let client = world.client().run(|| {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
            setsockopt(&socket, sockopt::TcpFastOpenConnect, &true)?;
            socket.connect(&listener.local_addr()?.into())?;
            let stream = std::net::TcpStream::from(socket);
            send_first(&stream, b"in the SYN")?;
            Ok(stream)
        })?;
        let (server, _) = accept(&listener).with_context(|| format!("round {round}"))?;
        let mut got = [0; 10];
        (&server).read_exact(&mut got)?;
        assert_eq!(&got, b"in the SYN");
        drop((client, server));
    }
    // The first exchanges cookies; those after it use them.
    for (netns, counter) in [
        (world.client(), "TCPFastOpenActive"),
        (world.hb(), "TCPFastOpenPassive"),
        (world.hb(), "TCPFastOpenActive"),
        (world.server(), "TCPFastOpenPassive"),
    ] {
        wait_until(
            LIMIT,
            &format!("two of {counter} in {}", netns.name()),
            || extended_counter(netns, counter).unwrap() >= 2,
        )?;
    }
    stage.finish()
}

/// A client port that is in use on the box itself cannot be taken again; the connection is
/// established from another port of the same address.
#[rstest]
fn a_client_port_that_the_box_itself_listens_on_is_no_obstacle(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(Via::Early, PEPD)?;
    let world = &stage.world;
    let _wildcard = listen(world.hb(), family.any(34_567))?;
    let listener = world.listen(family)?;
    let address = SocketAddr::new(World::client_address(family), 34_567);
    let client = world.client().run(|| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.bind(&address.into())?;
        socket.connect(&listener.local_addr()?.into())?;
        Ok(std::net::TcpStream::from(socket))
    })?;
    let (server, peer) = accept(&listener)?;
    assert_eq!(peer.ip(), address.ip());
    Pair { client, server }.exchange(10_000)?;
    assert!(accepted(world.hb())? >= 1);
    stage.finish()
}

/// Two connections from the same client port to two servers: the address and port of both
/// must be the client's on either leg.
#[rstest]
fn one_client_port_to_two_destinations(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    let local = SocketAddr::new(World::client_address(family), 34_568);
    let mut pairs = Vec::new();
    for _ in 0..3 {
        let listener = world.listen(family)?;
        let client = world.client().run(|| {
            let socket = Socket::new(Domain::for_address(local), Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&local.into())?;
            socket.connect(&listener.local_addr()?.into())?;
            Ok(std::net::TcpStream::from(socket))
        })?;
        let (server, peer) = accept(&listener)?;
        assert_eq!(peer, local);
        pairs.push(Pair { client, server });
    }
    for pair in &pairs {
        pair.exchange(10_000)?;
    }
    stage.finish()
}

/// Counts, in nft, TCP packets from one address with the expected DSCP, and all others.
struct DscpCounters<'a> {
    netns: &'a Netns,
}

impl<'a> DscpCounters<'a> {
    fn new(netns: &'a Netns, from: std::net::IpAddr, dscp: &str) -> Result<Self> {
        let ip = if from.is_ipv4() { "ip" } else { "ip6" };
        netns.sh(&format!(
            "nft add table inet dscp
             nft add counter inet dscp expected
             nft add counter inet dscp other
             nft 'add chain inet dscp input {{ type filter hook input priority 0; }}'
             nft add rule inet dscp input meta l4proto tcp {ip} saddr {from} {ip} dscp {dscp} \
                 counter name expected accept
             nft add rule inet dscp input meta l4proto tcp {ip} saddr {from} counter name other"
        ))?;
        Ok(Self { netns })
    }

    fn all_as_expected_but(&self, exceptions: u64) -> Result<()> {
        let packets = |name: &str| -> Result<u64> {
            let said = self
                .netns
                .sh(&format!("nft list counter inet dscp {name}"))?;
            number(&said.replace("packets ", "packets:"), "packets:").context(said)
        };
        let (expected, other) = (packets("expected")?, packets("other")?);
        ensure!(
            expected >= 5,
            "only {expected} packets with the expected DSCP"
        );
        ensure!(
            other <= exceptions,
            "{other} packets with another DSCP, {expected} with the expected"
        );
        Ok(())
    }
}

/// Opens a connection whose client marks every packet, the SYN too.
fn marked_pair(world: &World, family: Family, dscp: u32) -> Result<Pair> {
    let address = SocketAddr::new(World::server_address(family), 0);
    let listener = listen(world.server(), address)?;
    let client = world.client().run(|| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        match family {
            Family::V4 => socket.set_tos_v4(dscp << 2)?,
            Family::V6 => socket.set_tclass_v6(dscp << 2)?,
        }
        socket.connect(&listener.local_addr()?.into())?;
        Ok(std::net::TcpStream::from(socket))
    })?;
    let server = accept(&listener)?.0;
    Ok(Pair { client, server })
}

fn word(line: &str, word: &str) -> bool {
    line.split_whitespace().any(|other| other == word)
}

/// Returns the number after `key`, up to the first character that is no digit.
fn number(line: &str, key: &str) -> Option<u64> {
    let word = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix(key))?;
    word.split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

/// `pacing_rate CURRENT/MAXIMUM`, the maximum.
fn maximum_rate(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    words.find(|word| *word == "pacing_rate")?;
    Some(words.next()?.split_once('/')?.1)
}

/// Returns the seconds left of `timer:(keepalive,8min20sec,0)`.
fn keepalive(line: &str) -> Option<u64> {
    let timer = line.split("timer:(keepalive,").nth(1)?.split(',').next()?;
    let (minutes, seconds) = timer.split_once("min").unwrap_or(("0", timer));
    let seconds = seconds.split(|c: char| !c.is_ascii_digit()).next()?;
    Some(minutes.parse::<u64>().ok()? * 60 + seconds.parse().unwrap_or(0))
}
