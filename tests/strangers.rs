//! What a host in a campus could make the helper box do that it must not.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Result;
use pepd_testbed::traffic::listen;
use pepd_testbed::{Family, Stage, Via, World, require};

const PEPD: &str = env!("CARGO_BIN_EXE_pepd");

/// An IPv6 packet to ::ffff:127.0.0.1 must not become an IPv4 connection to the box itself
/// (RFC 4942, section 2.1). A gateway's campus `world` contains that address.
#[test]
fn an_ipv4_mapped_destination_does_not_lead_into_the_box() -> Result<()> {
    require!(root, program("nft"));
    let config = World::config().replace(
        "\"10.2.0.0/16\", \"fd00:b::/48\"",
        "\"0.0.0.0/0\", \"::/0\"",
    );
    let stage = Stage::in_world(World::standard()?, Via::Pepd, PEPD, &config)?;
    let inside = listen(stage.world.hb(), (Ipv4Addr::LOCALHOST, 4444).into())?;
    inside.set_nonblocking(true)?;
    // No socket sends such a packet, but address translation does.
    stage.world.client().sh("nft add table ip6 t
         nft 'add chain ip6 t out { type nat hook output priority -100; }'
         nft add rule ip6 t out ip6 daddr fd00:ffff::1 dnat to ::ffff:127.0.0.1")?;
    let target: SocketAddr = "[fd00:ffff::1]:4444".parse()?;
    let outcome = stage
        .world
        .client()
        .run(|| Ok(TcpStream::connect_timeout(&target, Duration::from_secs(3))))?;
    println!("{outcome:?}");
    // The box answers early; what counts is whether anybody inside was reached.
    if let Ok(stream) = &outcome {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        println!("{:?}", std::io::Read::read(&mut &*stream, &mut [0; 10]));
    }
    let reached = inside.accept();
    assert!(
        reached.is_err(),
        "a campus host reached the box: {reached:?}"
    );
    stage.world.pair(Family::V6)?.exchange(100)?;
    stage.finish()
}
