//! The daemon's process dies while a link is gone, or in the moment after it has come back.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use pepd_testbed::traffic::{Pair, Pattern, receive_exactly, send};
use pepd_testbed::{Family, Via, World, require, wait_until};
use rstest::rstest;

use super::outage_times;
use super::outages::{Side, ask, open, status, tell, timer, towards, wait_for_log};
use super::timers::wait_for_doublings;
use crate::harness::{LIMIT, pass};
use crate::relay::endings::reset;
use crate::relay::resets::read_to_end;

/// What is under way when the link goes.
const BYTES: u64 = 16 * 1024;

/// Whoever takes over knows that the link is gone: its connections are not given up, and go on as soon as it is
/// back.
#[rstest]
fn whoever_takes_over_knows_that_the_link_is_gone(
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(Side::Client, Side::Server)] side: Side,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    // Without an outage that is known it would be given up after two seconds.
    let mut stage = open(via, "user_timeout = \"2s\"\n")?;
    let pair = stage.world.pair(family)?;
    pair.exchange(BYTES)?;
    let leg = side.leg();
    tell(&stage, format!("{leg} gone"))?;
    side.lose(&stage.world)?;
    let pattern = Pattern::new(9);
    let (from, to) = towards(&pair, side);
    send(from, &pattern, 0, BYTES)?;
    stage.pepd()?.dies(Signal::SIGKILL)?;
    wait_for_log(&stage, "the link is still gone")?;
    ensure!(status(&stage)?.contains("GONE"), "{}", status(&stage)?);
    let timer = wait_for_doublings(|| timer(&stage.world, &pair.client, side), "on")?;
    side.restore(&stage.world)?;
    let back = Instant::now();
    tell(&stage, format!("{leg} up"))?;
    receive_exactly(to, &pattern, 0, BYTES)?;
    let took = back.elapsed();
    ensure!(took < timer.left, "{took:?}, and the kernel: {timer:?}");
    pair.exchange(BYTES)?;
    wait_for_log(&stage, "legs are restarted")?;
    let status: serde_json::Value = serde_json::from_str(&ask(&stage, "status --json")?)?;
    let outages = status["links"][0]["outages"].as_array().unwrap();
    ensure!(outages.len() == 1, "{status}");
    let outage = &outages[0];
    ensure!(
        outage["ended"].as_f64() > outage["begun"].as_f64(),
        "{status}"
    );
    stage.finish()
}

/// The process dies while the first of many connections are restarted. Whoever takes over restarts them all.
#[rstest]
fn whoever_takes_over_at_the_return_restarts_them_all(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(0, 20)] later: u64,
) -> Result<()> {
    const MANY: usize = 100;
    require!(root, program("nft"), program("ss"));
    // At that rate they begin within half a second.
    let mut stage = open(Via::Pepd, "rate = \"10Mbit/s\"\n")?;
    let socket = stage.world.admin_socket();
    let pairs = (0..MANY).map(|_| stage.world.pair(family));
    let pairs = pairs.collect::<Result<Vec<_>>>()?;
    for pair in &pairs {
        pair.exchange(BYTES)?;
    }
    tell(&stage, "wan gone")?;
    Side::Server.lose(&stage.world)?;
    let pattern = Pattern::new(9);
    for pair in &pairs {
        send(&pair.client, &pattern, 0, BYTES)?;
    }
    let of_first = || timer(&stage.world, &pairs[0].client, Side::Server);
    let timer = wait_for_doublings(of_first, "on")?;
    Side::Server.restore(&stage.world)?;
    let back = Instant::now();
    outage_times::tell(&socket, "up")?;
    pass(Duration::from_millis(later));
    stage.pepd()?.dies(Signal::SIGKILL)?;
    for pair in &pairs {
        receive_exactly(&pair.server, &pattern, 0, BYTES)?;
    }
    let took = back.elapsed();
    println!("{family}, {later} ms: {took:?}, and the kernel: {timer:?}");
    ensure!(took < timer.left, "{took:?}, and the kernel: {timer:?}");
    wait_for_log(&stage, "the link has been up for a moment")?;
    stage.finish()
}

/// Who aborts while the link is gone is heard of when it is back, also where nothing else is under way: a RST is never
/// sent again. So it is where the daemon's process dies before that.
#[rstest]
fn who_aborts_meanwhile_is_heard_of_afterwards(
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(Side::Client, Side::Server)] side: Side,
    #[values(false, true)] dies: bool,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let mut stage = open(via, "")?;
    let Pair { client, server } = stage.world.pair(family)?;
    let (from, to) = match side {
        Side::Client => (server, client),
        Side::Server => (client, server),
    };
    send(&from, &Pattern::new(9), 0, BYTES)?;
    receive_exactly(&to, &Pattern::new(9), 0, BYTES)?;
    tell(&stage, format!("{} gone", side.leg()))?;
    side.lose(&stage.world)?;
    let boxs = format!("src {} and dst {}", from.peer_addr()?, from.local_addr()?);
    reset(from)?;
    wait_until(LIMIT, "the box has heard of it", || {
        let open = stage.world.hb().sh(&format!("ss -Htna {boxs}"));
        open.is_ok_and(|open| open.is_empty())
    })?;
    if dies {
        stage.pepd()?.dies(Signal::SIGKILL)?;
        wait_for_log(&stage, "the link is still gone")?;
    }
    // That it is back may be told a moment too early.
    tell(&stage, format!("{} up", side.leg()))?;
    side.restore(&stage.world)?;
    to.set_read_timeout(Some(LIMIT))?;
    let heard = read_to_end(&to)?;
    ensure!(
        heard == (Vec::new(), Some(ErrorKind::ConnectionReset)),
        "{heard:?}"
    );
    stage.finish()
}

/// What was told holds, though the link's interface says otherwise: it had said so before.
#[test]
fn what_was_told_holds_for_whoever_takes_over() -> Result<()> {
    require!(root, program("nft"));
    let mut stage = open(Via::Pepd, "link = { interface = \"to-server\" }\n")?;
    wait_for_log(&stage, "new connections are split")?;
    tell(&stage, "wan gone")?;
    stage.pepd()?.dies(Signal::SIGKILL)?;
    wait_for_log(&stage, "the link is still gone")?;
    // When that is answered all that was known has been gone through.
    tell(&stage, "lan up")?;
    ensure!(status(&stage)?.contains("GONE"), "{}", status(&stage)?);
    // And then something else is heard.
    stage
        .world
        .server()
        .sh("ip link set to-hb down; ip link set to-hb up")?;
    wait_for_log(
        &stage,
        "the link is up leg=\"wan\" by=\"interface to-server\"",
    )?;
    let (status, log) = stage.pepd.take().unwrap().stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// A leg that is opened after an outage keeps to a rate for some round trips, the first segment of it to a low
/// one. Whoever takes over in that moment gives it back what it had.
#[rstest]
fn whoever_takes_over_after_an_outage_ends_what_was_for_a_moment(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let mut stage = open(Via::Pepd, "")?;
    let pair = stage.world.pair(family)?;
    pair.exchange(1_000_000)?;
    let socket = |world: &World| {
        let ends = (pair.client.local_addr()?, pair.client.peer_addr()?);
        let (ours, theirs) = ends;
        world
            .hb()
            .sh(&format!("ss -Htin src {ours} and dst {theirs}"))
    };
    let is_paced = |world: &World| socket(world).is_ok_and(|socket| has_a_ceiling(&socket));
    ensure!(!is_paced(&stage.world), "{}", socket(&stage.world)?);
    let pattern = Pattern::new(9);
    let mut sent = 0;
    // That moment is short, and may pass unseen.
    wait_until(LIMIT, "it dies while the leg is paced", || {
        let round = (|| -> Result<bool> {
            tell(&stage, "wan gone")?;
            Side::Server.lose(&stage.world)?;
            send(&pair.client, &pattern, sent, BYTES)?;
            sent += BYTES;
            wait_for_doublings(|| timer(&stage.world, &pair.client, Side::Server), "on")?;
            Side::Server.restore(&stage.world)?;
            let look = look(&pair.client)?;
            let daemon = stage.pepd()?.daemon()?;
            let hunt = format!(
                "for look in $(seq 500); do
                     {look} | grep -q 'pacing_rate [^ ]*/' && kill -KILL {daemon} && exit
                 done
                 exit 1"
            );
            let world = &stage.world;
            let is_dead = thread::scope(|scope| {
                let hunter = scope.spawn(|| world.hb().sh(&hunt));
                // It may die before it has answered.
                let _ = tell(&stage, "wan up");
                hunter.join().unwrap().is_ok()
            });
            if is_dead {
                stage.pepd()?.says("READY=1")?;
            }
            Ok(is_dead)
        })();
        round.unwrap()
    })?;
    wait_for_log(&stage, "the link has been up for a moment")?;
    wait_until(LIMIT, "it has no ceiling, and its own control", || {
        socket(&stage.world)
            .is_ok_and(|socket| !has_a_ceiling(&socket) && socket.contains(" cubic "))
    })?;
    receive_exactly(&pair.server, &pattern, 0, sent)?;
    pair.exchange(1_000_000)?;
    stage.finish()
}

/// Returns what shows the box's socket towards a client's server.
fn look(client: &TcpStream) -> Result<String> {
    let (ours, theirs) = (client.local_addr()?, client.peer_addr()?);
    Ok(format!("ss -Htin src {ours} and dst {theirs}"))
}

/// Tells whether `ss -i` shows a socket that has SO_MAX_PACING_RATE: `pacing_rate 1.2Mbps/3Mbps`.
fn has_a_ceiling(socket: &str) -> bool {
    let rate = socket
        .split_once("pacing_rate ")
        .map_or("", |(_, rest)| rest);
    rate.split_whitespace()
        .next()
        .unwrap_or_default()
        .contains('/')
}
