//! Sparklines of what happened second by second.

use pepd_admin::wire::{FlowHistory, HistoryPoint};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::widgets::Sparkline;

/// Points that are less than this apart have no second between them in which nothing happened:
/// connections are sampled about once a second. In seconds.
const MAX_GAP: f64 = 1.9;

/// Lays a connection's history out, a slot for each of the last `width` seconds up to `now`, the
/// latest last; nothing where nothing happened.
pub fn slots(history: &FlowHistory, now: f64, width: u16) -> Vec<Option<&HistoryPoint>> {
    let width = usize::from(width);
    let mut slots = vec![None; width];
    // The second that is under way has no point yet.
    let latest = history.points.last().map_or(now, |point| point.time);
    let end = if now - latest < MAX_GAP { latest } else { now };
    let mut before: Option<(usize, f64)> = None;
    for point in &history.points {
        let Some(ago) = whole(end - point.time) else {
            continue;
        };
        if ago < width {
            slots[width - 1 - ago] = Some(point);
            // Between two samples that were a little late there is no hole.
            if let Some((past, time)) = before
                && past == ago + 2
                && past <= width
                && point.time - time < MAX_GAP
            {
                slots[width - past] = Some(point);
            }
        }
        before = Some((ago, point.time));
    }
    slots
}

/// The width of the label before a sparkline.
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

#[cfg(test)]
mod tests {
    use pepd_admin::fixture;

    use super::*;

    /// Tells which slots are filled by points at these times.
    fn filled(times: &[f64], now: f64) -> String {
        let mut history = fixture::history(1);
        history.points.truncate(times.len());
        for (point, time) in history.points.iter_mut().zip(times) {
            point.time = *time;
        }
        let slots = slots(&history, now, 8);
        slots
            .iter()
            .map(|slot| if slot.is_some() { '#' } else { '.' })
            .collect()
    }

    #[test]
    fn a_slot_for_each_second() {
        assert_eq!(filled(&[], 100.0), "........");
        assert_eq!(filled(&[98.1, 99.1, 100.1], 100.9), ".....###");
        // A pause is one, before now as well.
        assert_eq!(filled(&[94.0, 95.0, 98.0], 100.0), ".##..#..");
        // What is too long ago for the room there is is left out.
        assert_eq!(filled(&[1.0, 90.0, 93.0, 100.0], 100.0), "#......#");
    }

    #[test]
    fn looks_that_are_late_leave_no_hole() {
        assert_eq!(filled(&[95.4, 96.45, 97.5, 98.6, 100.0], 100.3), "..######");
        assert_eq!(filled(&[96.0, 98.0, 100.0], 100.0), "...#.#.#");
    }
}
