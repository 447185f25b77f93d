//! One connection, until it is known what has become of its first window.

use std::time::Duration;

/// What of a connection is first: after so many windows what is lost is rather what slow start, which sends
/// three windows in two round trips, was too much for.
const FIRST: u64 = 3;

/// The round trips in which a connection has come to what its path carries: slow start takes seven from ten
/// segments to a thousand.
const SETTLED: u32 = 10;

/// What the kernel tells of one sender (TCP_INFO) that matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Look {
    /// Segments of data that were sent, repeated ones as well.
    pub sent: u32,
    /// Segments of data that have arrived.
    pub arrived: u32,
    /// Segments that were repeated.
    pub repeated: u32,
    /// Segments that are held for lost now.
    pub lost: u32,
    /// What was delivered lately, in bytes of payload a second; none before the first.
    pub rate: Option<f64>,
    /// Whether it had less to send then than it was let.
    pub is_limited: bool,
    /// The least round trip; none before the first.
    pub rtt: Option<Duration>,
    /// The payload of a segment, in bytes.
    pub mss: u32,
    /// The time with something to send or under way.
    pub busy: Duration,
}

impl Look {
    /// Returns the segments that are under way at the rate that was measured, without a queue; none where
    /// nothing was measured.
    pub(super) fn carried(&self) -> Option<f64> {
        let (rate, rtt) = (self.rate?, self.rtt?);
        let carried = rate * rtt.as_secs_f64() / f64::from(self.mss);
        (carried.is_finite() && carried > 0.0).then_some(carried)
    }

    /// Returns whether that is what the path carries: the connection has had time to come to it, and enough
    /// to send.
    pub(super) fn is_settled(&self) -> bool {
        let rtt = self.rtt.unwrap_or(Duration::MAX);
        !self.is_limited && self.busy >= rtt.saturating_mul(SETTLED)
    }
}

/// A connection whose first window is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstFlight {
    /// The window that it began with, in segments.
    window: u32,
}

/// What has become of a first window that was filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    /// The window, in segments.
    pub window: u32,
    /// The segments of which it is known, at least a window.
    pub known: u32,
    /// Those of them that were lost.
    pub lost: u32,
}

/// What a look at a first window has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It is still under way, or was not filled yet.
    UnderWay,
    /// This has become of it.
    Landed(Flight),
    /// Too much was sent since: nothing can be said of it any more.
    Missed,
}

impl FirstFlight {
    /// Begins with a connection that has sent nothing yet and has such a congestion window, in segments.
    pub const fn new(window: u32) -> Self {
        Self { window }
    }

    /// Looks at the connection.
    pub fn look(&self, look: &Look) -> Seen {
        let first = look.sent.saturating_sub(look.repeated);
        if u64::from(first) > FIRST * u64::from(self.window) {
            return Seen::Missed;
        }
        let lost = look.repeated.max(look.lost);
        let known = look.arrived.saturating_add(lost).min(first);
        if first < self.window || known < self.window {
            return Seen::UnderWay;
        }
        Seen::Landed(Flight {
            window: self.window,
            known,
            lost: lost.min(known),
        })
    }
}
