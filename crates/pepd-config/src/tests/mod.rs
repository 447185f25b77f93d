//! Tests of the crate as a whole: text in, configuration or report out.

mod designed;
mod diagnostics;
mod files;
mod fleet;
mod properties;
mod values;

use crate::{Config, Context, Which, parse, read};

/// As on a host that nobody has tuned.
fn context() -> Context {
    Context {
        ephemeral_ports: 32768..=60999,
        node: None,
        host: None,
    }
}

/// Returns the report on a file that this version must refuse.
fn refusal(text: &str) -> String {
    parse("pepd.toml", text, &context())
        .expect_err("must be refused")
        .to_string()
}

fn designed(text: &str) -> Result<Config, String> {
    designed_for(text, &context(), Which::This).map(|mut configs| configs.remove(0))
}

fn designed_for(text: &str, context: &Context, which: Which) -> Result<Vec<Config>, String> {
    read(text, context, which)
        .map_err(|problems| problems.into_report("pepd.toml", text).to_string())
}

/// Returns a small valid file, followed by `more`.
fn with(more: &str) -> String {
    format!("{MINIMAL}\n{more}")
}

const MINIMAL: &str = r#"[node]
name = "hb-a"

[[campus]]
name = "a"
prefixes = ["10.1.0.0/16"]

[[campus]]
name = "b"
prefixes = ["10.2.0.0/16"]
"#;
