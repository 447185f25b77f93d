//! What comes after the RST that ended its connection: another path, or another processor, was
//! faster with the RST, or the sender has not heard of its own yet.

use std::net::SocketAddr;

use anyhow::Result;
use pepd_testbed::forge::{Forger, Segment, flag};
use pepd_testbed::traffic::{End, Pair, Pattern, connect_from, receive};
use pepd_testbed::{Family, Netns, Stage, Via, require, wait_until};
use rstest::rstest;

use super::endings::{By, open, reset};
use crate::handshake::held_syn::counter_in;
use crate::harness::{LIMIT, PEPD};

/// The sequence number of what comes late, and that of the RST which it is to be answered with (RFC
/// 9293, section 3.5.2).
const LATE: u32 = 0x1234_5678;
const ANSWER: u32 = 0x2345_6789;

/// The segments that come late from each side.
const SEGMENTS: u64 = 10;

/// The numbers that the late ones carry mean nothing to the other host, unless it is unlucky: then it
/// takes them for its own connection's, with which the proxy has not finished yet.
#[rstest]
fn nothing_comes_through_after_a_reset(
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(By::Client, By::Server)] by: By,
) -> Result<()> {
    require!(root, program("nft"));
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    let pair = open(&stage, family, by)?;
    pair.exchange(1000)?;
    let (first, second) = match by {
        By::Client => (world.client(), world.server()),
        By::Server => (world.server(), world.client()),
    };
    let (from, to) = (pair.client.local_addr()?, pair.server.local_addr()?);
    for host in [first, second] {
        watch(host)?;
    }
    reset(pair.client)?;
    let end = receive(&pair.server, &Pattern::new(0), 0)?;
    assert_eq!(end, (0, End::RESET));
    drop(pair.server);
    for (host, other, from, to) in [(first, second, from, to), (second, first, to, from)] {
        come_late(host, from, to)?;
        wait_until(LIMIT, "each has been answered with a RST", || {
            counter_in(host, "late", "answers").is_ok_and(|answers| answers == SEGMENTS)
        })?;
        assert_eq!(counter_in(other, "late", "late")?, 0, "from {from}");
    }
    // The same addresses and ports again.
    let (client, server) = match by {
        By::Client => (from, to),
        By::Server => (to, from),
    };
    let listener = pepd_testbed::traffic::listen(world.server(), server)?;
    let client = connect_from(world.client(), client, server)?;
    let (server, _) = listener.accept()?;
    Pair { client, server }.exchange(1000)?;
    stage.finish()
}

/// Counts what comes late, and the RSTs that it is answered with.
fn watch(host: &Netns) -> Result<()> {
    host.sh(&format!(
        "nft add table inet late; \
         nft add counter inet late late; nft add counter inet late answers; \
         nft add chain inet late c '{{ type filter hook prerouting priority -500; }}'; \
         nft add rule inet late c tcp sequence {LATE} counter name late; \
         nft add rule inet late c 'tcp flags & rst == rst' tcp sequence {ANSWER} counter name answers"
    ))?;
    Ok(())
}

/// Sends segments of a connection that has ended.
fn come_late(host: &Netns, from: SocketAddr, to: SocketAddr) -> Result<()> {
    let forger = Forger::new(host)?;
    for _ in 0..SEGMENTS {
        let mut segment = Segment::new(flag::ACK | flag::PSH, from, to, LATE);
        segment.acknowledgement = ANSWER;
        segment.payload = b"late".to_vec();
        forger.send(&segment)?;
    }
    Ok(())
}
