//! Whether a leg's round trips are far above the least while it is busy, and what helps.

use super::LegFacts;
use crate::wire::{Carried, LegState, LoadedRtt};

/// What load adds to round trips, in seconds, from which on people feel it; and the same as a part of what they
/// are without.
const FELT: f64 = 0.05;
const FAR: f64 = 0.5;

/// Connection-seconds under load without which nothing is known.
const ENOUGH: u64 = 10;

/// What a leg carries in its busy time without which its rate is not known: bytes.
const LITTLE: u64 = 250_000;

/// A connection that has so much of what its leg carries is as good as alone.
const ALONE: f64 = 0.8;

/// The part of what a leg carries that a rate is to be so that the queue goes away.
const JUST_BELOW: f64 = 0.97;

/// A `rate` that is no more than this part of what was carried is what the leg is kept to.
const MORE: f64 = 1.1;

/// An IP packet's bytes for each of payload: full ones, with TCP's timestamps.
pub(super) const WITH_HEADERS: f64 = 1500.0 / 1448.0;

/// Returns the round trips of a leg under load if they are far above the least.
fn far_above(state: &LegState) -> Option<LoadedRtt> {
    let loaded = state.loaded_rtt?;
    let idle = loaded.median - loaded.added;
    let is_far = loaded.added >= FELT && loaded.added >= FAR * idle;
    (loaded.samples >= ENOUGH && is_far).then_some(loaded)
}

/// Returns what a leg carries while it is busy, in bits a second; none where it has carried next to nothing.
fn carries(state: &LegState) -> Option<f64> {
    let enough = |carried: &Carried| carried.bytes >= LITTLE;
    Some(state.carried.filter(enough)?.median)
}

/// Says that a leg's round trips are far above the least while it is busy, and what helps; none where they are
/// not, or nobody knows what it carried meanwhile. `control` is its congestion control, `most` the goodput of the connection that has most of it, in bits a
/// second.
pub(super) fn finding(
    state: &LegState,
    facts: Option<&LegFacts>,
    control: Option<&str>,
    most: f64,
) -> Option<String> {
    let (loaded, carried) = (far_above(state)?, carries(state)?);
    let again = state.resent.filter(|share| *share >= super::LOSSY);
    let again = again.map_or_else(String::new, |share| {
        format!(" and {:.1} % of its bytes are sent again", share * 100.0)
    });
    let measured = format!(
        "while it is busy its round trips take {} (one in twenty more than {}), {} more than at the least{again}",
        time(loaded.median),
        time(loaded.p95),
        time(loaded.added),
    );
    let name = &state.leg;
    let below = rate(carried * WITH_HEADERS * JUST_BELOW);
    let given = facts.and_then(|facts| facts.rate);
    let is_alone = most >= ALONE * carried;
    let help = match (control, given) {
        #[allow(clippy::cast_precision_loss, reason = "rates are below 2^53")]
        (Some("find-rate"), Some(given)) if given as f64 <= MORE * carried * WITH_HEADERS => {
            format!(
                "[leg.{name}] rate = \"{}\" keeps its own queue short already: it is others' that wait there, or \
             acknowledgements behind what comes in, which no key here helps",
                rate(given as f64),
            )
        }
        (Some("find-rate"), _) => format!(
            "find-rate keeps the queue short of connections that live for long enough to know of it: where they \
             are short and many, set [leg.{name}] rate = \"{below}\", just below what it carries; else it is others' that \
             wait there, which no key here helps"
        ),
        (Some("fixed-rate"), _) => format!(
            "its rate is more than its narrow place has room for: set [leg.{name}] rate = \"{below}\", just below \
             what it carries, or congestion = \"find-rate\""
        ),
        _ if is_alone => format!(
            "that is a queue of its own making: set [leg.{name}] rate = \"{below}\", just below what it carries, or \
             congestion = \"find-rate\" where most of what its narrow place carries is yours"
        ),
        _ => format!(
            "that is a queue of its own making: where most of what its narrow place carries is yours, set \
             [leg.{name}] congestion = \"find-rate\", or \"fixed-rate\" with rate = \"{below}\", just below what it \
             carries"
        ),
    };
    Some(format!("{measured}; {help}"))
}

/// Writes a time for people, in seconds.
fn time(seconds: f64) -> String {
    if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else {
        format!("{seconds:.2} s")
    }
}

/// Writes a rate as the configuration does: no more than it is, to two digits or three.
pub(super) fn rate(bits: f64) -> String {
    let (value, unit) = if bits >= 10e6 {
        (bits / 1e6, "Mbit")
    } else {
        (bits / 1e3, "kbit")
    };
    let step = if value >= 1000.0 { 10.0 } else { 1.0 };
    format!("{:.0}{unit}", ((value / step).floor() * step).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_written_as_the_configuration_reads_them() {
        assert_eq!(rate(49.9e6), "49Mbit");
        assert_eq!(rate(9.876e6), "9870kbit");
        assert_eq!(rate(2.3456e9), "2340Mbit");
        assert_eq!(rate(0.0), "1kbit");
    }
}
