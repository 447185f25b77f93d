//! `[measure]`: some connections are routed and watched beside some that are split.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pepd_packet::LogGroup;
use pepd_sys::nflog::Log;
use pepd_testbed::traffic::{accept, connect};
use pepd_testbed::{Family, Pepd, World, ask, require, wait_until};
use rstest::rstest;
use serde_json::Value;

use crate::harness::{PEPD, count};
use crate::streams::download;

/// The group that the kernel passes headers on to.
const GROUP: LogGroup = LogGroup(7300);

const LIMIT: Duration = Duration::from_secs(20);

fn status(socket: &Path) -> Result<Value> {
    Ok(serde_json::from_str(&ask(socket, "GET /v1/status")?)?)
}

/// Returns what is compared of the only pair of campuses; none as long as there is none.
fn compared(socket: &Path, quantity: &str) -> Result<Option<Value>> {
    let status = status(socket)?;
    let pairs = status["worth"]["pairs"].as_array().context("pairs")?;
    let Some(pair) = pairs.first() else {
        return Ok(None);
    };
    ensure!(
        pairs.len() == 1 && pair["client_campus"] == "a" && pair["server_campus"] == "b",
        "{pairs:?}"
    );
    let all = pair["compared"].as_array().context("compared")?;
    Ok(all.iter().find(|it| it["quantity"] == quantity).cloned())
}

/// Half of all connections are routed and half are split; each is seen from its SYN to its last byte, and what
/// is found says of how many.
#[rstest]
fn what_is_routed_and_what_is_split_is_watched(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(true, false)] early: bool,
) -> Result<()> {
    const CONNECTIONS: u64 = 160;
    const BYTES: usize = 5_000;
    require!(root, program("nft"));
    let world = World::standard()?;
    let config = match early {
        true => World::early_config(),
        false => World::config(),
    };
    let config = format!("{config}\n[measure]\nunsplit = \"50%\"\n{}", world.admin());
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    let socket = world.admin_socket();
    let listener = world.listen(family)?;
    for _ in 0..CONNECTIONS {
        download(&world, &listener, BYTES)?;
    }
    let routed = count(&world, "measured")?;
    // Five standard deviations of a fair coin.
    ensure!((48..=112).contains(&routed), "{routed} of {CONNECTIONS}");
    let split = CONNECTIONS - routed;
    ensure!(status(&socket)?["worth"]["unsplit"] == 0.5);
    for quantity in ["first_byte", "up_to_10kB"] {
        let mut last = None;
        wait_until(LIMIT, "all are compared", || {
            last = compared(&socket, quantity).ok().flatten();
            last.as_ref().is_some_and(|last| {
                last["split"]["connections"] == split && last["unsplit"]["connections"] == routed
            })
        })
        .with_context(|| format!("{split} and {routed}: {last:?}"))?;
        let last = last.context("compared")?;
        let [low, factor, high] = ["low", "factor", "high"].map(|key| last["gain"][key].as_f64());
        ensure!(low.is_some() && low <= factor && factor <= high, "{last}");
    }
    // No connection had more.
    ensure!(compared(&socket, "up_to_100kB")?.is_none());
    let shown = daemon.subcommand(world.hb(), "status")?;
    ensure!(shown.stdout.contains("up to 10 kB"), "{}", shown.stdout);
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// What is refused, or reset amid a transfer, does not count; a connection of which the client is slow has all
/// its time.
#[test]
fn what_comes_to_nothing_is_not_compared() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let config = World::config();
    let config = format!("{config}\n[measure]\nunsplit = \"50%\"\n{}", world.admin());
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    let socket = world.admin_socket();
    let listener = world.listen(Family::V4)?;
    let nobody = SocketAddr::new(World::server_address(Family::V4), 1);
    for _ in 0..40 {
        ensure!(connect(world.client(), nobody).is_err());
        let client = connect(world.client(), listener.local_addr()?)?;
        let (mut server, _) = accept(&listener)?;
        server.write_all(b"some of it")?;
        socket2::SockRef::from(&server).set_linger(Some(Duration::ZERO))?;
        drop((server, client));
    }
    // They come in order: what has been read last is last.
    download(&world, &listener, 200_000)?;
    wait_until(LIMIT, "the last is there", || {
        matches!(compared(&socket, "up_to_1MB"), Ok(Some(_)))
    })?;
    let first_byte = compared(&socket, "first_byte")?.context("first byte")?;
    let all = ["split", "unsplit"].map(|kind| first_byte[kind]["connections"].as_u64());
    ensure!(all.iter().flatten().sum::<u64>() == 1, "{first_byte}");
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// Where another program reads what the kernel passes on, as it may have begun to while a process before this one ended,
/// connections are split, and it is measured once that has ended.
#[test]
fn what_another_program_reads_is_measured_later() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let other = world.hb().run(|| Ok(Log::open(GROUP)?))?;
    let config = World::config().replace("port = 7300\n", "port = 7300\nsplit = \"auto\"\n");
    let config = format!("{config}\n{}", world.admin());
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    wait_until(LIMIT, "it says what is in its way", || {
        daemon.log().contains("another program reads it")
    })?;
    // A box that is too busy for a moment routes one.
    wait_until(LIMIT, "one is split", || {
        world
            .probe(Family::V4)
            .is_ok_and(|(pair, split)| split && pair.exchange(1000).is_ok())
    })?;
    drop(other);
    let listener = world.listen(Family::V4)?;
    let socket = world.admin_socket();
    wait_until(LIMIT, "it is measured", || {
        let one = download(&world, &listener, 1000);
        one.is_ok() && matches!(compared(&socket, "first_byte"), Ok(Some(_)))
    })?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// It comes and goes with the configuration, and nothing of it is there without; and what has been found
/// before is not forgotten by a reload that says the same.
#[test]
fn a_reload_begins_and_ends_it() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let without = format!("{}\n{}", World::config(), world.admin());
    let with = |share: &str| format!("{without}\n[measure]\nunsplit = \"{share}\"\n");
    let mut daemon = Pepd::start(PEPD, world.hb(), &without)?;
    let socket = world.admin_socket();
    let is_in_kernel = || Ok::<_, anyhow::Error>(world.kernel_state()?.contains("jhash"));
    ensure!(!is_in_kernel()? && status(&socket)?["worth"].is_null());
    let listener = world.listen(Family::V4)?;
    download(&world, &listener, 10)?;
    daemon.reload(&with("50%"))?;
    ensure!(is_in_kernel()?);
    for _ in 0..10 {
        download(&world, &listener, 10)?;
    }
    let seen = || {
        let found = compared(&socket, "first_byte").ok().flatten()?;
        let of = |kind: &str| found[kind]["connections"].as_u64();
        Some(of("split")? + of("unsplit")?)
    };
    wait_until(LIMIT, "ten are there", || seen() == Some(10))?;
    // With a share of nearly nothing, nothing more is added.
    daemon.reload(&with("0.01%"))?;
    wait_until(LIMIT, "the other share is said", || {
        status(&socket).is_ok_and(|status| status["worth"]["unsplit"] == 0.0001)
    })?;
    ensure!(seen() == Some(10), "{:?}", seen());
    daemon.reload(&without)?;
    ensure!(!is_in_kernel()?, "{}", world.kernel_state()?);
    wait_until(LIMIT, "nothing is said of it", || {
        status(&socket).is_ok_and(|status| status["worth"].is_null())
    })?;
    let (pair, split) = world.probe(Family::V4)?;
    ensure!(split);
    pair.exchange(1000)?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}
