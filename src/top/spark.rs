//! Sparklines of what happened second by second.

use pepd_observe::{FlowHistory, HistoryPoint};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::widgets::Sparkline;

/// A connection's history, a slot for each of the last `width` seconds up to `now`, the latest
/// last; nothing where nothing happened.
pub fn slots(history: &FlowHistory, now: f64, width: u16) -> Vec<Option<&HistoryPoint>> {
    let width = usize::from(width);
    let mut slots = vec![None; width];
    for point in &history.points {
        if let Some(ago) = whole(now - point.time)
            && ago < width
        {
            slots[width - 1 - ago] = Some(point);
        }
    }
    slots
}

/// How wide the label before a sparkline is.
pub const LABEL: u16 = 9;

/// Draws a label with the latest value, and the values before it; the highest fills the height.
pub fn draw(
    frame: &mut Frame,
    area: Rect,
    label: &str,
    color: Color,
    values: impl IntoIterator<Item = Option<f64>>,
) {
    let [left, right] =
        Layout::horizontal([Constraint::Length(LABEL), Constraint::Fill(1)]).areas(area);
    frame.render_widget(label, left);
    plain(frame, right, color, values);
}

/// Draws values; the highest fills the height.
pub fn plain(
    frame: &mut Frame,
    area: Rect,
    color: Color,
    values: impl IntoIterator<Item = Option<f64>>,
) {
    let values: Vec<_> = values.into_iter().collect();
    let most = values.iter().flatten().copied().fold(0.0, f64::max);
    let data: Vec<Option<u64>> = values
        .iter()
        .map(|value| value.map(|value| scaled(value, most)))
        .collect();
    frame.render_widget(
        Sparkline::default()
            .data(data)
            .max(STEPS)
            .absent_value_symbol(" ")
            .style(Style::new().fg(color)),
        area,
    );
}

/// Steps of a sparkline: more than any height has.
const STEPS: u64 = 1000;

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "from 0 to 1000"
)]
fn scaled(value: f64, most: f64) -> u64 {
    if most > 0.0 {
        // The least that there is shows.
        ((value / most * 1000.0).round() as u64).min(STEPS)
    } else {
        0
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "looked at before"
)]
fn whole(seconds: f64) -> Option<usize> {
    (-1.0..1e6)
        .contains(&seconds)
        .then(|| seconds.max(0.0).round() as usize)
}
