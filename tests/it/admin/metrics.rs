//! The metrics of the real daemon: Prometheus' own linter, the figures, and who may ask.

use anyhow::{Context, Result, ensure};
use pepd_testbed::{Family, Netns, Pepd, Stage, World, require, run, wait_until};
use rstest::rstest;

use crate::harness::{LIMIT, PEPD};

fn config() -> String {
    format!(
        "{}\n[admin]\nmetrics = \"127.0.0.1:9730\"\nnames = [\"HB.example.net\"]\n",
        World::config()
    )
}

/// Returns what curl gets: the status and the body.
fn curl(netns: &Netns, options: &[&str], path: &str) -> Result<(String, String)> {
    let mut command = netns.command("curl");
    command
        .args(["-sS", "-w", "\n%{http_code}"])
        .args(options)
        .arg(format!("http://127.0.0.1:9730{path}"));
    let said = run(&mut command, LIMIT)?.success()?;
    let (body, status) = said.rsplit_once('\n').context("no status")?;
    Ok((status.to_owned(), body.to_owned()))
}

/// Returns the sum of a metric's samples whose labels hold `label`.
fn sum(metrics: &str, name: &str, label: &str) -> f64 {
    metrics
        .lines()
        .filter(|line| line.starts_with(name) && line.contains(label))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}

#[test]
fn the_figures_are_those_of_the_traffic() -> Result<()> {
    require!(root, program("nft"), program("curl"), program("promtool"));
    let stage = Stage::with_config(PEPD, &config())?;
    let hb = stage.world.hb();
    let metrics = || Ok::<_, anyhow::Error>(curl(hb, &[], "/metrics")?.1);
    for family in Family::BOTH {
        let pair = stage.world.pair(family)?;
        // As many there as back.
        pair.exchange(300_000)?;
        let live = metrics()?;
        ensure!(sum(&live, "pepd_connections ", "") >= 1.0, "{live}");
    }
    let mut text = String::new();
    wait_until(LIMIT, "both have ended, and are gone", || {
        text = metrics().unwrap();
        let sum = |name| sum(&text, name, "");
        sum("pepd_connections_ended_total") >= 2.0 && sum("pepd_connections ") == 0.0
    })?;
    assert_eq!(sum(&text, "pepd_connections_accepted_total", ""), 2.0);
    assert_eq!(sum(&text, "pepd_pair_connections_accepted_total", ""), 2.0);
    let bytes = |direction| sum(&text, "pepd_relayed_bytes_total", direction);
    assert_eq!(bytes("direction=\"up\""), 600_000.0, "{text}");
    assert_eq!(bytes("direction=\"down\""), 600_000.0, "{text}");
    assert!(sum(&text, "pepd_phase_seconds_total", "") > 0.0);
    // By both legs, each way; what is sent again counts once more.
    assert!(
        sum(&text, "pepd_path_sent_bytes_total", "") >= 1_200_000.0,
        "{text}"
    );
    // A second may have to end first.
    wait_until(LIMIT, "the legs' round trips are told", || {
        text = metrics().unwrap();
        sum(&text, "pepd_path_idle_rtt_seconds", "") > 0.0
    })?;

    // As Prometheus checks it, through a pipe in a shell.
    let script = "curl -sS http://127.0.0.1:9730/metrics | promtool check metrics 2>&1";
    assert_eq!(hb.sh(script)?, "");
    let openmetrics = ["-H", "Accept: application/openmetrics-text; version=1.0.0"];
    let (_, text) = curl(hb, &openmetrics, "/metrics")?;
    assert!(text.ends_with("# EOF\n"), "{text}");
    stage.finish()
}

/// What nftables routes by itself shows nevertheless.
#[test]
fn what_a_rule_exempts_is_counted() -> Result<()> {
    require!(root, program("nft"), program("curl"));
    let exempt = "[[rule]]\nsource = [\"10.1.0.0/24\"]\naction = \"bypass\"\n";
    let stage = Stage::with_config(PEPD, &(config() + exempt))?;
    for (family, split) in [(Family::V4, false), (Family::V6, true)] {
        assert_eq!(stage.world.probe(family)?.1, split, "{family}");
    }
    let hb = stage.world.hb();
    let mut text = String::new();
    wait_until(LIMIT, "it is in the metrics", || {
        text = curl(hb, &[], "/metrics").unwrap().1;
        sum(&text, "pepd_routed_syns_total", "reason=\"bypassed\"") >= 1.0
    })?;
    assert_eq!(sum(&text, "pepd_routed_syns_total", "no_listener"), 0.0);
    let (_, counters) = curl(hb, &[], "/v1/counters")?;
    assert!(counters.contains("\"bypassed\""), "{counters}");
    stage.finish()
}

/// The server of the page takes no control requests, and answers nobody who believes it to be
/// somebody else.
#[rstest]
#[case::another_name(&["-H", "Host: rebound.example:9730"], "/metrics", "421")]
#[case::another_name_for_the_flows(&["-H", "Host: rebound.example"], "/v1/flows", "421")]
#[case::no_name(&["-H", "Host:"], "/", "421")]
#[case::by_localhost(&["-H", "Host: localhost:9730"], "/v1/flows", "200")]
#[case::by_a_name_that_is_listed(&["-H", "Host: hb.example.net"], "/metrics", "200")]
#[case::reload(&["-X", "POST"], "/v1/reload", "404")]
#[case::drain(&["-X", "POST"], "/v1/drain", "404")]
#[case::posted(&["-X", "POST"], "/metrics", "405")]
#[case::nothing(&[], "/etc/passwd", "404")]
fn it_only_tells(#[case] options: &[&str], #[case] path: &str, #[case] status: &str) -> Result<()> {
    require!(root, program("nft"), program("curl"));
    let stage = Stage::with_config(PEPD, &config())?;
    let (code, body) = curl(stage.world.hb(), options, path)?;
    assert_eq!(code, status, "{body}");
    stage.finish()
}

/// What only watches does not keep the proxy from its work.
#[test]
fn a_port_that_is_taken_ends_nothing() -> Result<()> {
    require!(root);
    let world = World::standard()?;
    let hb = world.hb();
    let _taken = pepd_testbed::traffic::listen(hb, "127.0.0.1:9730".parse()?)?;
    let pepd = Pepd::start(PEPD, hb, &config())?;
    world.pair(Family::V4)?.exchange(1000)?;
    let log = pepd.log();
    assert!(
        log.contains("no metrics and no dashboard until a restart"),
        "{log}"
    );
    assert!(log.contains("127.0.0.1:9730"), "{log}");
    let (status, log) = pepd.stop()?;
    assert_eq!(status.code(), Some(0), "{log}");
    Ok(())
}

#[test]
fn an_address_that_comes_later_is_waited_for() -> Result<()> {
    require!(root, program("curl"));
    let world = World::standard()?;
    let hb = world.hb();
    let config = config().replace("127.0.0.1", "192.0.2.73");
    let pepd = Pepd::start(PEPD, hb, &config)?;
    assert!(
        pepd.log().contains("does not have 192.0.2.73"),
        "{}",
        pepd.log()
    );
    hb.sh("ip address add 192.0.2.73/32 dev lo")?;
    let mut curl = hb.command("curl");
    let metrics = run(curl.args(["-sS", "http://192.0.2.73:9730/metrics"]), LIMIT)?.success()?;
    assert!(metrics.contains("pepd_connections"), "{metrics}");
    let (status, log) = pepd.stop()?;
    assert_eq!(status.code(), Some(0), "{log}");
    Ok(())
}
