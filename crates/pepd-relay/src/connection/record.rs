//! The end of a connection: counted once, and one line in the log.

use std::sync::Arc;
use std::time::Instant;

use pepd_telemetry::{
    DirectionSnapshot, FlowSnapshot, HandshakeMode, LegSnapshot, LineBudget, Registration,
    SampleFields, Side, errno_name,
};

use crate::connection::forward::Outcome;
use crate::connection::leg_socket::LegSocket;
use crate::sample::look;
use crate::worker::Shared;

/// A connection that is relayed. However it ends, its task dropped in the middle with it, it
/// leaves the table, is counted by its outcome, and is logged.
#[derive(Debug)]
pub(crate) struct Ending {
    shared: Arc<Shared>,
    flow: Registration,
    outcome: Outcome,
    /// How many lines were held back before this connection's; none if it has none itself.
    line: Option<u64>,
    ended: bool,
}

impl Ending {
    pub(crate) fn new(shared: Arc<Shared>, flow: Registration) -> Self {
        Self {
            shared,
            flow,
            outcome: Outcome::Cut,
            line: None,
            ended: false,
        }
    }

    pub(crate) fn flow(&self) -> &Registration {
        &self.flow
    }

    /// It has ended, and its sockets are about to be closed.
    pub(crate) fn ends(&mut self, outcome: Outcome, client: &LegSocket, upstream: &LegSocket) {
        self.outcome = outcome;
        self.ask_for_line();
        // Most connections are shorter than a second, and their figures need nobody.
        if self.line.is_some() || self.flow.was_sampled() {
            let fields = SampleFields {
                congestion: self.line.is_some(),
                client_unread: false,
                upstream_unread: false,
            };
            if let (Some(client), Some(upstream)) =
                (client.watch().upgrade(), upstream.watch().upgrade())
            {
                let sample = look(&*client, &*upstream, fields);
                self.flow.add_sample(Instant::now(), sample);
            }
        }
    }

    fn ask_for_line(&mut self) {
        self.ended = true;
        if tracing::enabled!(tracing::Level::INFO) {
            self.line = self.shared.ended_lines.admit(Instant::now());
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.ended {
            self.ask_for_line();
        }
        let counters = &self.shared.counters;
        match self.outcome {
            Outcome::Closed => counters.closed.increment(),
            Outcome::Cut => counters.cut.increment(),
            Outcome::ClientFailed(failure) => {
                counters.client_failed.increment();
                self.shared.flows.count_failure(Side::Client, failure.0);
            }
            Outcome::UpstreamFailed(failure) => {
                counters.upstream_failed.increment();
                self.shared.flows.count_failure(Side::Upstream, failure.0);
            }
        }
        if let Some(held_back) = self.line {
            write_line(&self.flow.snapshot(Instant::now()), self.outcome, held_back);
        }
    }
}

/// The log line of a connection that has ended.
fn write_line(flow: &FlowSnapshot, outcome: Outcome, held_back: u64) {
    let (ended, side, errno) = match outcome {
        Outcome::Closed => ("closed", None, None),
        Outcome::Cut => ("cut", None, None),
        Outcome::ClientFailed(failure) => ("failed", Some("client"), Some(errno_name(failure.0))),
        Outcome::UpstreamFailed(failure) => {
            ("failed", Some("upstream"), Some(errno_name(failure.0)))
        }
    };
    let handshake = match flow.handshake {
        HandshakeMode::EndToEnd => "end-to-end",
        HandshakeMode::Early => "early",
    };
    let rtt = |leg: &LegSnapshot| leg.tcp.map(|tcp| millis(tcp.rtt));
    let again = |leg: &LegSnapshot| leg.tcp.and_then(|tcp| tcp.retransmitted_bytes);
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
        client_retransmitted = again(&flow.client_leg),
        upstream_retransmitted = again(&flow.upstream_leg),
        up_free = up.map(|shares| shares.free),
        up_starved = up.map(|shares| shares.starved),
        up_backpressured = up.map(|shares| shares.backpressured),
        down_free = down.map(|shares| shares.free),
        down_starved = down.map(|shares| shares.starved),
        down_backpressured = down.map(|shares| shares.backpressured),
        held_back = (held_back > 0).then_some(held_back),
        "connection ended"
    );
}

/// Milliseconds to three places.
fn millis(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e3
}

/// Shares of the time in which a direction had something to carry, to two places.
#[derive(Clone, Copy, Debug)]
struct Shares {
    free: f64,
    starved: f64,
    backpressured: f64,
}

impl Shares {
    /// None for a direction that carried nothing.
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

/// How many lines about connections that have ended there may be.
#[derive(Debug)]
pub(crate) struct EndedLines(LineBudget);

impl EndedLines {
    pub(crate) fn new(per_second: u32, now: Instant) -> Self {
        Self(LineBudget::new(per_second, now))
    }

    pub(crate) fn set(&self, per_second: u32) {
        self.0.set(per_second);
    }

    fn admit(&self, now: Instant) -> Option<u64> {
        self.0.admit(now)
    }

    /// Says how many lines were held back, once there is room for a line again.
    pub(crate) fn say_held_back(&self, now: Instant) {
        if let Some(held_back) = self.0.held_back(now) {
            tracing::info!(
                held_back,
                "more connections ended than the log takes lines of"
            );
        }
    }
}
