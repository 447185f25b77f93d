//! The configuration file.

use std::num::NonZeroUsize;

use pepd_config::{Config, Context, Report, parse, parse_all};
use pepd_net::{Plan, QueueBackend};

use crate::daemon::controls::Controls;

#[path = "../../../src/daemon/wiring.rs"]
#[allow(dead_code, unreachable_pub, reason = "a file of the daemon's")]
mod wiring;

/// Reads a file. What is refused is said with its place; what is accepted can be planned, and is
/// accepted again.
pub fn run(bytes: &[u8]) {
    crate::text(bytes, |text| {
        match parse(ORIGIN, text, &context()) {
            Ok(config) => {
                assert!(
                    planned(&config).is_some(),
                    "there is an address for each leg"
                );
                let again = parse(ORIGIN, text, &context());
                assert_eq!(Some(config), again.ok());
            }
            Err(report) => refused(&report, text),
        }
        match parse_all(ORIGIN, text, &context()) {
            Ok(boxes) => {
                assert!(!boxes.is_empty());
                assert!(boxes.iter().all(|config| planned(config).is_some()));
            }
            Err(report) => refused(&report, text),
        }
    });
}

/// Returns the plan of a file.
pub fn plan(text: &str) -> Option<Plan> {
    planned(&parse(ORIGIN, text, &context()).ok()?)
}

const ORIGIN: &str = "file.toml";

fn context() -> Context {
    Context {
        ephemeral_ports: 32768..=60999,
        node: None,
        host: Some("hb-a".to_owned()),
    }
}

/// Says what is wrong, on lines that there are.
fn refused(report: &Report, text: &str) {
    let said = report.to_string();
    assert!(said.contains(ORIGIN), "{said}");
    assert!(!report.render(true).is_empty());
    let places = said
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--> file.toml:"));
    for place in places {
        let line = place.split(':').next().and_then(|line| line.parse().ok());
        // What is missing is missed at the end, which may be a line of its own.
        let lines = text.matches('\n').count() + text.matches('\r').count() + 1;
        assert!(
            line.is_some_and(|line: usize| (1..=lines).contains(&line)),
            "{said}"
        );
    }
}

fn planned(config: &Config) -> Option<Plan> {
    let settings = wiring::settings(config, &Controls);
    let listeners = pepd_relay::listener_addresses(&settings).ok()?;
    let mut last = None;
    for backend in [QueueBackend::Nft, QueueBackend::Iptables] {
        let backend = (config.holds_syns() || config.holds_acks()).then_some(backend);
        let workers = config.node.workers.unwrap_or(NonZeroUsize::MIN);
        let request = wiring::request(config, &listeners, workers, backend);
        let plan = Plan::new(&request);
        assert!(plan.to_string().contains("table inet pepd"));
        last = Some(plan);
    }
    last
}
