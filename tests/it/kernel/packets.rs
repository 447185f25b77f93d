//! Real connections through the table: who answers, the box or the server?

use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;

use anyhow::Result;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use pepd_net::Action;
use pepd_testbed::{require, wait_until};
use socket2::{Domain, Socket, Type};

use super::netns::{Netns, PORT, request, rule};
use super::world::{
    Answered, CLIENT4, CLIENT6, LONG, OUTSIDE4, OUTSIDE6, SAME4, SAME6, SERVER4, SERVER6, SSH, WEB,
    World, listener, poll_all, transfer,
};
use crate::harness::LIMIT;

#[test]
fn only_between_campuses() -> Result<()> {
    require!(root);
    let (world, installed) = World::with(&request());
    assert_eq!(world.connect(SERVER4, WEB), Answered::Box);
    assert_eq!(world.connect(SERVER6, WEB), Answered::Box);
    assert_eq!(world.count("captured"), 2);
    for server in [SAME4, SAME6, OUTSIDE4, OUTSIDE6] {
        assert_eq!(world.connect(server, WEB), Answered::Server, "{server}");
    }
    assert_eq!(world.count("captured"), 2);

    world.hb.block_on(|| installed.remove()).unwrap();
    assert_eq!(world.connect(SERVER4, WEB), Answered::Server);
    assert_eq!(world.connect(SERVER6, WEB), Answered::Server);
    Ok(())
}

#[test]
fn the_first_rule_that_matches_decides() -> Result<()> {
    require!(root);
    let mut request = request();
    request.rules = vec![
        rule(&[], &["10.2.0.0/24"], &[SSH..=SSH], Action::Split),
        rule(
            &["10.1.0.0/24", "fd00:a::/64"],
            &[],
            &[20..=30],
            Action::Bypass,
        ),
    ];
    let (world, _installed) = World::with(&request);
    assert_eq!(world.connect(SERVER4, SSH), Answered::Box);
    assert_eq!(world.connect(SERVER6, SSH), Answered::Server);
    assert_eq!(world.connect(SERVER6, WEB), Answered::Box);
    assert_eq!(world.count("bypassed"), 1);
    assert_eq!(world.count("captured"), 2);
    Ok(())
}

#[test]
fn a_closed_gate_routes() -> Result<()> {
    require!(root);
    let (world, _installed) = World::with(&request());
    world.gate.close().unwrap();
    assert_eq!(world.connect(SERVER4, WEB), Answered::Server);
    assert_eq!(world.connect(SERVER6, WEB), Answered::Server);
    assert_eq!(world.count("gate_closed"), 2);
    world.gate.renew(LONG).unwrap();
    assert_eq!(world.connect(SERVER4, WEB), Answered::Box);
    assert_eq!(world.connect(SERVER6, WEB), Answered::Box);
    Ok(())
}

#[test]
fn a_source_over_its_limit_is_routed() -> Result<()> {
    require!(root);
    let (world, _installed) = World::with(&request());
    for (client, server) in [(CLIENT4, SERVER4), (CLIENT6, SERVER6)] {
        let client: IpAddr = client.parse().unwrap();
        world.gate.shut_out(client, LONG).unwrap();
        assert_eq!(world.connect(server, WEB), Answered::Server);
        world.gate.let_in(client).unwrap();
        assert_eq!(world.connect(server, WEB), Answered::Box);
    }
    assert_eq!(world.count("source_full"), 2);
    Ok(())
}

#[test]
fn without_a_listener_it_is_routed() -> Result<()> {
    require!(root);
    let (mut world, _installed) = World::with(&request());
    world.end_box_listeners();
    assert_eq!(world.connect(SERVER4, WEB), Answered::Server);
    assert_eq!(world.connect(SERVER6, WEB), Answered::Server);
    assert_eq!(world.count("captured"), 0);
    // The first SYN found nobody, and shut the gate.
    assert_eq!(world.count("no_listener"), 1);
    assert_eq!(world.count("gate_closed"), 2);
    Ok(())
}

#[test]
fn connections_older_than_the_table_go_on() -> Result<()> {
    require!(root);
    let world = World::new();
    let mut old = Vec::new();
    for server in [SERVER4, SERVER6] {
        let to = SocketAddr::new(server.parse().unwrap(), WEB);
        let client = world
            .client
            .run(|| TcpStream::connect_timeout(&to, LIMIT).unwrap());
        let (who, accepted) = world.accept();
        assert_eq!(who, Answered::Server);
        old.push((client, accepted));
    }
    let _installed = world.hb.install(&request()).unwrap();
    world.gate.renew(LONG).unwrap();
    for (client, accepted) in &mut old {
        transfer(client, accepted, 100_000);
        transfer(accepted, client, 100_000);
    }
    Ok(())
}

#[test]
fn an_upstream_leg_works_across_a_narrow_hop() -> Result<()> {
    require!(root);
    let (world, _installed) = World::with(&request());
    for (client, server) in [(CLIENT4, SERVER4), (CLIENT6, SERVER6)] {
        let from = SocketAddr::new(client.parse().unwrap(), 40_000);
        let to = SocketAddr::new(server.parse().unwrap(), WEB);
        // The first packets of full size are answered by the router with ICMP, to the
        // client's address: it has to reach the box's socket.
        let mut leg = world.hb.run(|| connect_as(from, to)).unwrap();
        let (who, mut accepted) = world.accept();
        assert_eq!(who, Answered::Server);
        assert_eq!(accepted.peer_addr().unwrap(), from);
        transfer(&mut leg, &mut accepted, 2_000_000);
        transfer(&mut accepted, &mut leg, 2_000_000);
    }
    Ok(())
}

#[test]
fn a_client_leg_works_across_a_narrow_hop() -> Result<()> {
    require!(root);
    let (world, _installed) = World::with(&request());
    // The other way round: here the server's end is the client, behind the narrow hop.
    for (client, server) in [(SERVER4, CLIENT4), (SERVER6, CLIENT6)] {
        let from = SocketAddr::new(client.parse().unwrap(), 40_000);
        let to = SocketAddr::new(server.parse().unwrap(), WEB);
        let mut client = world.server.run(|| connect_as(from, to)).unwrap();
        let (who, mut leg) = world.accept();
        assert_eq!(who, Answered::Box);
        transfer(&mut leg, &mut client, 2_000_000);
        transfer(&mut client, &mut leg, 2_000_000);
    }
    Ok(())
}

/// Connects from this address, whether it is the host's own or not, as the relay does.
fn connect_as(from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    match from {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
    }
    socket.bind(&from.into())?;
    socket.connect_timeout(&to.into(), LIMIT)?;
    Ok(socket.into())
}

/// Ends a connection from this port on the box, so that it is in TIME_WAIT there.
fn in_time_wait(world: &World, from: SocketAddr, to: SocketAddr) {
    let mut client = world.client.run(|| connect_as(from, to)).unwrap();
    let (who, mut leg) = world.accept();
    assert_eq!(who, Answered::Box);
    transfer(&mut client, &mut leg, 10);
    // The box closes first.
    drop(leg);
    assert_eq!(client.read_to_end(&mut Vec::new()).unwrap(), 0);
    drop(client);
    wait_until(LIMIT, "the box's socket is in TIME_WAIT", || {
        let sockets = world.hb.output(
            "ss",
            &["-Htan", "state", "time-wait", "dport", "=", ":40000"],
        );
        sockets.contains(&from.ip().to_string())
    })
    .unwrap();
}

#[test]
fn a_port_may_be_used_again_while_its_last_connection_is_in_time_wait() -> Result<()> {
    require!(root);
    let (world, _installed) = World::with(&request());
    for (client, server) in [(CLIENT4, SERVER4), (CLIENT6, SERVER6)] {
        let from = SocketAddr::new(client.parse().unwrap(), 40_000);
        let to = SocketAddr::new(server.parse().unwrap(), WEB);
        in_time_wait(&world, from, to);
        in_time_wait(&world, from, to);

        // And then it is routed.
        world.gate.close().unwrap();
        let mut client = world.client.run(|| connect_as(from, to)).unwrap();
        let (who, mut accepted) = world.accept();
        assert_eq!(who, Answered::Server);
        transfer(&mut client, &mut accepted, 100_000);
        transfer(&mut accepted, &mut client, 100_000);
        world.gate.renew(LONG).unwrap();
    }
    Ok(())
}

#[test]
fn a_port_may_be_routed_while_its_last_upstream_leg_is_in_time_wait() -> Result<()> {
    require!(root);
    let (world, _installed) = World::with(&request());
    for (client, server) in [(CLIENT4, SERVER4), (CLIENT6, SERVER6)] {
        let from = SocketAddr::new(client.parse().unwrap(), 40_000);
        let to = SocketAddr::new(server.parse().unwrap(), WEB);
        let leg = world.hb.run(|| connect_as(from, to)).unwrap();
        let (_, mut accepted) = world.accept();
        drop(leg);
        assert_eq!(accepted.read_to_end(&mut Vec::new()).unwrap(), 0);
        drop(accepted);
        wait_until(LIMIT, "the upstream leg is in TIME_WAIT", || {
            let sockets = world.hb.output(
                "ss",
                &["-Htan", "state", "time-wait", "sport", "=", ":40000"],
            );
            sockets.contains(&from.ip().to_string())
        })?;

        world.gate.close().unwrap();
        let mut client = world.client.run(|| connect_as(from, to)).unwrap();
        let (who, mut accepted) = world.accept();
        assert_eq!(who, Answered::Server);
        transfer(&mut client, &mut accepted, 100_000);
        transfer(&mut accepted, &mut client, 100_000);
        world.gate.renew(LONG).unwrap();
    }
    Ok(())
}

#[test]
fn the_operators_mark_bits_survive() -> Result<()> {
    require!(root);
    let (world, _installed) = World::with(&request());
    world.hb.nft(
        "table inet operator { \
         counter kept { }; counter lost { }; \
         chain early { type filter hook prerouting priority raw; iifname west meta mark set 0x5; }; \
         chain late { type filter hook prerouting priority -140; \
           iifname west meta mark 0x70000005 counter name kept; \
           iifname west meta mark & 0xff != 0x5 counter name lost; }; }",
    );
    for server in [SERVER4, SERVER6] {
        let to = SocketAddr::new(server.parse().unwrap(), WEB);
        assert_eq!(world.connect(server, WEB), Answered::Box, "{to}");
    }
    let counter = |name: &str| world.hb.nft(&format!("list counter inet operator {name}"));
    assert!(
        !counter("kept").contains("packets 0 "),
        "{}",
        counter("kept")
    );
    assert!(
        counter("lost").contains("packets 0 "),
        "{}",
        counter("lost")
    );
    Ok(())
}

#[test]
fn nobody_connects_to_the_listener_itself() -> Result<()> {
    require!(root);
    let mut request = request();
    // So that even the listener's IPv6 address is a destination of a campus.
    request.campuses[1].prefixes.push("::/0".parse().unwrap());
    let (world, _installed) = World::with(&request);
    let refused = |netns: &Netns, address: &str| {
        let to = SocketAddr::new(address.parse().unwrap(), PORT);
        let error = netns
            .run(|| TcpStream::connect_timeout(&to, LIMIT))
            .expect_err(address);
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{address}");
    };
    refused(&world.hb, "127.73.0.1");
    assert_eq!(world.count("refused_direct"), 1);
    refused(&world.client, "100::73:0:1");
    assert_eq!(world.count("refused_direct"), 2);
    for own in ["10.1.0.1", "fd00:a::1", "192.0.2.1", "2001:db8:1::1"] {
        refused(&world.client, own);
    }
    // The port is an ordinary one for everybody else.
    assert_eq!(world.connect(SERVER4, PORT), Answered::Box);
    assert_eq!(world.connect(OUTSIDE4, PORT), Answered::Server);
    Ok(())
}

#[test]
fn the_box_itself_is_never_captured() -> Result<()> {
    require!(root);
    let mut request = request();
    request.campuses[1]
        .prefixes
        .push("192.0.2.0/24".parse().unwrap());
    let (world, _installed) = World::with(&request);
    // From a campus to the box's own address in another campus.
    let own = SocketAddr::new("192.0.2.1".parse().unwrap(), WEB);
    let service = world.hb.run(|| listener(own, false));
    let client = world
        .client
        .run(|| TcpStream::connect_timeout(&own, LIMIT).unwrap());
    let mut fds = [PollFd::new(service.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(LIMIT).unwrap();
    assert_eq!(poll_all(&mut fds, timeout), 1);
    assert_eq!(world.count("captured"), 0);
    drop(client);
    Ok(())
}

#[test]
fn a_wildcard_listener_of_another_proxy_takes_nothing_of_ours() -> Result<()> {
    require!(root);
    let mut request = request();
    request.rules = vec![rule(&[], &[], &[WEB..=WEB], Action::Bypass)];
    let (world, _installed) = World::with(&request);
    let _other: Vec<Socket> = ["0.0.0.0", "::"]
        .iter()
        .map(|address| {
            let address = SocketAddr::new(address.parse().unwrap(), WEB);
            world.hb.run(|| listener(address, true))
        })
        .collect();
    assert_eq!(world.connect(SERVER4, WEB), Answered::Server);
    assert_eq!(world.connect(SERVER6, WEB), Answered::Server);
    Ok(())
}
