//! The legs: a line for each with what is sent over it, what of that is lost, and how long round trips are,
//! idle and under load.

use std::collections::VecDeque;

use pepd_admin::wire::{FoundRate, LegState, Status};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

use super::app::App;
use super::style::faint;
use crate::ui::format;
use crate::ui::labels;

/// The width from which on there is room for what a path carries and for the slowest round trips, and the one
/// for what its path loses, what waits before it, and what was sent over time.
const WIDE: usize = 105;
const WIDER: usize = 132;

/// The cells without which what was sent over time says nothing.
const SHORTEST: usize = 12;

/// The longest name that is written in full.
const NAME: usize = 14;

/// Gives the number of legs that were used lately.
pub fn used(status: &Status) -> usize {
    status.legs.iter().filter(|leg| is_used(leg)).count()
}

fn is_used(leg: &LegState) -> bool {
    leg.resent.is_some()
}

/// Gives a line of `width` cells for each leg that was used lately; of more than `room` those by which most is
/// sent.
pub fn lines(app: &App, width: usize, room: usize) -> Vec<Line<'static>> {
    let mut legs: Vec<_> = app.status.legs.iter().filter(|leg| is_used(leg)).collect();
    legs.sort_by(|a, b| b.sent.total_cmp(&a.sent));
    legs.truncate(room);
    legs.sort_by(|a, b| a.leg.cmp(&b.leg));
    let names = legs.iter().map(|leg| leg.leg.chars().count()).max();
    let names = names.unwrap_or(0).min(NAME);
    let line = |leg: &&LegState| line(app, leg, names, width);
    legs.iter().map(line).collect()
}

fn line(app: &App, leg: &LegState, names: usize, width: usize) -> Line<'static> {
    let found = app.status.rates.iter().find(|rate| rate.leg == leg.leg);
    let is_wide = width >= WIDE;
    let carries = match found {
        Some(found) if is_wide => {
            format!("of {:>11}  ", format::rate(format::number(found.capacity)))
        }
        _ if is_wide => " ".repeat(16),
        _ => String::new(),
    };
    let again = leg.resent.map_or_else(String::new, format::permille);
    let mut line = Line::from(format!(" {:names$.names$} ", leg.leg));
    line.push_span(Span::styled(
        format!("→ {:>11}  {carries}", format::rate(leg.sent)),
        Style::new().fg(Color::Cyan),
    ));
    line.push_span(Span::raw(format!("{again:>6} again  ")));
    line.extend(round_trips(leg, is_wide));
    let is_wider = width >= WIDER;
    if let Some(limit) = found.map(|found| limit(found, is_wider)) {
        line.push_span(Span::styled(limit, Style::new().fg(Color::Yellow)));
    }
    let left = width.saturating_sub(line.width() + 2);
    if is_wider
        && left >= SHORTEST
        && let Some(sent) = app.legs.get(&leg.leg)
    {
        let text = format!("  {}", spark(sent, left));
        line.push_span(Span::styled(text, Style::new().fg(Color::Cyan)));
    }
    line
}

fn round_trips(leg: &LegState, is_wide: bool) -> Vec<Span<'static>> {
    let idle = leg
        .least_rtt
        .map_or_else(|| "–".to_owned(), format::seconds);
    let Some(loaded) = leg.loaded_rtt else {
        return vec![
            Span::raw(format!("{idle:>7} idle  ")),
            Span::styled("not busy of late".to_owned(), faint()),
        ];
    };
    let mut text = format!("{idle:>7} idle {:>7} busy", format::seconds(loaded.median));
    if is_wide {
        text += &format!(" (p95 {:>7})", format::seconds(loaded.p95));
    }
    vec![Span::raw(text)]
}

fn limit(found: &FoundRate, is_wider: bool) -> String {
    let words = found.limit.map_or("idle", labels::rate_limit);
    if is_wider {
        let (lost, queue) = (format::permille(found.loss), format::seconds(found.queue));
        format!("  {lost:>6} lost {queue:>7} queue  {words:12}")
    } else {
        format!("  {words}")
    }
}

/// Draws values as so many cells, the latest last; the highest fills its cell.
fn spark(values: &VecDeque<f64>, cells: usize) -> String {
    let skipped = values.len().saturating_sub(cells);
    let shown = values.iter().skip(skipped);
    let most = shown.clone().copied().fold(0.0, f64::max);
    let blank = " ".repeat(cells.saturating_sub(values.len()));
    shown.fold(blank, |text, value| text + bar(*value, most))
}

fn bar(value: f64, most: f64) -> &'static str {
    const BARS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
    let parts = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
    let place = parts.iter().filter(|part| value * 8.0 > **part * most);
    BARS.get(place.count()).copied().unwrap_or(" ")
}
