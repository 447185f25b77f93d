//! Tables for a terminal, or for a file.

use std::io::{self, IsTerminal};

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table};

/// The width below which not even the figures fit.
const NARROWEST: u16 = 60;

/// The width from which on there is room for optional columns.
const WIDE: u16 = 100;

/// Tells whether there is room for optional columns; without a terminal there always is.
pub fn is_wide(width: Option<u16>) -> bool {
    width.is_none_or(|width| width >= WIDE)
}

/// Makes an empty table without lines, no wider than `width`. The columns in `numbers` are for
/// figures; those in `words` are wrapped where there is no room.
pub fn table(header: &[&str], numbers: &[usize], words: &[usize], width: Option<u16>) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.iter().copied());
    if let Some(width) = width {
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width.max(NARROWEST));
    }
    let gap = if is_wide(width) { 2 } else { 1 };
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, gap));
        if !words.contains(&index) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
        if numbers.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Gives the table's text, without the blanks that pad its last column.
pub fn text(table: &Table) -> String {
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Gives the width of the terminal on standard output; none if there is no terminal.
pub fn width() -> Option<u16> {
    if !io::stdout().is_terminal() {
        return None;
    }
    crossterm::terminal::size().ok().map(|(columns, _)| columns)
}
