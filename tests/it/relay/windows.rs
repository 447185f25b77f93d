//! `initial_window`: what a leg may send before the first acknowledgement.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::link::{Loss, Rate, Shape};
use pepd_testbed::{Family, Netns, Pepd, Stage, Via, World, ask, require, wait_until};
use rstest::rstest;
use serde_json::Value;

use crate::harness::{LIMIT, PEPD};

fn config() -> String {
    World::config()
        .replace(
            "congestion = \"reno\"",
            "congestion = \"reno\"\ninitial_window = 20",
        )
        .replace(
            "congestion = \"cubic\"",
            "congestion = \"cubic\"\ninitial_window = 32",
        )
}

/// Returns the initial windows of the two sockets of the only connection, each with its congestion
/// control.
fn windows(box_: &Netns) -> Result<Vec<String>> {
    let seen = box_.sh("ss -Htin state established")?;
    let words = |line: &str| -> Option<String> {
        let mut words = line.split_whitespace();
        let congestion = words.next()?.to_owned();
        let window = words.find_map(|word| word.strip_prefix("cwnd:"))?;
        Some(format!("{congestion} {window}"))
    };
    let mut found: Vec<String> = seen.lines().filter_map(words).collect();
    found.sort_unstable();
    Ok(found)
}

#[rstest]
fn each_leg_starts_with_its_own(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root, program("ss"));
    let mut stage = Stage::open(Via::Routing, PEPD)?;
    let before = stage.world.kernel_state()?;
    stage.pepd = Some(Pepd::start(PEPD, stage.world.hb(), &config())?);
    let pair = stage.world.pair(family)?;
    // The client knows of its connection before the box knows that it does.
    wait_until(LIMIT, "both legs are established", || {
        windows(stage.world.hb()).is_ok_and(|legs| legs.len() == 2)
    })?;
    assert_eq!(windows(stage.world.hb())?, ["cubic 32", "reno 20"]);
    pair.exchange(100_000)?;
    drop(pair);
    let (status, log) = stage.pepd.take().unwrap().stop()?;
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(stage.world.kernel_state()?, before, "{log}");
    Ok(())
}

/// The copies follow the host's routes, and a reload without the key takes them away.
#[test]
fn they_follow_the_hosts_routes() -> Result<()> {
    require!(root);
    let mut stage = Stage::with_config(PEPD, &config())?;
    let table = |stage: &Stage| {
        let shown = stage.world.hb().sh("ip route show table 7301");
        shown.unwrap_or_default()
    };
    assert!(
        table(&stage).contains("10.2.0.0/24 dev to-server"),
        "{}",
        table(&stage)
    );
    stage
        .world
        .hb()
        .sh("ip route add 10.2.5.0/24 via 10.2.0.2")?;
    wait_until(LIMIT, "a new route is copied", || {
        table(&stage)
            .contains("10.2.5.0/24 via 10.2.0.2 dev to-server proto 73 initcwnd 32 initrwnd 32")
    })?;
    stage.world.hb().sh("ip route del 10.2.5.0/24")?;
    wait_until(LIMIT, "a route that is gone is gone", || {
        !table(&stage).contains("10.2.5.0/24")
    })?;
    // Policy routing of the operator's own might want something else.
    stage
        .world
        .hb()
        .sh("ip rule add preference 100 from 10.1.0.0/16 lookup 100")?;
    stage
        .world
        .hb()
        .sh("ip route add 10.2.6.0/24 via 10.2.0.2")?;
    wait_until(LIMIT, "nothing is copied", || table(&stage).is_empty())?;
    stage.world.pair(Family::V4)?.exchange(1000)?;

    stage.pepd()?.reload(&World::config())?;
    let rules = stage.world.hb().sh("ip rule")?;
    assert!(!rules.contains("7301"), "{rules}");
    stage.finish()
}

/// A short leg to the client, and 100 ms to the server, of which such a share of packets is lost; both learn what their
/// connections may begin with, and the one to the server has such a control.
fn learning(lost: f64, control: &str) -> Result<(World, String)> {
    let near = Shape::new(Duration::from_millis(1), Rate::mbit(1000));
    let far = Shape {
        loss: Loss::independent(lost),
        ..Shape::new(Duration::from_millis(50), Rate::mbit(50))
    };
    let world = World::emulated(near, far)?;
    let auto = |control: &str| format!("congestion = \"{control}\"\ninitial_window = \"auto\"");
    let config = World::config().replace("congestion = \"reno\"", &auto("reno"));
    let config = config.replace("congestion = \"cubic\"", &auto(control));
    let config = format!("{config}{}", world.admin());
    Ok((world, config))
}

/// The network of the server, with its initcwnd in the table of the copies; none where it has none.
fn learned_route(world: &World, family: Family) -> Result<Option<u32>> {
    let (flag, network) = match family {
        Family::V4 => ("-4", "10.2.0.0/24"),
        Family::V6 => ("-6", "fd00:b::/64"),
    };
    let routes = world
        .hb()
        .sh(&format!("ip {flag} route show table 7301 || true"))?;
    let line = routes.lines().find(|line| line.starts_with(network));
    let Some(line) = line else { return Ok(None) };
    ensure!(!line.contains("initrwnd"), "{line}");
    let window = line.split_once("initcwnd ").map(|(_, rest)| rest);
    let window = window.and_then(|rest| rest.split(' ').next());
    Ok(Some(window.context("no window")?.parse()?))
}

/// What the status says of the server's network.
fn told(world: &World, family: Family) -> Result<Option<Value>> {
    let status: Value = serde_json::from_str(&ask(&world.admin_socket(), "GET /v1/status")?)?;
    let windows = status["windows"].as_array().cloned().unwrap_or_default();
    let of = |window: &&Value| {
        let network = window["network"].as_str().unwrap_or_default();
        window["leg"] == "wan" && network.contains(':') == (family == Family::V6)
    };
    Ok(windows.iter().find(of).cloned())
}

/// Connections to a network begin with more once others have carried much to there, as a route and the status
/// say; and with the kernel's window again where the key is gone.
#[rstest]
fn auto_follows_what_is_carried(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root, program("ss"));
    let (world, config) = learning(0.0, "cubic")?;
    let before = world.kernel_state()?;
    let mut daemon = Pepd::start(PEPD, world.hb(), &config)?;
    ensure!(
        learned_route(&world, family)?.is_none(),
        "nothing is known yet"
    );
    wait_until(LIMIT, "the route has what was learned", || {
        let pair = world.pair(family).unwrap();
        pair.stream(400_000).unwrap();
        learned_route(&world, family).is_ok_and(|window| window >= Some(20))
    })?;
    wait_until(LIMIT, "a connection begins with that", || {
        let begun = || -> Result<bool> {
            let route = learned_route(&world, family)?.context("no route")?;
            let pair = world.pair(family)?;
            let wanted = format!("cubic {route}");
            let is_so = windows(world.hb())?.contains(&wanted);
            drop(pair);
            Ok(is_so)
        };
        begun().unwrap()
    })?;
    let told = told(&world, family)?.context("not told")?;
    println!("{told}");
    let why = told["why"].as_str().unwrap_or_default();
    ensure!(["trial", "rate"].contains(&why), "{told}");
    ensure!(told["under_way"].as_f64() > Some(25.0), "{told}");
    let socket = world.admin_socket();
    let status = world
        .hb()
        .sh(&format!("{PEPD} status --socket {}", socket.display()))?;
    let network = told["network"].as_str().unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with("wan") && line.contains(network));
    ensure!(line.is_some_and(|it| it.contains("under way")), "{status}");

    let without = config.replace("initial_window = \"auto\"\n", "");
    daemon.reload(&without)?;
    ensure!(
        learned_route(&world, family)?.is_none(),
        "the route is still there"
    );
    let (status, log) = daemon.stop()?;
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(world.kernel_state()?, before, "{log}");
    Ok(())
}

/// Where a tenth is lost of what comes first: it is found out, and more is not tried again.
#[test]
fn auto_goes_back_where_too_much_is_lost() -> Result<()> {
    require!(root, program("ss"));
    let (world, config) = learning(0.1, "bbr")?;
    let daemon = Pepd::start(PEPD, world.hb(), &config)?;
    wait_until(LIMIT, "too much was lost", || {
        let pair = world.pair(Family::V4).unwrap();
        pair.stream(400_000).unwrap();
        let told = told(&world, Family::V4).unwrap();
        told.is_some_and(|told| told["why"] == "loss")
    })?;
    let told = told(&world, Family::V4)?.context("not told")?;
    println!("{told}");
    ensure!(told["loss"].as_f64() > Some(0.02), "{told}");
    let segments = told["segments"].as_u64();
    wait_until(LIMIT, "the route says so", || {
        learned_route(&world, Family::V4)
            .is_ok_and(|route| route.map_or(10, u64::from) == segments.unwrap_or(0))
    })?;
    let (status, log) = daemon.stop()?;
    assert_eq!(status.code(), Some(0), "{log}");
    Ok(())
}
