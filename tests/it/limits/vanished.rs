//! Clients that vanish, and those that are only silent.

use anyhow::{Result, ensure};
use pepd_testbed::traffic::{End, Pair, Pattern, receive, receive_exactly, send};
use pepd_testbed::{Family, Stage, World, established, require, splits, wait_until};
use rstest::rstest;

use crate::harness::{LIMIT, PEPD};

/// No FIN comes from a client whose link is cut. What it has is free once its keepalive has found
/// out, on a box where each connection counts; one that is merely idle lives on.
#[rstest]
fn a_vanished_clients_slot_comes_back_and_an_idle_one_keeps_its_own(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(false, true)] half_closed: bool,
) -> Result<()> {
    require!(root);
    let keepalive = "keepalive = { idle = \"1s\", interval = \"1s\", count = 3 }";
    let config = World::config().replace("[leg.lan]", &format!("[leg.lan]\n{keepalive}"));
    let limits = "\n[limits]\nconnections = 2\nconnections_per_source = 2\n";
    let stage = Stage::with_config(PEPD, &(config + limits))?;
    let world = &stage.world;
    let (idle, split) = world.probe(family)?;
    ensure!(split, "the idle one is routed");
    let server = World::server_address(family);
    let open = || Pair::open(world.sibling(), world.server(), server);
    let (vanishing, split) = splits(world.hb(), open)?;
    ensure!(split, "the one that is to vanish is routed");
    for pair in [&idle, &vanishing] {
        pair.exchange(1000)?;
        if half_closed {
            pair.server.shutdown(std::net::Shutdown::Write)?;
            let pattern = Pattern::new(0);
            ensure!(receive(&pair.client, &pattern, 0)? == (0, End::Fin));
        }
        // The client speaks last, and so has acknowledged all that it got, a FIN too:
        // nothing is under way.
        send(&pair.client, &Pattern::new(1), 0, 1000)?;
        receive_exactly(&pair.server, &Pattern::new(1), 0, 1000)?;
    }
    wait_until(LIMIT, "a third one is routed", || {
        world.probe(family).is_ok_and(|(_, split)| !split)
    })?;
    world.sibling().sh("ip link set dev to-hb down")?;
    if !half_closed {
        let end = receive(&vanishing.server, &Pattern::new(0), 0)?;
        ensure!(end == (0, End::RESET), "{end:?}");
    }
    wait_until(LIMIT, "the slot comes back", || {
        world.probe(family).is_ok_and(|(_, split)| split)
    })?;
    wait_until(LIMIT, "nothing is left of it", || {
        established(world.hb()).is_ok_and(|sockets| sockets <= 2)
    })?;
    let pattern = Pattern::new(1000);
    send(&idle.client, &pattern, 0, 1000)?;
    receive_exactly(&idle.server, &pattern, 0, 1000)?;
    stage.finish()
}
