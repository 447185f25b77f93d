//! `pepd flows`: a table of the live connections.

use std::fmt::{Display, Write};

use pepd_admin::wire::{DirectionSnapshot, FlowList, FlowSnapshot, Status};

use crate::cli::FlowsArgs;
use crate::commands::client::Client;
use crate::commands::endpoint;
use crate::exit::{Failure, Result};
use crate::ui::format;
use crate::ui::labels;
use crate::ui::output::print;
use crate::ui::table;

/// Prints the flows that are asked for.
pub fn flows(args: &FlowsArgs) -> Result {
    let client = Client::new(&args.target)?;
    let address = endpoint::flows(&args.query());
    let mut text = client.get_text(&address)?;
    let list: FlowList = client.parse(&text)?;
    if let (Some(campus), 0) = (&args.campus, list.matching) {
        require_campus(campus, &client.get(endpoint::STATUS)?)?;
    }
    if args.json {
        text.push(b'\n');
        return print(&text);
    }
    print(describe(&list, table::width()).as_bytes())
}

/// Fails if the daemon has no campus of this name.
pub fn require_campus(name: &str, status: &Status) -> Result {
    let names: Vec<_> = status
        .campuses
        .iter()
        .map(|campus| campus.name.as_str())
        .collect();
    if names.contains(&name) {
        return Ok(());
    }
    let names = names.join(", ");
    Err(Failure::unavailable(format!(
        "--campus {name}: the daemon has no campus of that name; it has: {names}"
    )))
}

fn describe(list: &FlowList, width: Option<u16>) -> String {
    let FlowList {
        total,
        matching,
        flows,
    } = list;
    if flows.is_empty() {
        return match (total, matching) {
            (0, _) => "no connections\n".to_owned(),
            (_, 0) => format!("none of {total} connections matches\n"),
            _ => format!("none of {matching} connections shown\n"),
        };
    }
    let columns: Vec<_> = COLUMNS
        .iter()
        .filter(|column| !column.dispensable || table::is_wide(width))
        .collect();
    let header: Vec<_> = columns.iter().map(|column| column.name).collect();
    let numbers: Vec<_> = (0..columns.len())
        .filter(|&at| columns[at].number)
        .collect();
    let end = [1];
    let mut table = table::table(&header, &numbers, &end, width);
    for flow in flows {
        table.add_row(columns.iter().map(|column| (column.text)(flow)));
    }
    let mut text = table::text(&table);
    if matching > &flows.len() {
        let _ = writeln!(
            text,
            "{} of {matching} connections; --limit shows more",
            flows.len()
        );
    }
    text
}

/// A column of two lines: the client with what it sends, the server with what it sends.
struct Column {
    name: &'static str,
    number: bool,
    /// Left out where there is little room.
    dispensable: bool,
    text: fn(&FlowSnapshot) -> String,
}

#[rustfmt::skip] // a table
const COLUMNS: &[Column] = &[
    Column { name: "ID", number: true, dispensable: false, text: |f| f.id.to_string() },
    Column { name: "END", number: false, dispensable: false, text: |f| two_lines(f.client, f.server) },
    Column { name: "CAMPUS", number: false, dispensable: true, text: |f| two_lines(&f.client_campus, &f.server_campus) },
    Column { name: "AGE", number: false, dispensable: true, text: |f| format::age(f.age) },
    Column { name: "GOODPUT", number: true, dispensable: false, text: |f| two_lines(goodput(&f.up), goodput(&f.down)) },
    Column { name: "QUEUE", number: true, dispensable: false, text: |f| two_lines(queue(&f.up), queue(&f.down)) },
    Column { name: "RTT", number: true, dispensable: false, text: |f| two_lines(labels::rtt(&f.client_leg), labels::rtt(&f.upstream_leg)) },
    Column { name: "CWND", number: true, dispensable: true, text: |f| two_lines(labels::cwnd(&f.client_leg), labels::cwnd(&f.upstream_leg)) },
    Column { name: "RETR", number: true, dispensable: false, text: |f| two_lines(labels::retransmitted(&f.client_leg), labels::retransmitted(&f.upstream_leg)) },
    Column { name: "PHASE", number: false, dispensable: false, text: |f| two_lines(labels::main_phase(&f.up.carrying()), labels::main_phase(&f.down.carrying())) },
];

fn two_lines(client: impl Display, server: impl Display) -> String {
    format!("{client}\n{server}")
}

fn queue(direction: &DirectionSnapshot) -> String {
    format::bytes(direction.queue.total())
}

fn goodput(direction: &DirectionSnapshot) -> String {
    format::rate(direction.goodput.last_ten_seconds)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use pepd_admin::View;
    use pepd_admin::fixture::Fixture;

    use super::*;

    fn list(shown: u64) -> FlowList {
        FlowList {
            total: 250,
            matching: 120,
            flows: Fixture::new(shown).flows(),
        }
    }

    #[test]
    fn at_80_columns() {
        let text = describe(&list(6), Some(80));
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert_snapshot!(text);
    }

    #[test]
    fn without_a_terminal() {
        assert_snapshot!(describe(&list(6), None));
    }

    #[test]
    fn none() {
        assert_snapshot!(describe(&list(0), None), @"none of 120 connections shown");
    }
}
