//! What is told of legs while they are in use: round trips idle and under load, and what limits a rate that
//! is found.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::link::{Rate, Shape};
use pepd_testbed::{Family, Finished, Pepd, World, ask, require, run, wait_until};
use rstest::rstest;
use serde_json::Value;

use crate::harness::{LIMIT, PEPD};
use crate::streams::while_busy;

/// What a daemon answers.
fn asked(world: &World, address: &str) -> Result<Value> {
    let answer = ask(&world.admin_socket(), &format!("GET {address}"))?;
    Ok(serde_json::from_str(&answer)?)
}

/// What is told of the leg towards the servers.
fn wan(world: &World) -> Option<Value> {
    let legs = asked(world, "/v1/legs").ok()?;
    let of_wan = |leg: &&Value| leg["leg"] == "wan";
    legs["legs"].as_array()?.iter().find(of_wan).cloned()
}

/// A leg is not busy while little is sent, and is while more is than it takes.
#[rstest]
#[case::the_kernels("cubic")]
#[case::found("find-rate")]
fn a_leg_under_load_is_seen(#[case] control: &str) -> Result<()> {
    require!(root, program("nft"));
    let far = Shape::new(Duration::from_millis(10), Rate::mbit(10));
    let world = World::emulated(Shape::new(Duration::from_millis(1), Rate::mbit(100)), far)?;
    let chosen = format!("congestion = \"{control}\"");
    let config = World::config().replace("congestion = \"cubic\"", &chosen);
    let daemon = Pepd::start(PEPD, world.hb(), &format!("{config}{}", world.admin()))?;
    ensure!(asked(&world, "/v1/legs")?["legs"] == Value::Array(vec![]));
    let pairs = [world.pair(Family::V4)?];
    pairs[0].exchange(1000)?;
    wait_until(LIMIT, "the leg is told of", || {
        wan(&world).is_some_and(|leg| leg["least_rtt"].as_f64() >= Some(0.02))
    })?;
    while_busy(&pairs, || is_under_load(&world, control))?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// 256 KiB are too little for 50 Mbit/s and 100 ms: the advice says what more of them would give, as the model has it.
#[test]
fn advice_says_what_a_buffer_would_give() -> Result<()> {
    require!(root, program("nft"));
    let far = Shape::new(Duration::from_millis(50), Rate::mbit(200));
    let world = World::emulated(Shape::new(Duration::from_millis(1), Rate::mbit(200)), far)?;
    let leg = "congestion = \"cubic\"\nbuffer = \"256KiB\"\nrate = \"50Mbit\"";
    let config = World::config().replace("congestion = \"cubic\"", leg);
    let daemon = Pepd::start(PEPD, world.hb(), &format!("{config}{}", world.admin()))?;
    let pairs = [world.pair(Family::V4)?];
    while_busy(&pairs, || {
        let mut text = String::new();
        let said = wait_until(LIMIT, "the advice", || {
            let mut command = world.hb().command(PEPD);
            command.args(["status", "-c"]).arg(daemon.config_file());
            let asked = run(&mut command, LIMIT).and_then(Finished::success);
            text = asked.unwrap_or_default();
            text.contains("now it is")
        });
        said.with_context(|| text.clone())?;
        println!("{text}");
        let advice = text.split("advice:").nth(1).context("no advice")?;
        let advice = advice.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(
            advice.starts_with("from a to b, [leg.wan] is the bottleneck"),
            "{advice}"
        );
        ensure!(
            advice.contains(
                "its buffer of 256KiB is smaller than its rate × RTT: set [leg.wan] buffer = \""
            ),
            "{advice}"
        );
        ensure!(
            advice.contains("that cubic can have at its RTT of"),
            "{advice}"
        );
        let percent = |before: &str| {
            let after = advice.split(before).nth(1)?;
            after.split(' ').next()?.parse::<f64>().ok()
        };
        let (then, now) = (percent("would give "), percent("now it is "));
        let (then, now) = then.zip(now).with_context(|| advice.clone())?;
        ensure!(then >= 95.0 && now < 90.0, "{advice}");
        Ok(())
    })?;
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

fn is_under_load(world: &World, control: &str) -> Result<()> {
    wait_until(LIMIT, "it is busy", || {
        wan(world).is_some_and(|leg| leg["busy_seconds"].as_f64() > Some(1.0))
    })?;
    let leg = wan(world).context("no leg")?;
    let figure = |value: &Value| value.as_f64().unwrap_or_default();
    let loaded = &leg["loaded_rtt"];
    ensure!(
        figure(&loaded["median"]) >= figure(&leg["least_rtt"]),
        "{leg}"
    );
    ensure!(figure(&loaded["p95"]) >= figure(&loaded["median"]), "{leg}");
    if control == "find-rate" {
        wait_until(LIMIT, "the link is said to be full", || {
            asked(world, "/v1/status").is_ok_and(|status| status["rates"][0]["limit"] == "link")
        })?;
    }
    let history = asked(world, "/v1/legs/wan/history")?;
    let points = history["points"].as_array().context("no points")?;
    let busy = points.iter().rfind(|it| it["busy"] == 1.0);
    let busy = busy.with_context(|| format!("no busy second: {history}"))?;
    ensure!(
        figure(&busy["sent"]) > 0.0 && figure(&busy["rtt"]) > 0.0,
        "{busy}"
    );
    ensure!(
        busy["path"].is_object() == (control == "find-rate"),
        "{busy}"
    );
    // Only what has come since.
    let last = points.last().map_or(0.0, |it| figure(&it["time"]));
    let rest = asked(world, &format!("/v1/legs/wan/history?since={last}"))?;
    let rest = rest["points"].as_array().context("no points")?;
    ensure!(rest.iter().all(|it| figure(&it["time"]) > last), "{rest:?}");
    let minutes = asked(world, "/v1/legs/wan/history?step=minute")?;
    ensure!(
        minutes["points"]
            .as_array()
            .is_some_and(|it| !it.is_empty()),
        "{minutes}"
    );
    Ok(())
}
