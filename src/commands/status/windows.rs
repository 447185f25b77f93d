//! What connections begin with.

use pepd_admin::wire::{NetworkWindow, WindowReason};

use crate::ui::{format, table};

/// The networks that are listed; the API has all.
const MOST: usize = 10;

/// Lists the networks to which connections begin with a window that was learned, those with the largest first.
pub(super) fn windows(windows: &[NetworkWindow], width: Option<u16>) -> String {
    if windows.is_empty() {
        return String::new();
    }
    let mut windows: Vec<&NetworkWindow> = windows.iter().collect();
    windows.sort_by_key(|window| std::cmp::Reverse(window.segments));
    let header = ["WINDOW OF LEG", "TO", "SEGMENTS", "BECAUSE"];
    let mut table = table::table(&header, &[2], &[3], width);
    for window in windows.iter().take(MOST) {
        table.add_row([
            window.leg.clone(),
            window.network.clone(),
            window.segments.to_string(),
            because(window),
        ]);
    }
    let mut text = table::text(&table);
    let more = windows.len().saturating_sub(MOST);
    if more > 0 {
        text += &format!("and {more} networks more\n");
    }
    text
}

fn because(window: &NetworkWindow) -> String {
    let under_way = format!("{:.0} are under way in full swing", window.under_way);
    match window.why {
        WindowReason::Kernel if window.under_way > 0.0 => format!("the kernel's: {under_way}"),
        WindowReason::Kernel => "the kernel's: nothing is known yet".to_owned(),
        WindowReason::Rate => under_way,
        WindowReason::Trial => format!("step by step: {under_way}"),
        WindowReason::Loss => format!(
            "of more {} was lost at the start",
            format::permille(window.loss)
        ),
    }
}
