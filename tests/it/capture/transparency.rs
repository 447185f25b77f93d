//! Who sees whom, what is split and what is left alone.

use std::io::ErrorKind;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use pepd_testbed::traffic::{
    End, Pair, Pattern, accept, connect, connect_from, kind, listen, receive,
};
use pepd_testbed::{Family, Nginx, Stage, Via, World, accepted, require, run, splits, wait_until};
use rstest::rstest;

use crate::harness::{LIMIT, PEPD};

#[rstest]
fn nginx_logs_the_clients_own_address_and_port(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nginx"), program("curl"));
    let stage = Stage::open(via, PEPD)?;
    let nginx = Nginx::start(stage.world.server())?;
    nginx.put_file("page", b"text")?;
    let (client, server) = (World::client_address(family), World::server_address(family));
    let mut curl = stage.world.client().command("curl");
    curl.args([
        "-sSg",
        "--local-port",
        "23456",
        "-w",
        " %{remote_ip} %{local_port}",
    ]);
    let said = run(curl.arg(nginx.url(server, "page")), LIMIT)?.success()?;
    assert_eq!(said, format!("text {server} 23456"));
    let line = nginx.logged("page")?;
    assert!(
        line.starts_with(&format!("{client} 23456 {server} 80 ")),
        "{line}"
    );
    stage.finish()
}

/// The server may be the one that connects.
#[rstest]
fn both_campuses_may_connect_to_the_other(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    let (client, server) = (World::client_address(family), World::server_address(family));
    for (from, to, address) in [
        (world.client(), world.server(), server),
        (world.server(), world.client(), client),
        (
            world.server(),
            world.sibling(),
            World::sibling_address(family),
        ),
    ] {
        // `Pair::open` compares the addresses that either end sees.
        let (_, split) = splits(world.hb(), || Pair::open(from, to, address))?;
        assert_eq!(split, via == Via::Pepd, "to {address}");
    }
    stage.finish()
}

#[rstest]
fn what_does_not_cross_between_two_campuses_is_not_split(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    let (server, outsider) = (
        World::server_address(family),
        World::outsider_address(family),
    );
    for (from, to, address) in [
        (
            world.client(),
            world.sibling(),
            World::sibling_address(family),
        ),
        (world.client(), world.outsider(), outsider),
        (world.outsider(), world.server(), server),
    ] {
        let (_, split) = splits(world.hb(), || Pair::open(from, to, address))?;
        assert!(!split, "to {address}");
    }
    assert!(world.probe(family)?.1);
    stage.finish()
}

#[rstest]
fn a_bypass_rule_leaves_its_connections_alone(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let rules = r#"
[[rule]]
source = ["10.1.0.2/32", "fd00:a::2/128"]
destination_port = [4000]
action = "split"

[[rule]]
source = ["10.1.0.0/24", "fd00:a::/64"]
destination_port = [22, "4000-4100"]
action = "bypass"
"#;
    let stage = Stage::with_config(PEPD, &format!("{}{rules}", World::config()))?;
    let world = &stage.world;
    for (port, from, split) in [
        (4000, world.client(), true),
        (4001, world.client(), false),
        (4100, world.client(), false),
        (4101, world.client(), true),
        (22, world.client(), false),
        // Another source, so the rule does not match.
        (4002, world.sibling(), true),
    ] {
        let address = SocketAddr::new(World::server_address(family), port);
        let listener = listen(world.server(), address)?;
        let (_, seen) = splits(world.hb(), || Pair::through(&listener, from))?;
        assert_eq!(seen, split, "port {port}");
    }
    stage.finish()
}

/// A gateway's other campus is the whole world; the gateway itself is still no part of it.
#[rstest]
fn a_gateway_leaves_its_own_connections_alone(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let config = World::config().replace(
        "\"10.2.0.0/16\", \"fd00:b::/48\"",
        "\"0.0.0.0/0\", \"::/0\"",
    );
    let stage = Stage::with_config(PEPD, &config)?;
    let world = &stage.world;
    for (from, to, address, accepts) in [
        // Split: accepted by the daemon.
        (
            world.client(),
            world.server(),
            World::server_address(family),
            1,
        ),
        (
            world.client(),
            world.outsider(),
            World::outsider_address(family),
            1,
        ),
        (
            world.outsider(),
            world.client(),
            World::client_address(family),
            1,
        ),
        // Both ends in the outer campus, or both in the inner one.
        (
            world.outsider(),
            world.server(),
            World::server_address(family),
            0,
        ),
        (
            world.client(),
            world.sibling(),
            World::sibling_address(family),
            0,
        ),
        // To the gateway: accepted once, by the listener that was meant, and not twice.
        (world.client(), world.hb(), World::hb_address(family), 1),
        (world.outsider(), world.hb(), World::hb_address(family), 1),
        // From the gateway.
        (world.hb(), world.server(), World::server_address(family), 0),
        (world.hb(), world.client(), World::client_address(family), 0),
    ] {
        accepts_exactly(world, accepts, || Pair::open(from, to, address))
            .with_context(|| format!("{} to {}", from.name(), to.name()))?;
    }
    stage.finish()
}

/// Checks that the box accepts `wanted` connections for the one that `open` makes. The kernel may
/// count one twice ([`accepted`]), but not each time.
fn accepts_exactly(world: &World, wanted: u64, open: impl Fn() -> Result<Pair>) -> Result<()> {
    let mut counted = Vec::new();
    while counted.last() != Some(&wanted) {
        ensure!(
            counted.len() < 10 && counted.iter().all(|&count| count > wanted && wanted > 0),
            "accepted {counted:?} times instead of {wanted}"
        );
        let before = accepted(world.hb())?;
        open()?.exchange(10_000)?;
        counted.push(accepted(world.hb())? - before);
    }
    Ok(())
}

/// As programs do which insist on a port of their own: the server has closed first, and the next
/// connection comes from the same port while TIME-WAIT lasts.
#[rstest]
fn a_client_port_may_be_used_again_in_time_wait(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    let local = SocketAddr::new(World::client_address(family), 34_567);
    let listener = world.listen(family)?;
    for round in 0..20 {
        // Faster than the helper box has closed its own two sockets, and the server would see
        // another port: that fallback is not what is tested here.
        wait_until(
            LIMIT,
            "the helper box has closed the connection before",
            || {
                let sockets = world.hb().sh("ss -tanH").unwrap();
                !sockets
                    .lines()
                    .any(|line| !line.starts_with("TIME-WAIT") && line.contains(":34567"))
            },
        )?;
        let client = connect_from(world.client(), local, listener.local_addr()?)?;
        let (server, peer) = accept(&listener).with_context(|| format!("round {round}"))?;
        assert_eq!(peer, local, "round {round}");
        let pair = Pair { client, server };
        pair.exchange(1000)?;
        let Pair { client, server } = pair;
        drop(server);
        assert_eq!(receive(&client, &Pattern::new(0), 0)?, (0, End::Fin));
    }
    stage.finish()
}

/// A connection straight to the listener would find the listener as its own destination, and
/// go round until the descriptors run out.
#[rstest]
fn the_listener_serves_no_one_who_asks_for_it(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    stage.world.pair(family)?;
    let descriptors = stage.pepd()?.descriptors()?;
    let world = &stage.world;
    let own = match family {
        Family::V4 => "127.0.0.1:7300".parse()?,
        Family::V6 => "[::1]:7300".parse()?,
    };
    let listener = SocketAddr::new(World::hb_address(family), 7300);
    for (from, to) in [
        (world.client(), listener),
        (world.server(), listener),
        (world.outsider(), listener),
        (world.hb(), listener),
        (world.hb(), own),
    ] {
        for _ in 0..5 {
            let refused = connect(from, to).expect_err("a connection to the listener");
            assert_eq!(kind(&refused), Some(ErrorKind::ConnectionRefused), "{to}");
        }
    }
    world.pair(family)?;
    let now = stage.pepd()?.descriptors()?;
    assert!(
        now <= descriptors + 8,
        "{descriptors} descriptors before, {now} now"
    );
    stage.finish()
}
