//! The list of connections.

use std::ops::Range;

use pepd_admin::wire::{DirectionSnapshot, FlowSnapshot, LegSnapshot};
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Row, Table};

use super::app::App;
use super::phases;
use crate::ui::format;
use crate::ui::labels;

/// A column that is shown on screens that are so wide.
struct Column {
    name: &'static str,
    /// Cells; a column without a width takes what is left.
    width: Option<u16>,
    on: Range<u16>,
    text: fn(&FlowSnapshot) -> String,
}

/// No screen is too wide.
const MAX: u16 = u16::MAX;

#[rustfmt::skip] // a table
const COLUMNS: &[Column] = &[
    Column { name: "ID", width: Some(5), on: 0..MAX, text: |f| f.id.to_string() },
    Column { name: "CLIENT", width: None, on: 0..MAX, text: |f| f.client.to_string() },
    Column { name: "SERVER", width: None, on: 0..MAX, text: |f| f.server.to_string() },
    Column { name: "CAMPUSES", width: Some(15), on: 150..MAX, text: |f| format!("{} → {}", f.client_campus, f.server_campus) },
    Column { name: "AGE", width: Some(7), on: 110..MAX, text: |f| format::age(f.age) },
    Column { name: "↑bit/s", width: Some(6), on: 50..90, text: |f| short_rate(f.up.goodput.last_ten_seconds) },
    Column { name: "↓bit/s", width: Some(6), on: 50..90, text: |f| short_rate(f.down.goodput.last_ten_seconds) },
    Column { name: "↑", width: Some(11), on: 90..MAX, text: |f| format::rate(f.up.goodput.last_ten_seconds) },
    Column { name: "↓", width: Some(11), on: 90..MAX, text: |f| format::rate(f.down.goodput.last_ten_seconds) },
    Column { name: "↑ BYTES", width: Some(8), on: 185..MAX, text: |f| format::bytes(f.up.bytes) },
    Column { name: "↓ BYTES", width: Some(8), on: 185..MAX, text: |f| format::bytes(f.down.bytes) },
    Column { name: "QUEUE", width: Some(8), on: 100..MAX, text: |f| format::bytes(f.up.queue.total() + f.down.queue.total()) },
    Column { name: "RTT", width: Some(7), on: 70..MAX, text: |f| labels::rtt(&f.client_leg) },
    Column { name: "+ RTT", width: Some(7), on: 70..MAX, text: |f| labels::rtt(&f.upstream_leg) },
    Column { name: "CWND", width: Some(5), on: 130..MAX, text: |f| labels::cwnd(&f.client_leg) },
    Column { name: "+ CWND", width: Some(6), on: 130..MAX, text: |f| labels::cwnd(&f.upstream_leg) },
    Column { name: "RETR", width: Some(5), on: 120..MAX, text: retransmitted },
    Column { name: "CONTROL", width: Some(15), on: 165..MAX, text: |f| format!("{} + {}", control(&f.client_leg), control(&f.upstream_leg)) },
];

/// Writes `48.0M` for 48.0 Mbit/s: both directions have room on a narrow screen.
fn short_rate(bits_per_second: f64) -> String {
    let text = format::rate(bits_per_second);
    let Some((number, unit)) = text.split_once(' ') else {
        return text;
    };
    format!("{number}{}", unit.trim_end_matches("bit/s"))
}

/// Draws the list.
pub fn draw(frame: &mut Frame, app: &mut App, area: Rect) {
    let columns: Vec<_> = COLUMNS
        .iter()
        .filter(|c| c.on.contains(&area.width))
        .collect();
    let widths = widths(&columns, &app.list.flows, area.width);
    let rows = app.list.flows.iter().map(|flow| {
        let cells = columns.iter().zip(&widths).map(|(column, width)| {
            let text = (column.text)(flow);
            match column.width {
                None => Cell::from(shortened(&text, *width)),
                Some(_) => Cell::from(Line::from(text).right_aligned()),
            }
        });
        Row::new(cells.chain([Cell::from(phases_of(flow))]))
    });
    let names = columns.iter().map(|column| {
        let name = Line::from(column.name);
        Cell::from(if column.width.is_some() {
            name.right_aligned()
        } else {
            name
        })
    });
    let widths = widths
        .iter()
        .copied()
        .chain([PHASES])
        .map(Constraint::Length);
    let header = Row::new(names.chain([Cell::from("PHASES")]))
        .style(Style::new().add_modifier(Modifier::BOLD));
    let table = Table::new(rows, widths)
        .header(header)
        .column_spacing(1)
        .row_highlight_style(Modifier::REVERSED)
        .block(Block::bordered().title(title(app)));
    frame.render_stateful_widget(table, area, &mut app.table);
}

/// Gives each column its width: those without one get what they need, and if there is less, share
/// it.
fn widths(columns: &[&Column], flows: &[FlowSnapshot], width: u16) -> Vec<u16> {
    let longest = |column: &&Column| {
        let lengths = flows.iter().map(|flow| (column.text)(flow).chars().count());
        lengths
            .chain([column.name.len()])
            .max()
            .and_then(|length| u16::try_from(length).ok())
            .unwrap_or(u16::MAX)
    };
    let fixed: u16 = columns.iter().filter_map(|column| column.width).sum();
    let gaps = u16::try_from(columns.len()).unwrap_or(0);
    // Beside them are the border and the phases.
    let mut left = width.saturating_sub(2 + PHASES + fixed + gaps);
    let open = columns.iter().filter(|column| column.width.is_none());
    let mut wanting = u16::try_from(open.count()).unwrap_or(0);
    // From the last, which is the server and usually the shorter one.
    let mut widths: Vec<_> = columns
        .iter()
        .rev()
        .map(|column| {
            column.width.unwrap_or_else(|| {
                let given = longest(column).min(left / wanting.max(1));
                left -= given;
                wanting -= 1;
                given
            })
        })
        .collect();
    widths.reverse();
    widths
}

fn title(app: &App) -> String {
    let list = &app.list;
    let mut title = format!(" {} connections", format::count(as_count(list.total)));
    if !app.filter.text.is_empty() {
        title += &format!(
            ", {} match `{}` (Esc: all)",
            format::count(as_count(list.matching)),
            app.filter.text
        );
    }
    if list.flows.len() < list.matching {
        title += &format!(", the first {}", list.flows.len());
    }
    title + &format!(", by {} ", app.sort.name())
}

/// The width of the phases, as in `↑S90 ↓B100`.
const PHASES: u16 = 10;

fn phases_of(flow: &FlowSnapshot) -> Line<'static> {
    let part = |arrow, direction: &DirectionSnapshot| {
        let times = direction.carrying();
        let text = format!("{arrow}{:<4}", phases::short(&times));
        if times.total() > 0.0 {
            Span::styled(text, Style::new().fg(phases::color(&times)))
        } else {
            Span::raw(text)
        }
    };
    Line::from(vec![part('↑', &flow.up), part('↓', &flow.down)])
}

fn retransmitted(flow: &FlowSnapshot) -> String {
    let legs = [&flow.client_leg, &flow.upstream_leg];
    let tcp = legs.iter().filter_map(|leg| leg.tcp.as_ref());
    tcp.map(|tcp| u64::from(tcp.retransmitted_segments))
        .sum::<u64>()
        .to_string()
}

fn control(leg: &LegSnapshot) -> &str {
    leg.congestion.as_deref().unwrap_or("–")
}

/// Shortens an address to so many cells: the end says more than the middle.
fn shortened(address: &str, width: u16) -> String {
    let width = usize::from(width);
    let length = address.chars().count();
    if length <= width {
        return address.to_owned();
    }
    let tail = width.saturating_sub(1) * 2 / 3;
    let head = width.saturating_sub(1 + tail);
    let start: String = address.chars().take(head).collect();
    let end: String = address.chars().skip(length - tail).collect();
    format!("{start}…{end}")
}

fn as_count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
