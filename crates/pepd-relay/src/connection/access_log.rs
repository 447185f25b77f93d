//! The access log: a line for each connection that has ended, as many as the budget allows.

use std::time::Instant;

use pepd_telemetry::{
    DirectionSnapshot, FlowSnapshot, HeldBack, LegSnapshot, LineBudget, Side, errno_name,
};

use crate::connection::outcome::Outcome;

/// The budget of the access log: how many connections that end have a line in it.
#[derive(Debug)]
pub(crate) struct AccessLog(LineBudget);

impl AccessLog {
    /// Opens the log with a budget of lines per second, and as many at once after a quiet second.
    pub(crate) fn new(per_second: u32, now: Instant) -> Self {
        Self(LineBudget::new(per_second, now))
    }

    /// Replaces its budget.
    pub(crate) fn set_budget(&self, per_second: u32) {
        self.0.set(per_second);
    }

    /// Admits a line, with the number of those held back before it; none where the budget is
    /// spent.
    pub(super) fn admit(&self, now: Instant) -> Option<HeldBack> {
        self.0.admit(now)
    }

    /// Reports how many lines were held back, once there is room for a line again.
    pub(crate) fn report_held_back(&self, now: Instant) {
        if let Some(held_back) = self.0.held_back(now) {
            tracing::info!(
                held_back,
                "more connections ended than the log takes lines of"
            );
        }
    }
}

/// Writes the line of a connection that has ended.
pub(super) fn write_line(flow: &FlowSnapshot, outcome: Outcome, held_back: HeldBack) {
    let (ended, side, errno) = match outcome {
        Outcome::Closed => ("closed", None, None),
        Outcome::Cut => ("cut", None, None),
        Outcome::GoesOn => ("moved", None, None),
        Outcome::ClientFailed(failure) => (
            "failed",
            Some(Side::Client.name()),
            Some(errno_name(failure.0)),
        ),
        Outcome::UpstreamFailed(failure) => (
            "failed",
            Some(Side::Upstream.name()),
            Some(errno_name(failure.0)),
        ),
    };
    let handshake = flow.handshake.name();
    let rtt = |leg: &LegSnapshot| leg.tcp.map(|tcp| millis(tcp.rtt));
    let retransmitted = |leg: &LegSnapshot| leg.tcp.and_then(|tcp| tcp.retransmitted_bytes);
    let (up, down) = (Shares::of(&flow.up), Shares::of(&flow.down));
    tracing::info!(
        flow = flow.id,
        client = %flow.client,
        server = %flow.server,
        client_campus = flow.client_campus,
        server_campus = flow.server_campus,
        handshake,
        ended,
        side,
        errno,
        bytes_up = flow.up.bytes,
        bytes_down = flow.down.bytes,
        seconds = (flow.age * 1e3).round() / 1e3,
        client_rtt_ms = rtt(&flow.client_leg),
        upstream_rtt_ms = rtt(&flow.upstream_leg),
        client_retransmitted = retransmitted(&flow.client_leg),
        upstream_retransmitted = retransmitted(&flow.upstream_leg),
        up_free = up.map(|shares| shares.free),
        up_starved = up.map(|shares| shares.starved),
        up_backpressured = up.map(|shares| shares.backpressured),
        down_free = down.map(|shares| shares.free),
        down_starved = down.map(|shares| shares.starved),
        down_backpressured = down.map(|shares| shares.backpressured),
        held_back,
        "connection ended"
    );
}

/// Converts seconds to milliseconds, to three places.
fn millis(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e3
}

/// The shares of the time in which a direction had something to carry, to two places.
#[derive(Clone, Copy, Debug)]
struct Shares {
    free: f64,
    starved: f64,
    backpressured: f64,
}

impl Shares {
    /// Gives the shares, or none for a direction that carried nothing.
    fn of(direction: &DirectionSnapshot) -> Option<Self> {
        let spent = direction.phases;
        let starved = (spent.starved - direction.idle).max(0.0);
        let all = spent.free + starved + spent.backpressured;
        if direction.bytes == 0 || all <= 0.0 {
            return None;
        }
        let share = |time: f64| (time / all * 100.0).round() / 100.0;
        Some(Self {
            free: share(spent.free),
            starved: share(starved),
            backpressured: share(spent.backpressured),
        })
    }
}
