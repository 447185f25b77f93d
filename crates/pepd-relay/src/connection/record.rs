//! A connection's entry in the table of flows, and its end: counted once, and one line in the log.

use std::sync::Arc;
use std::time::Instant;

use pepd_telemetry::{HeldBack, Registration, SampleFields, Side};

use crate::connection::access_log;
use crate::connection::leg_socket::LegSocket;
use crate::connection::outcome::Outcome;
use crate::sample::sample;
use crate::shared::Shared;

/// The record of a connection that is relayed. However that ends, even by its task being dropped in
/// the middle, it leaves the table, is counted by its outcome, and is logged.
#[derive(Debug)]
pub(crate) struct ConnectionRecord {
    shared: Arc<Shared>,
    flow: Registration,
    outcome: Outcome,
    /// The number of lines that were held back before this connection's; none if it has none
    /// itself.
    line: Option<HeldBack>,
    ended: bool,
}

impl ConnectionRecord {
    /// Begins the record of a connection that has been entered into the table.
    pub(crate) fn new(shared: Arc<Shared>, flow: Registration) -> Self {
        Self {
            shared,
            flow,
            outcome: Outcome::Cut,
            line: None,
            ended: false,
        }
    }

    /// Returns the entry in the table of flows.
    pub(crate) fn flow(&self) -> &Registration {
        &self.flow
    }

    /// Notes how it has ended, and what its sockets, which are about to be closed, say last.
    pub(crate) fn end(&mut self, outcome: Outcome, client: &LegSocket, upstream: &LegSocket) {
        self.outcome = outcome;
        self.request_line();
        // Most connections are shorter than a second, and nobody needs their figures.
        if self.line.is_some() || self.flow.was_sampled() {
            let fields = SampleFields {
                congestion: self.line.is_some(),
                client_unread: false,
                upstream_unread: false,
            };
            if let (Some(client), Some(upstream)) =
                (client.watch().upgrade(), upstream.watch().upgrade())
            {
                let sample = sample(&*client, &*upstream, fields);
                self.flow.add_sample(Instant::now(), sample);
            }
        }
    }

    /// Notes that the connection goes on elsewhere: it is not counted among those that have ended.
    pub(crate) fn goes_on(&mut self) {
        self.outcome = Outcome::GoesOn;
        self.ended = true;
    }

    fn request_line(&mut self) {
        self.ended = true;
        if tracing::enabled!(tracing::Level::INFO) {
            self.line = self.shared.access_log.admit(Instant::now());
        }
    }
}

impl Drop for ConnectionRecord {
    fn drop(&mut self) {
        if !self.ended {
            self.request_line();
        }
        let counters = &self.shared.counters;
        match self.outcome {
            Outcome::Closed => counters.closed.increment(),
            Outcome::Cut => counters.cut.increment(),
            Outcome::GoesOn => {}
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
            access_log::write_line(&self.flow.snapshot(Instant::now()), self.outcome, held_back);
        }
    }
}
