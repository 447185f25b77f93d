//! How long it takes to be connected, to be told that there is nobody, and to reach another
//! address: as long as without pepd. All of it is about times, hence on the guest's virtual clock.
//! The tables in docs/handshake.md come from the example `handshake_times`, which measures more.

#[path = "../../../examples/handshake_times/times/mod.rs"]
mod setting;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pepd_testbed::traffic::listen;
use pepd_testbed::{Family, Pepd, World, require, run, wait_until};
use rstest::rstest;
use setting::{DEAD, LIMIT, LONG, SHORT};
use socket2::{Domain, SockRef, Socket, Type};

use crate::harness::PEPD;

/// What a few processes take to run, which the virtual clock counts, too.
const WORK: Duration = Duration::from_millis(20);

/// End to end a client is connected after the round trip of the whole path, and has its answer
/// after two, as without pepd.
#[rstest]
fn the_first_byte_comes_as_soon_as_without_pepd(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, virtual_time);
    for split in [false, true] {
        let world = setting::path(SHORT, LONG)?;
        let _daemon = split
            .then(|| Pepd::start(PEPD, world.hb(), &World::config()))
            .transpose()?;
        let listener = world.listen(family)?;
        let to = listener.local_addr()?;
        // The first one loads what runs.
        let mut took = (Duration::ZERO, Duration::ZERO);
        for _ in 0..2 {
            let server = listener.try_clone()?;
            let server = std::thread::spawn(move || setting::answer(&server, 1));
            took = world.client().run(|| setting::question(to, false))?;
            server.join().unwrap()?;
        }
        println!("{family}, split: {split}: {took:?}");
        for (time, round_trips) in [(took.0, 1), (took.1, 2)] {
            let least = 2 * (SHORT + LONG) * round_trips;
            assert!(
                (least..least + WORK).contains(&time),
                "{family}, split: {split}: {time:?} for {round_trips} round trips"
            );
        }
    }
    Ok(())
}

/// More connections at once than may be pending: those for which there is no place are routed, and
/// no one waits for a second SYN.
#[rstest]
fn many_connections_at_once_need_no_second_syn(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, virtual_time);
    const CLIENTS: usize = 100;
    let world = setting::path(SHORT, LONG)?;
    // Of which a source may have half.
    let config = format!("{}\n[limits]\npending = 40\n", World::config());
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    let address = SocketAddr::new(World::server_address(family), 4000);
    let listener = listen(world.server(), address)?;
    SockRef::from(&listener).listen(1024)?;
    world.client().run(|| {
        let sockets = (0..CLIENTS)
            .map(|_| {
                let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
                socket.set_nonblocking(true)?;
                // Under way.
                let _ = socket.connect(&address.into());
                Ok(socket)
            })
            .collect::<Result<Vec<_>>>()?;
        let started = Instant::now();
        wait_until(LIMIT, "all are connected", || {
            sockets.iter().all(|socket| socket.peer_addr().is_ok())
        })?;
        let time = started.elapsed();
        println!("{family}: {time:?}");
        // A SYN is sent again after a second.
        ensure!(time < Duration::from_millis(900), "{family}: {time:?}");
        Ok(())
    })?;
    let said = world.hb().sh("nft list counter inet pepd captured")?;
    ensure!(!said.contains("packets 0 "), "none was split: {said}");
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// Of two addresses of a name the first is dead: curl has the page from the second in the same
/// time.
#[rstest]
fn curl_fails_over_as_fast_as_without_pepd(
    #[values(0, 1, 2)] how: usize,
    #[values(Family::V4, Family::V6)] first: Family,
    #[values(Family::V4, Family::V6)] second: Family,
) -> Result<()> {
    require!(root, virtual_time, program("curl"));
    let (name, rule) = DEAD[how];
    let mut took = Vec::new();
    for split in [false, true] {
        let world = setting::path(SHORT, LONG)?;
        setting::make_dead(&world, rule)?;
        let _daemon = split
            .then(|| Pepd::start(PEPD, world.hb(), &World::config()))
            .transpose()?;
        setting::serve_pages(world.server())?;
        let mut time = 0.0;
        // The first one loads what runs.
        for _ in 0..2 {
            let mut curl = setting::curl(&world, first, second);
            time = run(&mut curl, LIMIT)?.success()?.trim().parse()?;
        }
        took.push(time);
    }
    let ratio: f64 = took[1] / took[0];
    println!("{first}, which {name}, then {second}: {took:?} s, ratio {ratio:.3}");
    assert!(
        ratio < 1.1,
        "{first}, which {name}, then {second}: {took:?} s"
    );
    Ok(())
}

/// `connect` to a closed port, an absent host and a host that drops: the same errno as without
/// pepd, within 10 % of the time, through one box and through three.
#[rstest]
fn a_client_is_told_as_soon_as_without_pepd(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(false, true)] chain: bool,
) -> Result<()> {
    require!(root, virtual_time);
    let routed = setting::answers(Path::new(PEPD), family, chain, false)?;
    let split = setting::answers(Path::new(PEPD), family, chain, true)?;
    println!("{family}, chain: {chain}: {routed:?}, {split:?}");
    let expected = [111, 113, 110];
    for ((routed, split), errno) in routed.iter().zip(&split).zip(expected) {
        assert_eq!((routed.errno, split.errno), (errno, errno));
        // A path without delay refuses in no time; what the boxes add is bounded separately.
        let most = routed.time.mul_f64(1.1) + Duration::from_millis(2);
        assert!(
            split.time < most,
            "{family}, chain: {chain}: {routed:?}, {split:?}"
        );
        assert!(
            routed.time < split.time.mul_f64(1.1),
            "{routed:?}, {split:?}"
        );
    }
    Ok(())
}
