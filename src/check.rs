//! `pepd check`: validate, and print what the configuration means.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use pepd_config::{Config, Handshake, Via};

use crate::cli::{File, print};
use crate::exit::Result;
use crate::source;

/// Validates the file and prints its resolved table.
pub fn check(file: &File) -> Result {
    let config = source::read(&file.path)?;
    print(describe(&config).as_bytes())
}

fn describe(config: &Config) -> String {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_header(["CAMPUS", "PREFIXES", "NEXT BOX", "LEG"]);
    for campus in &config.campuses {
        let prefixes: Vec<_> = campus.prefixes.iter().map(ToString::to_string).collect();
        let next = match campus.via {
            Via::Local => "local",
            Via::Routing => "routing",
            Via::Peer(peer) => config
                .peers
                .get(peer.0)
                .map_or("", |peer| peer.name.as_str()),
        };
        let leg = config.leg(campus.leg);
        let congestion = leg
            .congestion
            .as_deref()
            .unwrap_or("the kernel's congestion control");
        let leg = format!("{} ({congestion})", leg.name);
        table.add_row([campus.name.as_str(), &prefixes.join("\n"), next, &leg]);
    }
    let handshake = match config.capture.handshake {
        Handshake::Early => "early: a client is answered before its destination",
        Handshake::EndToEnd => "end-to-end: a client is answered when its destination has",
    };
    // comfy-table pads the last column; nobody needs that.
    let table: Vec<_> = table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    format!(
        "node {}: {} campuses, {} rules\nhandshake {handshake}\n\n{}\n",
        config.node.name,
        config.campuses.len(),
        config.rules.len(),
        table.join("\n"),
    )
}
