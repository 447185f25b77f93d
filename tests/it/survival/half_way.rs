//! The daemon's process dies while a connection is not one yet.

use std::io::Write as _;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use pepd_testbed::traffic::{Pattern, accept, connect, receive_exactly};
use pepd_testbed::{Family, Stage, Via, require};
use rstest::rstest;

use crate::harness::PEPD;

/// What keeps the server from hearing of anybody.
const DEAF: &str = "
    nft add table inet deaf
    nft 'add chain inet deaf input { type filter hook input priority 0; }'
    nft add rule inet deaf input 'tcp flags & (syn|ack) == syn drop'
";

/// A client that was answered early, and whose destination has not answered yet, whether the process
/// that dies has accepted it or not: the next one connects it.
#[rstest]
fn a_client_that_was_answered_is_served(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let mut stage = Stage::open(Via::Early, PEPD)?;
    let listener = stage.world.listen(family)?;
    stage.world.server().sh(DEAF)?;
    let mut client = connect(stage.world.client(), listener.local_addr()?)?;
    let pattern = Pattern::new(5);
    client.write_all(pattern.piece(0, 1000))?;
    stage.pepd()?.dies(Signal::SIGKILL)?;
    stage.world.server().sh("nft delete table inet deaf")?;
    let (server, peer) = accept(&listener)?;
    ensure!(peer == client.local_addr()?, "{peer}");
    receive_exactly(&server, &pattern, 0, 1000)?;
    stage.finish()
}

/// A SYN that is held is lost with whoever held it, and the client's next one is not.
#[rstest]
fn a_held_syn_is_held_again(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root, program("nft"));
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let listener = stage.world.listen(family)?;
    stage.world.server().sh(DEAF)?;
    let address = listener.local_addr()?;
    std::thread::scope(|scope| {
        let world = &stage.world;
        let client = scope.spawn(move || connect(world.client(), address));
        pepd_testbed::wait_until(crate::harness::LIMIT, "the SYN has come", || {
            let seen = world.hb().sh("cat /proc/net/netfilter/nfnetlink_queue");
            seen.is_ok_and(|queues| {
                let mut held = queues
                    .lines()
                    .filter_map(|line| line.split_whitespace().nth(2));
                held.any(|held| held != "0")
            })
        })?;
        let pepd = stage.pepd.as_mut().expect("it runs");
        pepd.dies(Signal::SIGKILL)?;
        world.server().sh("nft delete table inet deaf")?;
        let (server, peer) = accept(&listener)?;
        let client = client.join().unwrap()?;
        ensure!(peer == client.local_addr()?, "{peer}");
        let pattern = Pattern::new(6);
        (&client).write_all(pattern.piece(0, 1000))?;
        receive_exactly(&server, &pattern, 0, 1000)
    })?;
    // That one was routed, if its second SYN came before the next process was up.
    ensure!(stage.world.probe(family)?.1, "not split");
    stage.finish()
}
