//! What the doctor's tests share.

use pepd_config::Config;

use super::finding::{Finding, Level};

/// Returns a configuration of two campuses with a leg each, and `more`.
pub fn config(more: &str) -> Config {
    let text = format!(
        r#"
        [node]
        name = "hb-a"
        [[campus]]
        name = "a"
        prefixes = ["10.1.0.0/16", "fd00:a::/48"]
        leg = "lan"
        [[campus]]
        name = "b"
        prefixes = ["10.2.0.0/16", "fd00:b::/48"]
        leg = "wan"
        [leg.lan]
        [leg.wan]
        {more}"#
    );
    let context = pepd_config::Context {
        ephemeral_ports: 32768..=60999,
        node: None,
        host: None,
    };
    pepd_config::parse("pepd.toml", &text, &context)
        .unwrap_or_else(|report| panic!("{}", report.render(false)))
}

/// Returns the level of the first finding with this id.
pub fn level(findings: &[Finding], id: &str) -> Option<Level> {
    findings.iter().find(|f| f.id == id).map(|f| f.level)
}
