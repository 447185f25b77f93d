//! What holds a leg back where it could carry more: hosts that take no more, and its own `rate`.

use super::load::{self, WITH_HEADERS};
use super::{LegFacts, MOSTLY};
use crate::wire::{LegSnapshot, LegState};

/// What has so much of a rate has all of it, but for pauses.
const ALL_BUT: f64 = 0.85;

/// Says that the hosts behind a leg take no more, where their windows were full for most of the time in which
/// there was something to send. `rtt` is the leg's round trip in seconds.
pub(super) fn by_hosts<'a>(
    legs: impl Iterator<Item = &'a LegSnapshot>,
    rtt: Option<f64>,
) -> Option<String> {
    let (mut full, mut busy) = (0.0, 0.0);
    for tcp in legs.filter_map(|leg| leg.tcp) {
        full += tcp.receive_window_limited.unwrap_or(0.0);
        busy += tcp.busy.unwrap_or(0.0);
    }
    let share = if busy > 0.0 { full / busy } else { 0.0 };
    if share < MOSTLY {
        return None;
    }
    let percent = share * 100.0;
    let at = rtt.map_or_else(String::new, |rtt| format!(" ({:.1} ms)", rtt * 1e3));
    Some(format!(
        "the hosts behind it take no more: their receive windows are full {percent:.0} % of the time that there is \
         something to send; a program there reads slowly, or the host's receive buffer (on Linux \
         net.ipv4.tcp_rmem) is smaller than bandwidth × RTT{at}"
    ))
}

/// Says that a leg carries what its `rate` lets it, where it does. `most` is the goodput of the connection that has
/// most of it, in bits a second.
pub(super) fn by_rate(
    name: &str,
    facts: Option<&LegFacts>,
    control: Option<&str>,
    most: f64,
    state: Option<&LegState>,
) -> Option<String> {
    let rate = facts?.rate?;
    let is_the_legs = matches!(control, Some("fixed-rate" | "find-rate"));
    let sent = if is_the_legs {
        state?.sent * WITH_HEADERS
    } else {
        most
    };
    if sent < ALL_BUT * rate as f64 {
        return None;
    }
    let whose = if is_the_legs {
        "all its connections together send"
    } else {
        "one connection sends"
    };
    let written = load::rate(rate as f64);
    Some(format!(
        "its rate of {written} is the most that {whose}: raise [leg.{name}] rate if its link carries more"
    ))
}
