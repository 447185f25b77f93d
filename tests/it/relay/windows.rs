//! `initial_window`: what a leg may send before the first acknowledgement.

use anyhow::Result;
use pepd_testbed::{Family, Netns, Stage, Via, World, require, wait_until};
use rstest::rstest;

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
    stage.pepd = Some(pepd_testbed::Pepd::start(
        PEPD,
        stage.world.hb(),
        &config(),
    )?);
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
