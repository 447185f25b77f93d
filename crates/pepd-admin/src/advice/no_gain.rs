//! Where splitting gains nothing, whatever is measured.

use super::{ENOUGH_BYTES, Finding};
use crate::wire::{PairLeg, PairSnapshot};

/// Below this a leg loses nothing worth recovering.
const LOSSLESS: f64 = 0.001;

/// The round trip, in seconds, below which recovering a loss takes no time that anybody notices.
const SHORT: f64 = 0.002;

/// Advises against splitting two legs of no length that lose nothing.
pub(super) fn finding(pair: &PairSnapshot) -> Option<Finding<'static>> {
    let goodput = pair.up.goodput + pair.down.goodput;
    if goodput * 10.0 / 8.0 < ENOUGH_BYTES {
        return None;
    }
    let easy = |leg: &PairLeg| {
        leg.rtt.is_some_and(|rtt| rtt < SHORT)
            && leg.retransmitted.is_some_and(|share| share < LOSSLESS)
    };
    (easy(&pair.client_leg) && easy(&pair.upstream_leg)).then(|| Finding {
        // After whatever is said of bottlenecks.
        weight: 0.0,
        loaded: None,
        text: format!(
            "between {} and {} nothing is gained by splitting: both legs take less than 2 ms and \
             lose nothing; a [[rule]] for them with action = \"bypass\" would save the work",
            pair.client_campus, pair.server_campus
        ),
    })
}
