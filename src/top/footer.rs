//! The last line: the keys, the filter while it is typed, and what has happened.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::app::App;
use super::style::faint;

/// Draws the last line.
pub fn draw(frame: &mut Frame, app: &App, area: Rect) {
    frame.render_widget(line(app), area);
}

fn line(app: &App) -> Line<'_> {
    if let Some(text) = &app.typing {
        return Line::from(vec![
            Span::styled(" filter: ", Modifier::BOLD),
            Span::raw(text.as_str()),
            Span::styled("▏", Modifier::SLOW_BLINK),
            Span::styled(
                "  a campus, 10.1.0.0/16, starved … ⏎ sets, Esc leaves",
                faint(),
            ),
        ]);
    }
    if let Some(note) = &app.note {
        return Line::styled(format!(" {note}"), Style::new().fg(Color::Yellow));
    }
    let keys: &[(&str, &str)] = if app.open.is_some() {
        &[("Esc", "back"), ("space", "pause"), ("q", "quit")]
    } else {
        &[
            ("↑↓", "select"),
            ("⏎", "look closer"),
            ("s", "sort"),
            ("/", "filter"),
            ("space", "pause"),
            ("q", "quit"),
        ]
    };
    let mut line = Line::default();
    for (key, does) in keys {
        line.push_span(Span::raw(" "));
        line.push_span(Span::styled(format!(" {key} "), Modifier::REVERSED));
        line.push_span(Span::raw(format!(" {does}")));
    }
    line
}
