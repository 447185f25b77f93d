//! What `/metrics` says of a daemon with known figures.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;

use pepd_admin::View;
use pepd_admin::metrics::{Exposition, expose};
use pepd_testbed::require;
use serde_json::Value;

#[path = "../../../crates/pepd-admin/examples/dashboard/fixture/mod.rs"]
mod fixture;

fn exposition(format: Exposition) -> String {
    let view: Arc<dyn View> = fixture::Fixture::new();
    expose(&view, format).unwrap()
}

/// Samples by name and labels, as written.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series, value.parse().unwrap())
        })
        .collect()
}

#[test]
fn prometheus_own_linter_has_nothing_to_say() -> io::Result<()> {
    require!(program("promtool"));
    let text = exposition(Exposition::Text);
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut input = promtool.stdin.take().unwrap();
    input.write_all(text.as_bytes())?;
    drop(input);
    let output = promtool.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success() && said.is_empty(),
        "{}\n{text}",
        String::from_utf8_lossy(&said)
    );
    Ok(())
}

/// Each alert asks for metrics that there are.
#[test]
fn the_alerts_are_rules_about_what_there_is() -> io::Result<()> {
    require!(program("promtool"));
    const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/alerts.yml");
    let checked = Command::new("promtool")
        .args(["check", "rules", RULES])
        .output()?;
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{said}");
    assert!(said.contains("14 rules found"), "{said}");
    let documented = include_str!("../../../docs/metrics.md");
    let rules = std::fs::read_to_string(RULES)?;
    let names = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    for name in names.filter(|name| name.starts_with("pepd_")) {
        let name = name.trim_end_matches("_bucket");
        assert!(
            documented.contains(&format!("`{name}`")),
            "no metric {name}"
        );
    }
    Ok(())
}

#[test]
fn both_formats_have_the_same_samples() {
    let view: Arc<dyn View> = fixture::Fixture::new();
    let [open, text] =
        [Exposition::OpenMetrics, Exposition::Text].map(|format| expose(&view, format).unwrap());
    assert!(open.ends_with("# EOF\n"));
    let names = |text| {
        samples(text)
            .into_keys()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&open), names(&text));
}

#[test]
fn outcomes_add_up_and_errors_have_their_names() {
    let text = exposition(Exposition::Text);
    let samples = samples(&text);
    let ended = |outcome: &str, side: &str, errno: &str| {
        let labels = format!("outcome=\"{outcome}\",side=\"{side}\",errno=\"{errno}\"");
        samples[format!("pepd_connections_ended_total{{{labels}}}").as_str()]
    };
    assert_eq!(ended("closed", "", ""), 10_311.0);
    assert_eq!(ended("failed", "client", "ECONNRESET"), 80.0);
    assert_eq!(ended("failed", "client", "ETIMEDOUT"), 6.0);
    assert_eq!(
        ended("failed", "client", ""),
        2.0,
        "88 less those with an errno"
    );
    assert_eq!(ended("failed", "upstream", "EHOSTUNREACH"), 11.0);
    assert_eq!(ended("failed", "upstream", ""), 0.0);
}

#[test]
fn histograms_hold_what_was_observed() {
    let text = exposition(Exposition::Text);
    let samples = samples(&text);
    let labels = "client_campus=\"island\",server_campus=\"office\",leg=\"client\"";
    let count = samples[format!("pepd_leg_rtt_seconds_count{{{labels}}}").as_str()];
    assert_eq!(count, 200.0);
    let below = |bound: &str| {
        samples[format!("pepd_leg_rtt_seconds_bucket{{le=\"{bound}\",{labels}}}").as_str()]
    };
    assert_eq!(below("0.5"), 0.0, "601 ms, and a tenth less at times");
    assert_eq!(below("0.75"), 200.0);
}

/// Every metric that the Grafana dashboard asks for exists.
#[test]
fn grafana_asks_for_what_there_is() {
    let dashboard: Value =
        serde_json::from_str(include_str!("../../../config/grafana.json")).unwrap();
    let mut questions = Vec::new();
    collect(&dashboard, &mut questions);
    let names: BTreeSet<&str> = questions
        .iter()
        .flat_map(|question| question.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .filter(|word| word.starts_with("pepd_") || word.starts_with("process_"))
        .collect();
    assert!(names.len() > 20, "{names:?}");
    let text = exposition(Exposition::Text);
    let samples = samples(&text);
    for name in names {
        let there = |series: &&str| series.split('{').next() == Some(name);
        assert!(samples.keys().any(there), "{name}");
    }
}

/// The values of `expr` and `query`, wherever they stand.
fn collect<'a>(value: &'a Value, questions: &mut Vec<&'a str>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                match value.as_str() {
                    Some(text) if key == "expr" || key == "query" => questions.push(text),
                    _ => collect(value, questions),
                }
            }
        }
        Value::Array(array) => array.iter().for_each(|value| collect(value, questions)),
        _ => {}
    }
}
