//! What a connection's second says of one of its legs.

use std::time::Duration;

use crate::TcpFigures;

/// What two looks at a socket say of its leg.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LegLook {
    /// Bytes sent between them, and those of them that were sent again.
    pub(super) sent: u64,
    pub(super) resent: u64,
    /// Bytes that have arrived, about: of segments as large as those that were sent meanwhile, or since the start.
    pub(super) delivered: u64,
    /// The round trip, and by how much it is longer than the connection's least, in seconds; none if
    /// nothing was sent, since it is of long ago then.
    pub(super) rtt: Option<(f64, f64)>,
    /// The connection's least round trip, in seconds.
    pub(super) least: Option<f64>,
    /// Whether it had more to send than the leg took.
    pub(super) is_backlogged: bool,
}

/// The part of the time between two looks from which on something is said to have been so.
const MOSTLY: f64 = 0.5;

impl LegLook {
    /// Returns what the figures `after` say since those `before`, which were `span` earlier and are none
    /// for a connection that was not looked at yet; `unsent` bytes wait in the socket.
    pub(crate) fn between(
        before: Option<TcpFigures>,
        after: Option<TcpFigures>,
        unsent: u64,
        span: Duration,
    ) -> Self {
        let Some(after) = after else {
            return Self::default();
        };
        let before = before.unwrap_or_default();
        let bytes = |of: fn(&TcpFigures) -> Option<u64>| {
            let (last, now) = (of(&before).unwrap_or(0), of(&after).unwrap_or(0));
            now.saturating_sub(last)
        };
        let sent = bytes(|tcp| tcp.sent_bytes);
        let segments = |of: fn(&TcpFigures) -> Option<u32>| {
            let (last, now) = (of(&before).unwrap_or(0), of(&after).unwrap_or(0));
            u64::from(now.wrapping_sub(last))
        };
        // A second's, or, where it sent nothing, the mean of its life.
        let sizes = [
            (sent, segments(|tcp| tcp.sent_segments)),
            (
                after.sent_bytes.unwrap_or(0),
                after.sent_segments.unwrap_or(0).into(),
            ),
        ];
        let size = sizes
            .into_iter()
            .find_map(|(bytes, segments)| bytes.checked_div(segments));
        let size = size.map_or(after.mss.into(), |size| size.min(after.mss.into()));
        let part = |of: fn(&TcpFigures) -> Option<f64>| {
            let passed = of(&after)? - of(&before).unwrap_or(0.0);
            Some(passed / span.as_secs_f64().max(0.001))
        };
        // What the receiver has no room for waits, but not for the leg.
        let is_held = part(|tcp| tcp.receive_window_limited).is_some_and(|part| part > MOSTLY);
        // A short burst that happens to be under way is no load.
        let is_long = part(|tcp| tcp.busy).is_none_or(|part| part > MOSTLY);
        // Less than a segment is nothing, as for the phases.
        let waits = unsent > 0 && unsent >= u64::from(after.mss);
        let least = after.min_rtt.filter(|rtt| *rtt > 0.0);
        Self {
            sent,
            resent: bytes(|tcp| tcp.retransmitted_bytes),
            delivered: segments(|tcp| tcp.delivered_segments) * size,
            rtt: (sent > 0 && after.rtt > 0.0)
                .then(|| (after.rtt, (after.rtt - least.unwrap_or(after.rtt)).max(0.0))),
            least: least.or((after.rtt > 0.0).then_some(after.rtt)),
            is_backlogged: sent > 0 && waits && is_long && !is_held,
        }
    }
}
