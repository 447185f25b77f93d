//! Relaying one connection: both directions, until each has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_telemetry::Counters;
use tokio::io::Interest;

use crate::connection::direction::{Direction, Need, State};
use crate::connection::leg::LegIo as _;
use crate::connection::leg_socket::LegSocket;
use crate::connection::outcome::{End, Outcome};
use crate::connection::record::ConnectionRecord;
use crate::pipe_pool::{Loan, PipePool};

/// How long what came before a failure may stay undeliverable: the other leg's peer does not
/// read, and the connection has no future.
const PATIENCE: Duration = Duration::from_secs(60);

/// The two legs of a connection and what flows between them.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: LegSocket,
    pub(crate) upstream: LegSocket,
    /// From the client to the upstream leg.
    pub(crate) up: Direction<Loan>,
    /// From the upstream leg to the client.
    pub(crate) down: Direction<Loan>,
}

impl Connection {
    pub(crate) fn new(client: LegSocket, upstream: LegSocket) -> Self {
        Self {
            client,
            upstream,
            up: Direction::new(),
            down: Direction::new(),
        }
    }

    /// Relays until both directions have ended, and says how; then [`Connection::finish`].
    ///
    /// Nearly all connections are here nearly all the time: what this holds across a wait is
    /// what an idle connection costs.
    pub(crate) async fn run(
        &mut self,
        pool: &Arc<PipePool>,
        counters: &Counters,
        record: &ConnectionRecord,
    ) -> End {
        let copied = &counters.copied_without_pipe;
        loop {
            let woke = Instant::now();
            let failed_before = self.failed_legs();
            let up = self
                .up
                .step(&mut self.client, &mut self.upstream, pool, copied);
            let down = self
                .down
                .step(&mut self.upstream, &mut self.client, pool, copied);
            let (up_report, down_report) = (self.up.report(up), self.down.report(down));
            record
                .flow()
                .report(woke, Instant::now(), up_report, down_report);
            match (up, down) {
                (Need::Nothing, Need::Nothing) => return End::Own,
                (Need::Turn, _) | (_, Need::Turn) => {
                    tokio::task::yield_now().await;
                    continue;
                }
                _ => {}
            }
            // The direction that went first does not know yet what the other has found, and no
            // event will tell it.
            let failed = self.failed_legs();
            if failed != failed_before {
                continue;
            }
            if failed == (false, false) {
                self.event(up, down).await;
                continue;
            }
            // In a box: it is rare, and its timer large.
            let event = Box::pin(tokio::time::timeout(PATIENCE, self.event(up, down)));
            if event.await.is_err() {
                return End::Cut;
            }
        }
    }

    /// Waits for something that one of the two directions needs.
    async fn event(&mut self, up: Need, down: Need) {
        tokio::select! {
            biased;
            () = self.client.ready(interest(up, down)) => {}
            () = self.upstream.ready(interest(down, up)) => {}
        }
    }

    fn failed_legs(&self) -> (bool, bool) {
        (self.client.has_failed(), self.upstream.has_failed())
    }

    /// Closes both legs as they ended.
    pub(crate) async fn finish(mut self, end: End, record: &mut ConnectionRecord) {
        let cut = end == End::Cut;
        let (up, down) = (self.up.state(), self.down.state());
        if (up, down) == (State::Done, State::Done) {
            tokio::join!(
                self.client.acknowledged(true, None),
                self.upstream.acknowledged(true, None)
            );
            let outcome = match (self.client.failure(), self.upstream.failure()) {
                (None, None) => Outcome::Closed,
                (Some(failure), _) => Outcome::ClientFailed(failure),
                (_, Some(failure)) => Outcome::UpstreamFailed(failure),
            };
            record.end(outcome, &self.client, &self.upstream);
            self.client.close();
            self.upstream.close();
            return;
        }
        let client_failed = self.client.failure();
        // Dropping a leg sends its RST, but what came before it has to arrive first.
        if !cut {
            tokio::join!(
                self.client
                    .acknowledged(down == State::Done, Some(PATIENCE)),
                self.upstream
                    .acknowledged(up == State::Done, Some(PATIENCE)),
            );
        }
        let outcome = match (cut, client_failed, self.upstream.failure()) {
            (true, ..) | (_, None, None) => Outcome::Cut,
            (_, Some(failure), _) => Outcome::ClientFailed(failure),
            (_, None, Some(failure)) => Outcome::UpstreamFailed(failure),
        };
        record.end(outcome, &self.client, &self.upstream);
    }
}

/// What a leg is to be watched for: data when the direction from it is starved, room when the
/// one towards it is backpressured.
fn interest(from: Need, towards: Need) -> Option<Interest> {
    match (from == Need::Source, towards == Need::Sink) {
        (true, true) => Some(Interest::READABLE | Interest::PRIORITY | Interest::WRITABLE),
        (true, false) => Some(Interest::READABLE | Interest::PRIORITY),
        (false, true) => Some(Interest::WRITABLE),
        (false, false) => None,
    }
}
