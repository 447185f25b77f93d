//! How the screen's parts are drawn alike.

use ratatui::style::{Modifier, Style};

/// Returns the style of what is less important.
pub fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}
