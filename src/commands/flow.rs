//! `pepd flow ID`: everything about one connection.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::thread;
use std::time::Duration;

use crossterm::cursor::MoveTo;
use crossterm::execute;
use crossterm::terminal::{Clear, ClearType};
use hyper::StatusCode;
use pepd_admin::wire::{
    BufferFigures, DirectionSnapshot, FlowSnapshot, HandshakeMode, LegSnapshot, PhaseSeconds,
};

use crate::cli::FlowArgs;
use crate::commands::client::{Client, Error};
use crate::commands::endpoint;
use crate::exit::{Failure, Result};
use crate::ui::format;
use crate::ui::labels;
use crate::ui::output::print;
use crate::ui::table;

/// The interval at which a connection is shown again: as often as the daemon samples it.
const PERIOD: Duration = Duration::from_secs(1);

/// Prints one connection, and with `--watch` again each second for as long as it lives.
pub fn flow(args: &FlowArgs) -> Result {
    let client = Client::new(&args.target)?;
    let address = endpoint::flow(args.id);
    show(&client, &address, args)?;
    if !args.watch {
        return Ok(());
    }
    loop {
        thread::park_timeout(PERIOD);
        match show(&client, &address, args) {
            Ok(()) => {}
            // It was there before.
            Err(ShowError::Client(Error::Refused {
                status: StatusCode::NOT_FOUND,
                ..
            })) => {
                let _ = writeln!(io::stderr(), "connection {} has ended", args.id);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The reasons why a connection was not shown.
enum ShowError {
    Client(Error),
    Output(Failure),
}

impl From<ShowError> for Failure {
    fn from(error: ShowError) -> Self {
        match error {
            ShowError::Client(error) => error.into(),
            ShowError::Output(failure) => failure,
        }
    }
}

fn show(client: &Client, address: &str, args: &FlowArgs) -> std::result::Result<(), ShowError> {
    let text = if args.json {
        let mut text = client.get_text(address).map_err(ShowError::Client)?;
        text.push(b'\n');
        text
    } else {
        let flow: FlowSnapshot = client.get(address).map_err(ShowError::Client)?;
        describe(&flow, table::width()).into_bytes()
    };
    if args.watch && !args.json && io::stdout().is_terminal() {
        // Where the screen cannot be cleared, the figures follow each other.
        let _ = execute!(io::stdout(), MoveTo(0, 0), Clear(ClearType::FromCursorDown));
    }
    print(&text).map_err(ShowError::Output)
}

fn describe(flow: &FlowSnapshot, width: Option<u16>) -> String {
    let mut text = format!(
        "connection {}: {} ({}) → {} ({})\nopen for {}, {}{}\n\n",
        flow.id,
        flow.client,
        flow.client_campus,
        flow.server,
        flow.server_campus,
        format::age(flow.age),
        match flow.handshake {
            HandshakeMode::EndToEnd => "accepted when the server had answered",
            HandshakeMode::Early => "accepted before the server had answered",
        },
        flow.first_byte.map_or_else(String::new, |time| format!(
            ", first byte after {}",
            format::seconds(time)
        )),
    );
    if let Some(came) = &flow.came {
        let (from, pause) = (&came.from, format::seconds(came.pause));
        let age = format::age(came.age);
        let _ = write!(
            text,
            "it came from {from} {age} ago, and stood still for {pause}\n\n"
        );
    }
    text += &directions(flow, width);
    text.push('\n');
    text += &legs(flow, width);
    let _ = write!(text, "\n{}", verdict(flow));
    text
}

fn directions(flow: &FlowSnapshot, width: Option<u16>) -> String {
    let mut table = table::table(
        &["", "CLIENT → SERVER", "SERVER → CLIENT"],
        &[1, 2],
        &[],
        width,
    );
    let mut row = |name: &str, of: &dyn Fn(&DirectionSnapshot) -> String| {
        table.add_row([name.to_owned(), of(&flow.up), of(&flow.down)]);
    };
    row("goodput, last second", &|d| {
        format::rate(d.goodput.last_second)
    });
    row("last ten seconds", &|d| {
        format::rate(d.goodput.last_ten_seconds)
    });
    row("since it began", &|d| format::rate(d.goodput.life));
    row("bytes", &|d| format::bytes(d.bytes));
    row("waiting: not read", &|d| format::bytes(d.queue.unread));
    row("in the pipe", &|d| format::bytes(d.queue.pipe));
    row("not sent", &|d| format::bytes(d.queue.unsent));
    row("at most", &|d| format::bytes(d.queue_max));
    row("phase", &|d| {
        d.phase.map_or("ended", labels::phase_name).to_owned()
    });
    row("free", &|d| share(&d.carrying(), |times| times.free));
    row("starved", &|d| share(&d.carrying(), |times| times.starved));
    row("backpressured", &|d| {
        share(&d.carrying(), |times| times.backpressured)
    });
    row("idle, beside these", &|d| format::age(d.idle));
    table::text(&table)
}

fn share(times: &PhaseSeconds, of: fn(&PhaseSeconds) -> f64) -> String {
    let all = times.total();
    if all > 0.0 {
        format::percent(of(times) / all)
    } else {
        "–".to_owned()
    }
}

fn legs(flow: &FlowSnapshot, width: Option<u16>) -> String {
    let mut table = table::table(&["", "CLIENT LEG", "UPSTREAM LEG"], &[1, 2], &[], width);
    for (name, of) in LEG_ROWS {
        table.add_row([
            (*name).to_owned(),
            of(&flow.client_leg),
            of(&flow.upstream_leg),
        ]);
    }
    table::text(&table)
}

type LegRow = (&'static str, fn(&LegSnapshot) -> String);

const LEG_ROWS: &[LegRow] = &[
    ("configured by", |leg| format!("[leg.{}]", leg.profile)),
    ("congestion control", |leg| {
        leg.congestion.clone().unwrap_or_else(none)
    }),
    ("link", |leg| labels::link(leg.link).to_owned()),
    ("RTT", labels::rtt),
    ("least RTT", |leg| time(leg.tcp.and_then(|t| t.min_rtt))),
    ("cwnd, segments", labels::cwnd),
    ("in flight", |leg| {
        leg.tcp.map_or_else(none, |t| t.unacked.to_string())
    }),
    ("MSS", |leg| {
        leg.tcp.map_or_else(none, |t| format!("{} B", t.mss))
    }),
    ("pacing rate", |leg| {
        rate(leg.tcp.and_then(|t| t.pacing_rate))
    }),
    ("delivery rate", |leg| {
        rate(leg.tcp.and_then(|t| t.delivery_rate))
    }),
    ("retransmitted segments", labels::retransmitted),
    ("of the bytes sent", |leg| {
        let share = leg.tcp.and_then(|tcp| {
            let sent = tcp.sent_bytes.filter(|sent| *sent > 0)?;
            Some(format::number(tcp.retransmitted_bytes?) / format::number(sent))
        });
        share.map_or_else(none, format::permille)
    }),
    ("time busy", |leg| seconds(leg.tcp.and_then(|t| t.busy))),
    ("limited by its receiver", |leg| {
        seconds(leg.tcp.and_then(|t| t.receive_window_limited))
    }),
    ("limited by the send buffer", |leg| {
        seconds(leg.tcp.and_then(|t| t.send_buffer_limited))
    }),
    ("send buffer", |leg| {
        buffer(leg.buffers.map(|both| both.send))
    }),
    ("receive buffer", |leg| {
        buffer(leg.buffers.map(|both| both.receive))
    }),
];

/// Tells what a buffer may hold, and who says so.
fn buffer(buffer: Option<BufferFigures>) -> String {
    buffer.map_or_else(none, |of| {
        format!("{}, by {}", format::bytes(of.size), of.why.name())
    })
}

fn none() -> String {
    "–".to_owned()
}

fn time(time: Option<f64>) -> String {
    time.map_or_else(none, format::seconds)
}

fn seconds(time: Option<f64>) -> String {
    time.map_or_else(none, |time| format!("{time:.1} s"))
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(none, format::rate)
}

/// Returns what the phases say, in words, of the direction that carries more.
fn verdict(flow: &FlowSnapshot) -> String {
    let (direction, incoming, outgoing) = if flow.up.bytes > flow.down.bytes {
        (&flow.up, "client", "upstream")
    } else {
        (&flow.down, "upstream", "client")
    };
    let phases = direction.carrying();
    let all = phases.total();
    if direction.bytes == 0 || all <= 0.0 {
        return String::new();
    }
    let (starved, backpressured) = (phases.starved / all, phases.backpressured / all);
    if starved > 0.5 {
        format!("mostly starved: it waits for the {incoming} leg\n")
    } else if backpressured > 0.5 {
        format!("mostly backpressured: it waits for the {outgoing} leg\n")
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use pepd_admin::fixture;

    use super::*;

    #[test]
    fn at_80_columns() {
        let text = describe(&fixture::flow(7), Some(80));
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert_snapshot!(text);
    }

    #[test]
    fn a_leg_that_has_closed_has_no_figures() {
        let mut flow = fixture::flow(3);
        flow.client_leg.tcp = None;
        flow.up.phase = None;
        flow.first_byte = None;
        assert_snapshot!(describe(&flow, None));
    }
}
