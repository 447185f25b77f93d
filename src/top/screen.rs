//! The screen: what goes where.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;

use super::app::App;
use super::{detail, footer, list, summary};
use crate::ui::labels;

/// The width and height below which there is no room for anything.
const SMALLEST: (u16, u16) = (40, 10);

/// Draws the whole screen.
pub fn draw(frame: &mut Frame, app: &mut App) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let (width, height) = SMALLEST;
        frame.render_widget(format!("needs {width}×{height}"), area);
        return;
    }
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(headline(app), head);
    if app.open.is_some() {
        detail::draw(frame, app, body);
    } else {
        let [top, rest] = Layout::vertical([
            Constraint::Length(summary::height(&app.status, body)),
            Constraint::Fill(1),
        ])
        .areas(body);
        summary::draw(frame, app, top, body);
        list::draw(frame, app, rest);
    }
    footer::draw(frame, app, foot);
}

/// Draws which daemon it is; or what is wrong, which comes first.
fn headline(app: &App) -> Line<'_> {
    let alarm = Style::new()
        .fg(Color::Red)
        .add_modifier(Modifier::BOLD | Modifier::REVERSED);
    if let Some(why) = &app.unreachable {
        return Line::styled(format!(" AWAY, trying each second: {why}"), alarm);
    }
    let mut line = Line::styled(
        format!(" {}", labels::headline(&app.status)),
        Modifier::BOLD,
    );
    if app.paused {
        line.push_span(ratatui::text::Span::styled("  PAUSED", alarm));
    }
    line
}
