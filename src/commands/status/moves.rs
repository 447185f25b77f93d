//! What has moved to other boxes, and come from them, in `pepd status`.

use pepd_admin::wire::MoveCounts;

use crate::ui::{format, table};

/// Lists the neighbors.
pub(super) fn moves(moves: Option<&MoveCounts>, width: Option<u16>) -> String {
    let Some(moves) = moves else {
        return String::new();
    };
    let header = ["NEIGHBOR", "GIVEN", "TAKEN", "LOST", "LONGEST PAUSE"];
    let mut table = table::table(&header, &[1, 2, 3, 4], &[0], width);
    for of in &moves.neighbors {
        let pause = match of.given {
            0 => "-".to_owned(),
            _ => format::seconds(of.longest_pause),
        };
        table.add_row([
            of.neighbor.clone(),
            of.given.to_string(),
            of.taken.to_string(),
            of.lost.to_string(),
            pause,
        ]);
    }
    let sent_on = match moves.sent_on {
        0 => String::new(),
        count => format!(
            "{count} packets have come here for connections that have moved, and were sent on\n"
        ),
    };
    let refused = match moves.refused {
        0 => String::new(),
        count => format!("{count} sessions of others were refused (docs/move.md)\n"),
    };
    table::text(&table) + &sent_on + &refused
}
