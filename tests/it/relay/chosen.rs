//! `congestion = "auto"`: the box chooses a leg's congestion control by what its connections meet.
//!
//! Which control is chosen over which path, and how it is followed, is tested in `pepd_model::control_choice`; here,
//! that the daemon sees what there is to see, and gives new connections what was chosen.

use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use pepd_testbed::link::{Loss, Rate, Shape};
use pepd_testbed::{Family, Pepd, World, ask, require, run, wait_until};
use rstest::rstest;
use serde_json::Value;

use crate::harness::{LIMIT, PEPD};
use crate::streams::while_busy;

/// What is chosen for a leg.
fn chosen(world: &World, leg: &str) -> Result<Value> {
    let status: Value = serde_json::from_str(&ask(&world.admin_socket(), "GET /v1/status")?)?;
    let all = status["chosen"].as_array().context("nothing is chosen")?;
    let of_leg = all.iter().find(|it| it["leg"] == leg);
    of_leg.cloned().with_context(|| format!("{leg}: {all:?}"))
}

/// Returns the congestion control of what the box sends to one end of a connection.
fn control(world: &World, end: &TcpStream) -> Result<String> {
    let address = end.local_addr()?;
    let filter = format!("ss -tinOH state established dst {address}");
    let table = world.hb().sh(&filter)?;
    let mut words = table.split_whitespace();
    let is_control =
        |word: &&str| ["cubic", "bbr", "reno"].contains(word) || word.starts_with("pepd");
    let found = words.find(is_control);
    let found = found.map(str::to_owned);
    found.with_context(|| format!("{filter}: {table}"))
}

/// Two hundred milliseconds and losses to the servers, none to the clients; both legs are to be chosen for.
fn world() -> Result<World> {
    let far = Shape {
        loss: Loss::independent(0.03),
        ..Shape::new(Duration::from_millis(100), Rate::mbit(20))
    };
    World::emulated(Shape::new(Duration::from_millis(1), Rate::mbit(100)), far)
}

fn config() -> String {
    let auto = "congestion = \"auto\"";
    let config = World::config().replace("congestion = \"cubic\"", auto);
    config.replace("congestion = \"reno\"", auto)
}

/// Nobody says that the links are the operator's own, or the file says what this one carries.
#[rstest]
#[case::bbr("", "bbr", r#"["cubic","bbr"]"#)]
#[case::own_link("rate = \"50Mbit\"\n", "find-rate", r#"["cubic","bbr","find-rate"]"#)]
fn losses_without_a_queue_have_new_connections_begin_with_another(
    #[case] said: &str,
    #[case] wanted: &str,
    #[case] of: &str,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let world = world()?;
    let config = config().replace("[leg.wan]\n", &format!("[leg.wan]\n{said}"));
    let mut daemon = Pepd::start(PEPD, world.hb(), &format!("{config}{}", world.admin()))?;
    for leg in ["lan", "wan"] {
        let first = chosen(&world, leg)?;
        ensure!(
            first["congestion"] == "cubic" && first["reason"] == "new",
            "{first}"
        );
    }
    let wan = chosen(&world, "wan")?;
    ensure!(wan["of"] == serde_json::from_str::<Value>(of)?, "{wan}");
    let pairs = [world.pair(Family::V4)?];
    ensure!(control(&world, &pairs[0].server)? == "cubic");
    while_busy(&pairs, || {
        let changed = wait_until(LIMIT, "another one is chosen", || {
            chosen(&world, "wan").is_ok_and(|it| it["congestion"] == wanted)
        });
        changed.with_context(|| format!("{:?}", chosen(&world, "wan")))
    })?;
    let wan = chosen(&world, "wan")?;
    ensure!(
        wan["reason"] == "no_queue" && wan["changes"] == 1 && wan["trial"] == true,
        "{wan}"
    );
    ensure!(chosen(&world, "lan")?["congestion"] == "cubic");
    // A connection that has begun stays what it is.
    let new = world.pair(Family::V4)?;
    let has = control(&world, &new.server)?;
    let name = if wanted == "find-rate" {
        "pepd"
    } else {
        wanted
    };
    ensure!(has.starts_with(name), "{has}");
    ensure!(control(&world, &pairs[0].server)? == "cubic");
    new.exchange(100_000)?;
    let mut command = world.hb().command(PEPD);
    command.args(["status", "-c"]).arg(daemon.config_file());
    let text = run(&mut command, LIMIT)?.success()?;
    let on_trial = format!("{wanted} (on trial)");
    let line = text.lines().find(|line| line.contains(&on_trial));
    ensure!(
        line.is_some_and(|line| line.contains("these losses are no congestion")),
        "{text}"
    );
    // Whoever goes on begins anew; the connection does not.
    daemon.dies(Signal::SIGKILL)?;
    new.exchange(100_000)?;
    ensure!(control(&world, &new.server)?.starts_with(name));
    ensure!(chosen(&world, "wan")?["reason"] == "new");
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    ensure!(
        log.contains("another congestion control for new connections"),
        "{log}"
    );
    Ok(())
}

/// A client leg has what is chosen, too, though its listener was opened before.
#[test]
fn clients_get_what_is_chosen() -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let world = World::standard()?;
    let mut daemon = Pepd::start(PEPD, world.hb(), &format!("{}{}", config(), world.admin()))?;
    let pair = world.pair(Family::V4)?;
    ensure!(control(&world, &pair.client)? == "cubic");
    // Without a word in the file, and back: what is chosen stays, and connections go on.
    daemon.reload(&format!("{}{}", World::config(), world.admin()))?;
    wait_until(LIMIT, "nothing is told", || chosen(&world, "lan").is_err())?;
    pair.exchange(100_000)?;
    daemon.reload(&format!("{}{}", config(), world.admin()))?;
    // What is asked within a moment has the same answer.
    wait_until(LIMIT, "it is told again", || {
        chosen(&world, "lan").is_ok_and(|it| it["congestion"] == "cubic")
    })?;
    pair.exchange(100_000)?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}
