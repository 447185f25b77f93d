//! `pepd check`: validate, and print what the configuration means.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use pepd_config::{Config, Congestion, Handshake, Via};

use crate::cli::Check;
use crate::config_file;
use crate::daemon::controls;
use crate::exit::Result;
use crate::ui::output::print;
use crate::ui::table;

/// Validates the file and prints its resolved table, or that of each box of the fleet.
pub fn check(Check { file, all }: &Check) -> Result {
    let configs = if *all {
        config_file::read_all(file)?
    } else {
        vec![config_file::read(file)?]
    };
    let tables: Vec<_> = configs.iter().map(describe).collect();
    print(tables.join("\n").as_bytes())
}

fn describe(config: &Config) -> String {
    let handshake = match config.capture.handshake {
        Handshake::Early => "early: a client is answered before its destination",
        Handshake::EndToEnd => "end-to-end: a client is answered when its destination has",
    };
    let mut text = format!(
        "node {}: {} campuses, {} rules\nhandshake {handshake}\n\n{}",
        config.node.name,
        config.campuses.len(),
        config.rules.len(),
        table::text(&campuses(config)),
    );
    text = format!("{text}\n{}", table::text(&legs(config)));
    if config.rules.iter().any(|rule| rule.weight > 1) {
        text = format!("{text}\n{}", table::text(&weights(config)));
    }
    if !config.peers.is_empty() {
        text = format!("{text}\n{}", table::text(&peers(config)));
    }
    text
}

fn campuses(config: &Config) -> Table {
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
            .as_ref()
            .map_or("the kernel's congestion control", Congestion::as_str);
        let leg = format!("{} ({congestion})", leg.name);
        table.add_row([campus.name.as_str(), &prefixes.join("\n"), next, &leg]);
    }
    table
}

/// Says when each leg gives up a host that is no longer there.
fn legs(config: &Config) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header([
        "LEG",
        "SILENT: PROBED AFTER",
        "GIVEN UP AFTER",
        "DATA NOT ACKNOWLEDGED",
        "ITS LINK IS TOLD BY",
        "RATE SHARED BY",
    ]);
    for leg in &config.legs {
        let keepalive = leg.keepalive;
        let patience = leg.user_timeout.unwrap_or(keepalive.patience());
        let unacknowledged = leg
            .user_timeout
            .map_or("the kernel's tcp_retries2".to_owned(), |time| {
                format!("{time:?}")
            });
        table.add_row([
            leg.name.as_str(),
            &format!("{:?}", keepalive.idle),
            &format!("{patience:?}"),
            &unacknowledged,
            &leg.link
                .as_ref()
                .map_or("pepd link".to_owned(), ToString::to_string),
            match controls::is_asked_for(leg) {
                true => leg.share.as_str(),
                false => "-",
            },
        ]);
    }
    table
}

/// Says which connections count as several, by the number of their rule in the file.
fn weights(config: &Config) -> Table {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_header(["RULE", "WEIGHT", "CLIENTS", "SERVERS", "PORTS"]);
    for (number, rule) in (1..).zip(&config.rules).filter(|(_, rule)| rule.weight > 1) {
        let ports = rule
            .destination_port
            .iter()
            .map(|it| match it.start() == it.end() {
                true => it.start().to_string(),
                false => format!("{}-{}", it.start(), it.end()),
            });
        table.add_row([
            format!("{number}"),
            rule.weight.to_string(),
            any(rule.source.iter().map(ToString::to_string)),
            any(rule.destination.iter().map(ToString::to_string)),
            any(ports),
        ]);
    }
    table
}

fn any(listed: impl Iterator<Item = String>) -> String {
    let listed: Vec<_> = listed.collect();
    match listed.is_empty() {
        true => "any".to_owned(),
        false => listed.join("\n"),
    }
}

fn peers(config: &Config) -> Table {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_header(["PEER", "LOCAL", "REMOTE", "MTU", "PROBE"]);
    for peer in &config.peers {
        let mtu = peer.mtu.map_or("path".to_owned(), |mtu| mtu.to_string());
        let probe = peer
            .probe
            .map_or("off".to_owned(), |probe| format!("{probe:?}"));
        let [local, remote] = [peer.local, peer.remote].map(|address| address.to_string());
        table.add_row([&peer.name, &local, &remote, &mtu, &probe]);
    }
    table
}
