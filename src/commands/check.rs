//! `pepd check`: validate, and print what the configuration means.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use pepd_config::{
    Action, Buffer, Config, Congestion, Dscp, Handshake, Leg, Split, Via, WhileGone,
};

use crate::cli::Check;
use crate::config_file;
use crate::daemon::{controls, resources};
use crate::doctor::{congestion, tunnels};
use crate::exit::Result;
use crate::ui::output::print;
use crate::ui::table;

/// Validates the file and prints its resolved table, or that of each box of the fleet. What this host's
/// kernel lacks is said of this box only: the others are other hosts.
pub fn check(Check { file, all }: &Check) -> Result {
    if *all {
        let configs = config_file::read_all(file)?;
        let tables: Vec<_> = configs.iter().map(describe).collect();
        return print(tables.join("\n").as_bytes());
    }
    let config = config_file::read(file)?;
    let mut text = describe(&config);
    let legs = congestion::refused_here(&config).into_iter();
    let legs = legs.map(|(leg, what)| format!("leg {leg}: {what}"));
    let peers = tunnels::refused_here(&config).into_iter();
    let peers = peers.map(|(module, what)| format!("tunnels by {module}: {what}"));
    let holding = resources::refused_here(&config).map(|why| format!("to hold packets: {why}"));
    for (at, what) in legs.chain(peers).chain(holding).enumerate() {
        let gap = if at == 0 { "\n" } else { "" };
        text += &format!("{gap}on this host `pepd run` would refuse {what}\n");
    }
    if let Some(path) = &config.node.state
        && let Some(directory) = path.parent().filter(|directory| !directory.is_dir())
    {
        text += &format!(
            "\non this host nothing would be kept in {}: {} is no directory (mkdir it; under systemd \
             StateDirectory= does)\n",
            path.display(),
            directory.display()
        );
    }
    print(text.as_bytes())
}

fn describe(config: &Config) -> String {
    let handshake = match config.capture.handshake {
        Handshake::Early => "early: a client is answered before its destination",
        Handshake::EndToEnd => "end-to-end: a client is answered when its destination has",
    };
    let mut text = format!(
        "node {}: {} campuses, {} {}\nhandshake {handshake}\n\n{}",
        config.node.name,
        config.campuses.len(),
        config.rules.len(),
        if config.rules.len() == 1 {
            "rule"
        } else {
            "rules"
        },
        table::text(&campuses(config)),
    );
    text = format!(
        "{text}\n{}\n{}",
        table::text(&settings(config)),
        table::text(&legs(config))
    );
    if let Some(memory) = config.limits.memory {
        text = format!("{text}\nconnections may hold {memory} altogether\n");
    }
    if let Some(path) = &config.node.state {
        let path = path.display();
        text = format!("{text}\nwhat is learned of the legs' paths is kept in {path}\n");
    }
    if let Some(measured) = measured(config) {
        text = format!("{text}\n{measured}\n");
    }
    if !config.rules.is_empty() {
        text = format!("{text}\n{}", table::text(&rules(config)));
    }
    if !config.peers.is_empty() {
        text = format!("{text}\n{}", table::text(&peers(config)));
    }
    if !config.moves.neighbors.is_empty() {
        text = format!("{text}\n{}", table::text(&neighbors(config)));
        text += &match config.moves.listen {
            Some(listen) => format!("connections of theirs are taken at {listen}\n"),
            None => "connections of theirs are not taken: [move] has no listen\n".to_owned(),
        };
    }
    let unused: Vec<_> = unused_legs(config).collect();
    if !unused.is_empty() {
        text += &format!("\nno campus has the leg {}\n", unused.join(", "));
    }
    text
}

/// Says what is found out about what splitting is worth, where anything is.
fn measured(config: &Config) -> Option<String> {
    let share = config.measured()?;
    let measured = format!(
        "{share} of the connections that would be split are routed, to see what splitting is worth"
    );
    Some(match config.capture.split {
        Split::Auto => format!("connections are split between campuses where it pays; {measured}"),
        Split::Always => measured,
    })
}

/// Names the legs that no campus has.
fn unused_legs(config: &Config) -> impl Iterator<Item = &str> {
    let is_used = |at| config.campuses.iter().any(|campus| campus.leg.0 == at);
    let legs = config.legs.iter().enumerate();
    legs.filter(move |(at, _)| !is_used(*at))
        .map(|(_, leg)| leg.name.as_str())
}

/// What the file says of each leg; the kernel's own value where it says nothing.
fn settings(config: &Config) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header([
        "LEG",
        "CONGESTION",
        "BUFFER",
        "RATE",
        "INITIAL WINDOW",
        "MSS",
        "AND",
    ]);
    for leg in &config.legs {
        table.add_row([
            leg.name.clone(),
            said(leg.congestion.as_ref().map(Congestion::as_str)),
            buffer(leg.buffer),
            leg.rate
                .map_or_else(|| "no ceiling".to_owned(), |rate| rate.to_string()),
            initial_window(leg),
            said(leg.mss),
            more(leg),
        ]);
    }
    table
}

/// What connections of a leg begin with: with a control of pepd's own their share of its rate at once, so that a number
/// counts only for what is let in.
fn initial_window(leg: &Leg) -> String {
    let is_own = leg.congestion.as_ref().is_some_and(Congestion::is_own);
    match leg.initial_window {
        None if is_own => "its share".to_owned(),
        Some(window) if is_own => format!("its share ({window} in)"),
        window => said(window),
    }
}

fn said(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "the kernel's".to_owned(), |value| value.to_string())
}

/// The settings of a leg that few have.
fn more(leg: &Leg) -> String {
    let mut more = Vec::new();
    if leg.fast_open {
        more.push("fast open".to_owned());
    }
    if leg.thin {
        more.push("thin".to_owned());
    }
    if let Dscp::Set(dscp) = leg.dscp {
        more.push(format!("DSCP {dscp}"));
    }
    if let Some(bytes) = leg.notsent_lowat {
        more.push(format!("at most {bytes} unsent"));
    }
    if let Some(time) = leg.rto_max {
        more.push(format!("repeats after {time:?} at most"));
    }
    match leg.while_gone {
        WhileGone::Wait => {}
        WhileGone::Refuse => more.push("refuses while its link is gone".to_owned()),
        WhileGone::Route => more.push("routes while its link is gone".to_owned()),
    }
    more.join(", ")
}

/// The rules, in their order: the first that matches decides.
fn rules(config: &Config) -> Table {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_header(["RULE", "FROM", "TO", "PORTS", "ACTION"]);
    for (rule, number) in config.rules.iter().zip(1..) {
        let action = match (rule.action, rule.handshake) {
            (Action::Bypass, _) => "bypass: routed, not split",
            (Action::HoldAcks, _) => "hold-acks: routed, its ACKs held while a link is gone",
            (Action::Auto, _) => "auto: split where it pays",
            (Action::Split, Some(Handshake::Early)) => "split, handshake early",
            (Action::Split, Some(Handshake::EndToEnd)) => "split, handshake end-to-end",
            (Action::Split, None) => "split",
        };
        let ports = rule.destination_port.iter().map(|ports| {
            let (first, last) = (ports.start(), ports.end());
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        });
        let number: i32 = number;
        let weight = match rule.weight {
            1 => String::new(),
            weight => format!(", weight {weight}"),
        };
        table.add_row([
            number.to_string(),
            any(rule.source.iter().map(ToString::to_string)),
            any(rule.destination.iter().map(ToString::to_string)),
            any(ports),
            format!("{action}{weight}"),
        ]);
    }
    table
}

fn any(values: impl Iterator<Item = String>) -> String {
    let values: Vec<_> = values.collect();
    if values.is_empty() {
        "any".to_owned()
    } else {
        values.join("\n")
    }
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

/// Says what a leg may hold in each direction.
fn buffer(buffer: Option<Buffer>) -> String {
    said(buffer.map(|buffer| match buffer {
        Buffer::Size(size) => size.to_string(),
        Buffer::Auto => Buffer::AUTO.to_owned(),
    }))
}

fn neighbors(config: &Config) -> Table {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_header(["NEIGHBOR", "ADDRESS", "VIA", "KEY"]);
    for neighbor in &config.moves.neighbors {
        let v4 = neighbor.v4.map(|it| it.to_string());
        let via = v4.into_iter().chain(neighbor.v6.map(|it| it.to_string()));
        table.add_row([
            neighbor.name.clone(),
            neighbor.address.to_string(),
            via.collect::<Vec<_>>().join(", "),
            neighbor.key.display().to_string(),
        ]);
    }
    table
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
