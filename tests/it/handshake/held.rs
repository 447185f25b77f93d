//! Connection establishment end to end: what becomes of a SYN that is held, whatever happens to the
//! daemon meanwhile.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Result, ensure};
use pepd_testbed::traffic::{accept, connect, listen};
use pepd_testbed::{Family, Netns, Stage, Via, World, require};
use rstest::rstest;

use super::held_syn::{
    connect_meanwhile, connected, end_of_silence, held, nothing_is_held, silence, wait_for_gate,
    wait_for_readers,
};
use crate::harness::{PEPD, extended_counter};

/// What happens to the daemon while a SYN is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    Kill,
    Pause,
    Reload,
    ReloadToEarly,
    End,
}

#[rstest]
fn a_held_syn_is_never_lost(
    #[values(
        Event::Nothing,
        Event::Kill,
        Event::Pause,
        Event::Reload,
        Event::ReloadToEarly,
        Event::End
    )]
    event: Event,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let config = World::config().replace("drain = \"5s\"", "drain = \"1s\"");
    let mut stage = Stage::with_config(PEPD, &config)?;
    stage.world.pair(family)?;
    let server = stage.world.server();
    let listener = listen(server, SocketAddr::new(World::server_address(family), 4000))?;
    silence(server, 4000)?;
    let attempt = connect_meanwhile(&stage, listener.local_addr()?)?;
    let mut daemon = stage.pepd.take().unwrap();
    match event {
        Event::Nothing => {}
        Event::Kill => daemon.kill()?,
        Event::Pause => {
            // Longer than the gate stays open: the client's next SYNs are routed.
            daemon.pause()?;
            wait_for_gate(stage.world.hb(), false)?;
            daemon.resume()?;
            // From here on what the client repeats is held. One that is routed and the box's SYN
            // would meet at the server.
            wait_for_gate(stage.world.hb(), true)?;
            wait_for_readers(stage.world.hb())?;
        }
        Event::Reload => {
            // Other listeners too.
            daemon.reload(&config.replace("\"reno\"", "\"cubic\""))?;
        }
        Event::ReloadToEarly => {
            let early = config.replacen("port = 7300", "port = 7300\nhandshake = \"early\"", 1);
            daemon.reload(&early)?;
        }
        Event::End => {
            daemon.stop()?;
        }
    }
    end_of_silence(stage.world.server())?;
    connected(attempt, &listener)?.exchange(100_000)
}

/// With a chain that a hook calls the kernel would drop whatever waits in any queue, and the client would have to wait until
/// it repeats its SYN.
#[rstest]
fn a_reload_drops_nothing_that_is_held(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let config = World::config();
    let mut stage = Stage::with_config(PEPD, &config)?;
    stage.world.pair(family)?;
    let server = stage.world.server();
    let listener = listen(server, SocketAddr::new(World::server_address(family), 4000))?;
    silence(server, 4000)?;
    let attempt = connect_meanwhile(&stage, listener.local_addr()?)?;
    // It says nothing again.
    stage.world.client().sh("nft 'table inet silent {
            chain c { type filter hook output priority 0; tcp dport 4000 drop; }
        }'")?;
    let held_before = held(stage.world.hb());
    let daemon = stage.pepd.as_mut().unwrap();
    for congestion in ["\"cubic\"", "\"reno\""] {
        daemon.reload(&config.replace("\"reno\"", congestion))?;
        ensure!(held(stage.world.hb()) == held_before, "{held_before:?}");
    }
    end_of_silence(stage.world.client())?;
    end_of_silence(stage.world.server())?;
    connected(attempt, &listener)?.exchange(1000)?;
    stage.finish()
}

/// The capture holds SYNs some time before the relay's settings say so: what is answered in between has its verdict.
#[rstest]
fn whoever_is_held_while_a_reload_begins_to_hold_has_a_verdict(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    const TIMES: u32 = 6;
    require!(root, program("nft"));
    let mut stage = Stage::with_config(PEPD, &World::config())?;
    let to = SocketAddr::new(World::server_address(family), 4000);
    let listener = listen(stage.world.server(), to)?;
    let daemon = stage.pepd.as_mut().unwrap();
    let (mut again, mut connections) = (0, 0);
    for _ in 0..TIMES {
        daemon.reload(&World::early_config())?;
        let before = syns_sent_again(stage.world.client())?;
        let over = AtomicBool::new(false);
        connections += std::thread::scope(|scope| -> Result<u64> {
            let clients = scope.spawn(|| -> Result<u64> {
                let mut count = 0;
                while !over.load(Relaxed) {
                    let client = connect(stage.world.client(), to)?;
                    accept(&listener)?;
                    drop(client);
                    count += 1;
                }
                Ok(count)
            });
            let reloaded = daemon.reload(&World::config());
            over.store(true, Relaxed);
            let count = clients.join().unwrap();
            reloaded?;
            count
        })?;
        again += syns_sent_again(stage.world.client())? - before;
    }
    println!("{connections} connections, {again} SYNs sent again");
    ensure!(connections > u64::from(TIMES), "{connections}");
    // A busy machine may take a second for one.
    ensure!(again < u64::from(TIMES) / 2, "{again} of {connections}");
    stage.finish()
}

/// Returns how many SYNs a host has sent again.
fn syns_sent_again(host: &Netns) -> Result<u64> {
    extended_counter(host, "TCPSynRetrans")
}

/// A daemon that was paused must not take up SYNs whose connection has been established without it.
#[rstest]
fn what_was_routed_during_a_pause_goes_on(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(Via::Pepd, PEPD)?;
    stage.world.pair(family)?;
    let pepd = stage.pepd.as_ref().unwrap();
    pepd.pause()?;
    // Its SYN waits unread; one of those that follow is routed, once the gate has closed.
    let pair = stage.world.pair(family)?;
    assert!(
        held(stage.world.hb()).unwrap() > 0,
        "its first SYN still waits"
    );
    pepd.resume()?;
    nothing_is_held(&stage)?;
    pair.exchange(100_000)?;
    stage.finish()
}
