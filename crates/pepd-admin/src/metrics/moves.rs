//! What has moved to other boxes, and come from them, as metrics.

use std::fmt;

use super::families::{Families, Family};
use crate::wire::MoveCounts;

/// Writes what has moved, by neighbor.
pub(super) fn write(families: &mut Families<'_>, moves: Option<&MoveCounts>) -> fmt::Result {
    let Some(moves) = moves else {
        return Ok(());
    };
    families.counts(
        &Family::new(
            "pepd_moved_connections",
            "Live connections that have moved to another box or come from one, or were lost on the way there.",
        ),
        moves.neighbors.iter().flat_map(|of| {
            let kinds = [("given", of.given), ("taken", of.taken), ("lost", of.lost)];
            let name = of.neighbor.as_str();
            kinds.map(|(kind, count)| (vec![("neighbor", name), ("kind", kind)], count))
        }),
    )?;
    families.gauges(
        &Family::seconds(
            "pepd_move_longest_pause",
            "The longest time that a connection stood still on its way to another box.",
        ),
        moves
            .neighbors
            .iter()
            .map(|of| (vec![("neighbor", of.neighbor.as_str())], of.longest_pause)),
    )?;
    families.counts(
        &Family::new(
            "pepd_moved_packets",
            "Packets that came here for connections that have moved to another box, and were sent on to it.",
        ),
        [(vec![], moves.sent_on)],
    )?;
    families.counts(
        &Family::new(
            "pepd_move_refused",
            "Sessions in which somebody would have handed connections over, and was refused.",
        ),
        [(vec![], moves.refused)],
    )
}
