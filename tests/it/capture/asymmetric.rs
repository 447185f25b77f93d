//! Answers that do not come back through the helper box: no such connection can be split, and none
//! is lost.

use std::net::SocketAddr;

use anyhow::Result;
use pepd_testbed::forge::{Forger, Segment, flag};
use pepd_testbed::traffic::{Pair, listen};
use pepd_testbed::{Family, Stage, Via, World, accepted, require, wait_until};
use rstest::rstest;

use crate::harness::{LIMIT, PEPD};

/// The client resets the answer to the box's SYN, and that RST tells the box: the SYN that it holds
/// goes on unsplit, and those that follow are not held at all.
#[rstest]
fn answers_that_take_another_way_are_noticed(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let config = World::config();
    let mut stage = Stage::in_world(World::two_ways()?, Via::Pepd, PEPD, &config)?;
    stage.world.pair(family)?.exchange(10_000)?;
    assert_eq!(accepted(stage.world.hb())?, 0, "it cannot have been split");
    let set = match family {
        Family::V4 => "detour4",
        Family::V6 => "detour6",
    };
    wait_until(LIMIT, "the pair is known", || {
        stage
            .world
            .hb()
            .sh(&format!("nft list set inet pepd {set}"))
            .is_ok_and(|listed| listed.contains("expires"))
    })?;
    // The log is written by a thread of its own.
    let pepd = stage.pepd()?;
    wait_until(LIMIT, "the log says so", || {
        pepd.log().contains("does not come back through this box")
    })?;

    // The client repeats its SYN at once after its RST (tcp_rcv_synsent_state_process), perhaps
    // before the pair was known.
    let (held, detoured) = (count(&stage, "held")?, count(&stage, "detoured")?);
    stage.world.pair(family)?.exchange(10_000)?;
    // Nor is it forgotten when the kernel's table is replaced.
    stage
        .pepd()?
        .reload(&config.replace("\"reno\"", "\"cubic\""))?;
    stage.world.pair(family)?.exchange(10_000)?;
    assert_eq!(count(&stage, "held")?, held, "the others were not held");
    assert!(count(&stage, "detoured")? >= detoured + 2);

    // Another host's answers come back as they should.
    let address = SocketAddr::new(World::server_address(family), 0);
    let listener = listen(stage.world.server(), address)?;
    Pair::through(&listener, stage.world.sibling())?.exchange(10_000)?;
    assert!(accepted(stage.world.hb())? >= 1);
    stage.finish()
}

/// Returns the packets that a counter of the box's has counted.
fn count(stage: &Stage, counter: &str) -> Result<u64> {
    let listed = stage
        .world
        .hb()
        .sh(&format!("nft list counter inet pepd {counter}"))?;
    let mut words = listed
        .split_whitespace()
        .skip_while(|word| *word != "packets");
    Ok(words.nth(1).unwrap().parse()?)
}

/// Whoever does not know what number the box's SYN had can say nothing about the way of its answer:
/// a SYN and a RST in somebody's name leave that host's connections as they are.
#[rstest]
fn a_forged_reset_says_nothing_about_the_way(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    world.pair(family)?.exchange(1000)?;
    let address = World::server_address(family);
    // A port that does not answer, so that the SYN is held while the RSTs come.
    world.server().sh("nft add table inet silent; \
         nft add chain inet silent c '{ type filter hook input priority 0; }'; \
         nft add rule inet silent c tcp dport 4000 drop")?;
    // The client's own name, but somebody else's packets.
    let from = SocketAddr::new(World::client_address(family), 40_000);
    let to = SocketAddr::new(address, 4000);
    let forger = Forger::new(world.sibling())?;
    let held = || {
        let said = world.hb().sh("nft list counter inet pepd held");
        said.unwrap_or_default()
    };
    let before = held();
    forger.send(&Segment::syn(from, to, 1000))?;
    wait_until(LIMIT, "the SYN is held", || held() != before)?;
    wait_until(LIMIT, "the box has asked", || {
        let sockets = world.hb().sh("ss -Htn state syn-sent");
        sockets.is_ok_and(|sockets| sockets.contains(":4000"))
    })?;
    for number in (0..1000)
        .map(|step: u32| step.wrapping_mul(4_294_967))
        .chain([0, 1000, 1001])
    {
        forger.send(&Segment::new(flag::RST, from, to, number))?;
    }
    // Those before them in the queue have been read.
    world.pair(family)?.exchange(1000)?;
    let (_pair, split) = world.probe(family)?;
    assert!(split, "the client's connections are split as before");
    let sets = world
        .hb()
        .sh("nft list set inet pepd detour4; nft list set inet pepd detour6")?;
    assert!(!sets.contains("expires"), "{sets}");
    stage.finish()
}
