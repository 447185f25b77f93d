//! What is said of links by who is broken or means it: nonsense, the same again and again, more than anybody
//! reads.

use anyhow::{Context as _, Result};
use pepd_testbed::{Family, Stage, Via, ask, require, wait_until};
use rstest::rstest;
use serde_json::Value;

use super::outages::{open, status, tell};
use crate::harness::LIMIT;

/// Less than a first window.
const BYTES: u64 = 10_000;

/// The lines that the log may have of a link, however often something is said of it.
const LINES: usize = 60;

fn post(stage: &Stage, words: &str) -> Result<String> {
    ask(
        &stage.world.admin_socket(),
        &format!("POST /v1/link/{words}"),
    )
}

/// Returns what is known of the leg's link.
fn link(stage: &Stage) -> Result<Value> {
    let said = ask(&stage.world.admin_socket(), "GET /v1/status")?;
    let status: Value = serde_json::from_str(&said)?;
    Ok(status["links"][0].clone())
}

fn log_lines(stage: &Stage) -> usize {
    let pepd = stage.pepd.as_ref();
    pepd.map_or(0, |pepd| pepd.log().lines().count())
}

/// What is no order is none: it is refused with what would be one, and nothing has changed.
#[test]
fn nonsense_is_refused_and_changes_nothing() -> Result<()> {
    require!(root);
    let stage = open(Via::Pepd, "")?;
    let long = "x".repeat(5000);
    let times = [
        "-1", "nan", "inf", "-inf", "1e308", "86401", "", "1s", "0x10", "1e", "%00", "0", "-0",
        "1e-300", "0.0009", &long,
    ];
    for time in times {
        let refused = post(&stage, &format!("going-down?leg=wan&for={time}")).unwrap_err();
        assert!(
            refused.to_string().contains("HTTP/1.1 400"),
            "{time}: {refused}"
        );
    }
    let refused = post(&stage, "going-down?leg=wan&for=abc").unwrap_err();
    let says = "seconds are expected, without a unit, such as 10";
    assert!(refused.to_string().contains(says), "{refused}");
    for words in [
        "gone",
        "gone?leg=",
        "gone?leg=nonesuch",
        "gone?leg=wan&leg=lan",
        "up?leg=wan&for=1",
        "gone?leg=wan&for=1",
        "sideways?leg=wan",
        "GONE?leg=wan",
        "?leg=wan",
        "gone?leg=wan%0a",
        "gone?wan",
        "gone?leg=wan&why=so",
        &format!("gone?leg={long}"),
    ] {
        let refused = post(&stage, words).unwrap_err().to_string();
        assert!(refused.contains("HTTP/1.1 4"), "{words}: {refused}");
    }
    for words in [
        "wan going-down --for -1s",
        "wan going-down --for nan",
        "wan going-down --for 2d",
        "wan going-down --for 1ns",
        "wan going-down --for 99999999999999999999s",
        "wan",
        "'' gone",
        "wan gone up",
    ] {
        assert!(tell(&stage, words).is_err(), "{words}");
    }
    assert_eq!(link(&stage)?, Value::Null);
    // As short and as long as it may be.
    post(&stage, "going-down?leg=wan&for=0.001")?;
    post(&stage, "going-down?leg=wan&for=86400")?;
    assert_eq!(link(&stage)?["state"], "going-down");
    post(&stage, "up?leg=wan")?;
    assert_eq!(link(&stage)?["state"], "up");
    assert!(stage.world.probe(Family::V4)?.1);
    stage.finish()
}

/// A script that has run wild: whatever it says again and again, the link changes only so often, the log stays
/// short, memory does not grow, connections are served, and who says last what is true is believed.
#[rstest]
#[case::gone_and_up(&["gone", "up"])]
#[case::about_to_go_and_up(&["going-down", "up"])]
#[case::about_to_go_for_no_time(&["going-down?for=0.001"])]
#[case::gone_for_no_time(&["gone", "going-down?for=0.001"])]
#[case::all_of_it(&["going-down?for=1", "gone", "gone", "up", "up"])]
fn a_script_that_runs_wild_is_bounded(#[case] words: &[&str]) -> Result<()> {
    const TIMES: usize = 2_000;
    const MEMORY: u64 = 16 << 20;
    require!(root);
    let stage = open(Via::Pepd, "")?;
    let pair = stage.world.pair(Family::V4)?;
    pair.exchange(BYTES)?;
    let memory = || stage.pepd.as_ref().context("the daemon")?.resident_bytes();
    let (before, lines) = (memory()?, log_lines(&stage));
    for number in 0..TIMES {
        for words in words {
            let (state, time) = words.split_once('?').unwrap_or((words, ""));
            let order = format!("{state}?leg=wan&{time}");
            post(&stage, order.trim_end_matches('&'))?;
        }
        if number % 500 == 0 {
            pair.exchange(BYTES)?;
        }
    }
    let after = memory()?;
    assert!(after < before + MEMORY, "{before}, {after}");
    let log = stage.pepd.as_ref().context("the daemon")?.log();
    let said = log.lines().count() - lines;
    assert!(said < LINES, "{said} lines: {log}");
    post(&stage, "up?leg=wan")?;
    wait_until(LIMIT, "it is believed", || {
        link(&stage).is_ok_and(|link| link["state"] == "up")
    })?;
    pair.exchange(BYTES)?;
    assert!(stage.world.probe(Family::V4)?.1);
    stage.finish()
}

/// A link that has flapped and was said to be gone for an hour is up soon after somebody says so.
#[test]
fn who_says_that_a_link_is_up_is_believed_before_its_time_is_over() -> Result<()> {
    require!(root);
    let stage = open(Via::Pepd, "")?;
    for _ in 0..9 {
        tell(&stage, "wan gone")?;
        tell(&stage, "wan up")?;
    }
    tell(&stage, "wan gone")?;
    tell(&stage, "wan going-down --for 1h")?;
    let told = tell(&stage, "wan up")?;
    assert!(told.starts_with("wan: gone, flaps: up in "), "{told}");
    wait_until(LIMIT, "it is up", || {
        link(&stage).is_ok_and(|link| link["state"] == "up")
    })?;
    assert!(stage.world.probe(Family::V4)?.1);
    stage.finish()
}

/// More changes of interfaces than the kernel keeps for a daemon that does not read them: some are lost, and
/// what the daemon knows afterwards is right all the same, each time.
#[test]
fn a_storm_of_interfaces_is_survived() -> Result<()> {
    const CHANGES: usize = 400;
    const ROUNDS: usize = 4;
    require!(root, program("ip"));
    let stage = open(Via::Pepd, "link = { interface = \"radio0\" }\n")?;
    let hb = stage.world.hb();
    let pepd = stage.pepd.as_ref().context("the daemon")?;
    hb.sh("ip link add radio0 up type veth peer name radio9; ip link set radio9 up")?;
    let lost = || -> Result<u64> {
        let sockets = hb.sh("cat /proc/net/netlink")?;
        let route = sockets
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        let drops = route
            .filter(|it| it.get(1) == Some(&"0"))
            .filter_map(|it| it.get(8)?.parse::<u64>().ok());
        Ok(drops.sum())
    };
    let becomes = |state: &str| {
        wait_until(LIMIT, state, || {
            link(&stage).is_ok_and(|link| link["state"] == state)
        })
    };
    becomes("up")?;
    let lines = log_lines(&stage);
    let flap = "link set dev radio9 down\nlink set dev radio9 up\n".repeat(CHANGES);
    for round in 0..ROUNDS {
        let (last, state) = match round % 2 {
            0 => ("link set dev radio9 down\n", "gone"),
            _ => ("link set dev radio9 up\n", "up"),
        };
        let before = lost()?;
        pepd.pause()?;
        hb.sh(&format!("ip -batch - <<'END'\n{flap}{last}END"))?;
        let now = lost()?;
        pepd.resume()?;
        assert!(now > before, "nothing was lost");
        becomes(state)?;
    }
    // As before, it is heard of at once, and stays.
    hb.sh("ip link set radio9 down")?;
    becomes("gone")?;
    hb.sh("ip link delete radio0; ip link add radio0 up type veth peer name radio9; ip link set radio9 up")?;
    becomes("up")?;
    let said = log_lines(&stage) - lines;
    assert!(said < LINES, "{said} lines: {}", pepd.log());
    assert!(stage.world.probe(Family::V4)?.1);
    stage.finish()
}

/// An interface that comes and goes by the hundred, under the link's name and from it to others.
#[test]
fn an_interface_that_comes_and_goes_is_survived() -> Result<()> {
    const TIMES: usize = 200;
    const MEMORY: u64 = 16 << 20;
    require!(root, program("ip"));
    let stage = open(Via::Pepd, "link = { interface = \"radio0\" }\n")?;
    let hb = stage.world.hb();
    let memory = || stage.pepd.as_ref().context("the daemon")?.resident_bytes();
    let make = "link add radio0 up type veth peer name radio9\nlink set radio9 up\n";
    let (before, mut batch) = (memory()?, String::new());
    for number in 0..TIMES {
        batch += &format!(
            "{make}link set radio0 down\nlink set radio0 name was{number}\nlink delete was{number}\n"
        );
    }
    hb.sh(&format!("ip -batch - <<'END'\n{batch}END"))?;
    let pair = stage.world.pair(Family::V4)?;
    wait_until(LIMIT, "it is gone", || {
        link(&stage).is_ok_and(|link| link["state"] == "gone")
    })?;
    hb.sh(&format!("ip -batch - <<'END'\n{make}END"))?;
    wait_until(LIMIT, "it is up", || {
        link(&stage).is_ok_and(|link| link["state"] == "up")
    })?;
    let after = memory()?;
    assert!(after < before + MEMORY, "{before}, {after}");
    pair.exchange(BYTES)?;
    assert!(status(&stage)?.contains("interface radio0"));
    assert!(stage.world.probe(Family::V4)?.1);
    stage.finish()
}
