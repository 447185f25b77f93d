//! The two sides of a move, each a machine that says what is to be done next.
//!
//! Whoever drives one carries its actions out in their order, and tells it what has come of those that have
//! an outcome. [`Giver`] is the box that has the connections, [`Taker`] the one that is to have them.

mod giver;
mod taker;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

pub use giver::{Giver, GiverAction, GiverEvent, GiverOutcome};
pub use taker::{Given, Taker, TakerAction, TakerEvent, TakerOutcome};

use crate::wire::Refused;

/// Connections of a move, by their places in its offer.
pub type Members = BTreeSet<u16>;

/// The time in which an offer is to be answered.
pub const OFFER_TIME: Duration = Duration::from_secs(10);

/// The time for which connections may be frozen before the box that takes is told to serve them: their
/// peers wait meanwhile.
pub const FROZEN_TIME: Duration = Duration::from_secs(5);

/// The time for which the box that gives asks what has become of a move, before it holds the other box, and
/// the connections with it, for lost.
pub const ASKING_TIME: Duration = Duration::from_secs(60);

/// The pause before it asks again.
pub const ASKING_PAUSE: Duration = Duration::from_millis(500);

/// Takes those that are refused out of the members, and gives the ones that were in. None where one is
/// refused that never was.
fn take_refused(members: &mut Members, refused: &[Refused]) -> Option<Members> {
    let out: Members = refused.iter().map(|refused| refused.index).collect();
    if !out.is_subset(members) {
        return None;
    }
    members.retain(|index| !out.contains(index));
    Some(out)
}
