//! Phases as bars: each has a colour and, for those who do not see it, a texture.

use pepd_admin::wire::{Phase, PhaseSeconds};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

/// Symbol, colour and name of each phase, in the order in which a bar has them.
const STYLES: [(Phase, &str, Color, &str); 3] = [
    (Phase::Backpressured, "█", Color::Red, "backpressured"),
    (Phase::Starved, "▒", Color::Yellow, "starved"),
    (Phase::Free, "░", Color::Green, "free"),
];

/// Draws what the symbols mean.
pub fn legend() -> Line<'static> {
    let mut line = Line::default();
    for (_, symbol, color, name) in STYLES {
        line.push_span(Span::styled(symbol, Style::new().fg(color)));
        line.push_span(Span::raw(format!(" {name}  ")));
    }
    line
}

/// Draws a bar of `width` cells, divided as the time was.
pub fn bar(times: &PhaseSeconds, width: usize) -> Line<'static> {
    let mut line = Line::default();
    let all = times.total();
    if all <= 0.0 {
        line.push_span(Span::raw("·".repeat(width)));
        return line;
    }
    let (mut sum, mut filled) = (0.0, 0);
    for (phase, symbol, color, _) in STYLES {
        sum += times.of(phase);
        // Rounding the sums, not the parts, fills the bar exactly.
        let until = cells(sum / all, width);
        line.push_span(Span::styled(
            symbol.repeat(until.saturating_sub(filled)),
            Style::new().fg(color),
        ));
        filled = filled.max(until);
    }
    line
}

/// Draws one cell for each stretch of time, by the phase that took most of it; blank where nothing
/// happened.
pub fn band<'a>(times: impl Iterator<Item = Option<&'a PhaseSeconds>>) -> Line<'static> {
    times
        .map(|times| match times.filter(|times| times.total() > 0.0) {
            None => Span::raw(" "),
            Some(times) => {
                let (_, symbol, color, _) = main_phase(times);
                Span::styled(symbol, Style::new().fg(color))
            }
        })
        .collect()
}

/// Gives the colour of the phase that took most of the time.
pub fn color(times: &PhaseSeconds) -> Color {
    main_phase(times).2
}

/// Gives the letter and the share in percent of the phase that took most of the time.
pub fn short(times: &PhaseSeconds) -> String {
    let all = times.total();
    if all <= 0.0 {
        return "–".to_owned();
    }
    let (phase, ..) = main_phase(times);
    let letter = match phase {
        Phase::Free => 'F',
        Phase::Starved => 'S',
        Phase::Backpressured => 'B',
    };
    format!("{letter}{:.0}", 100.0 * times.of(phase) / all)
}

fn main_phase(times: &PhaseSeconds) -> (Phase, &'static str, Color, &'static str) {
    let mut most = STYLES[0];
    for style in STYLES {
        if times.of(style.0) > times.of(most.0) {
            most = style;
        }
    }
    most
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share from 0 to 1 of a terminal's width"
)]
fn cells(share: f64, width: usize) -> usize {
    ((share * width as f64).round() as usize).min(width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(free: f64, starved: f64, backpressured: f64) -> PhaseSeconds {
        PhaseSeconds {
            free,
            starved,
            backpressured,
        }
    }

    #[test]
    fn a_bar_is_always_full() {
        for parts in [
            times(1.0, 1.0, 1.0),
            times(0.0, 0.0, 5.0),
            times(1e-9, 1e9, 0.0),
            times(0.0, 0.0, 0.0),
        ] {
            for width in [0, 1, 7, 100] {
                assert_eq!(bar(&parts, width).width(), width);
            }
        }
        assert_eq!(bar(&times(1.0, 1.0, 2.0), 8).to_string(), "████▒▒░░");
    }
}
