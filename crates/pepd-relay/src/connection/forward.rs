//! Relaying one connection: both directions, until each has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_telemetry::Counter;
use tokio::io::Interest;

use crate::connection::direction::{Direction, Need};
use crate::connection::leg::LegIo;
use crate::connection::leg_socket::LegSocket;
use crate::connection::memo::Memo;
use crate::connection::outcome::{End, Outcome};
use crate::connection::record::ConnectionRecord;
use crate::connection::state::{State, Way};
use crate::pipe_pool::{LendPipes, LentPipe, Loan};
use crate::shared::{Context, Shared};
use crate::slots::slot::Slot;

/// The time for which what came before a failure may stay undeliverable: the other leg's peer does
/// not read, and the connection has no future. It counts while the leg's link is there.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time from a link's return until a RST is sent over it, which is sent only once. Who was told of the return may
/// have been told early; and a next hop that was asked for in vain during the outage is lost, with the packets that wait
/// for it, within three seconds of the first question, a second each (`neigh_timer_handler`, net/core/neighbour.c), and
/// holds few packets until it is known.
const SETTLED: Duration = Duration::from_secs(3);

/// The time over which those of all connections are spread, so that no queue has to drop some.
const SPREAD: Duration = Duration::from_millis(500);

/// The pause before a call is made again that lacked memory.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// The two legs of a connection and what flows between them.
#[derive(Debug)]
pub(crate) struct Connection<L = LegSocket, P = Loan, M = Slot> {
    /// First: what it has of the others is given up before they are closed.
    pub(crate) memo: M,
    pub(crate) client: L,
    pub(crate) upstream: L,
    /// The direction from the client to the upstream leg.
    pub(crate) up: Direction<P>,
    /// The direction from the upstream leg to the client.
    pub(crate) down: Direction<P>,
}

/// A round in which both directions have made a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    /// The need of the direction from the client.
    pub(crate) up: Need,
    /// The need of the direction from the upstream leg.
    pub(crate) down: Need,
    /// The step that follows from both.
    pub(crate) next: Next,
}

/// The step that follows a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another round, when other connections have had their turn.
    Yield,
    /// Another round at once: a direction has found a failure that the other does not know of yet,
    /// and no event will tell it.
    Again,
    /// The next event.
    Event,
    /// The next event, or another round after [`PAUSE`]: a call lacked memory.
    EventOrPause,
    /// The next event, if it comes within [`PATIENCE`]: a leg has failed, and what it sent before
    /// is still to be delivered.
    EventInTime,
    /// The end: both directions have ended.
    End,
}

impl<L: LegIo, P: LentPipe<Pipe = L::Pipe>, M: Memo<Pipe = L::Pipe>> Connection<L, P, M> {
    /// Joins two legs between which nothing has flowed yet.
    pub(crate) fn new(client: L, upstream: L, memo: M) -> Self {
        Self {
            memo,
            client,
            upstream,
            up: Direction::new(Way::Up),
            down: Direction::new(Way::Down),
        }
    }

    /// Makes a step in both directions.
    pub(crate) fn round(&mut self, pool: &impl LendPipes<Lent = P>, copied: &Counter) -> Round {
        let failed_before = self.failed_legs();
        let (client, upstream) = (&mut self.client, &mut self.upstream);
        let up = self.up.step(client, upstream, pool, &self.memo, copied);
        let down = self.down.step(upstream, client, pool, &self.memo, copied);
        let failed = self.failed_legs();
        if failed != (false, false) {
            let failures = [self.client.known_failure(), self.upstream.known_failure()];
            self.memo.note_failures(failures);
        }
        let next = match (up, down) {
            (Need::Nothing, Need::Nothing) => Next::End,
            (Need::Turn, _) | (_, Need::Turn) => Next::Yield,
            _ if failed != failed_before => Next::Again,
            (Need::Memory, _) | (_, Need::Memory) => Next::EventOrPause,
            _ if failed == (false, false) => Next::Event,
            _ => Next::EventInTime,
        };
        Round { up, down, next }
    }

    /// Returns which of the two legs have failed, the client's first.
    fn failed_legs(&self) -> (bool, bool) {
        (self.client.has_failed(), self.upstream.has_failed())
    }
}

impl Connection {
    /// Relays until both directions have ended, and says how; then [`Connection::finish`].
    ///
    /// Nearly all connections are here nearly all the time: what this holds across a wait is
    /// what an idle connection costs.
    pub(crate) async fn run(&mut self, context: &Context, record: &ConnectionRecord) -> End {
        let shared = &context.shared;
        let copied = &shared.counters.copied_without_pipe;
        loop {
            let woke = Instant::now();
            shared.slots.take_in_hand(context.index, self.memo.index());
            let Round { up, down, next } = self.round(&context.pool, copied);
            shared.slots.take_in_hand(context.index, None);
            let reports = (self.up.report(up), self.down.report(down));
            record
                .flow()
                .report(woke, Instant::now(), reports.0, reports.1);
            match next {
                Next::End => return End::Own,
                Next::Yield => tokio::task::yield_now().await,
                Next::Again => {}
                Next::Event => self.event(up, down).await,
                Next::EventOrPause => {
                    // In a box for the same reason as below.
                    let event = Box::pin(tokio::time::timeout(PAUSE, self.event(up, down)));
                    let _ = event.await;
                }
                Next::EventInTime => {
                    // In a box: it is rare, and its timer large.
                    let event = Box::pin(tokio::time::timeout(PATIENCE, self.event(up, down)));
                    if event.await.is_err() && self.without_link(shared, record).is_none() {
                        return End::Cut;
                    }
                }
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

    /// Returns the name of a leg that has not failed, and whose link is gone.
    fn without_link<'r>(
        &self,
        shared: &Shared,
        record: &'r ConnectionRecord,
    ) -> Option<&'r Arc<str>> {
        let info = record.flow().info();
        let legs = [
            (&self.client, &info.client_profile),
            (&self.upstream, &info.upstream_profile),
        ];
        let is_without =
            |(leg, name): &(&LegSocket, &Arc<str>)| !leg.has_failed() && shared.links.is_gone(name);
        legs.into_iter().find(is_without).map(|(_, name)| name)
    }

    /// Closes both legs as they ended.
    pub(crate) async fn finish(mut self, end: End, shared: &Shared, record: &mut ConnectionRecord) {
        let cut = end == End::Cut;
        let (up, down) = (self.up.state(), self.down.state());
        if (up, down) == (State::Done, State::Done) {
            let (of_client, of_upstream) = tokio::join!(
                self.client.acknowledged(true, None),
                self.upstream.acknowledged(true, None)
            );
            let outcome = match (self.client.failure(), self.upstream.failure()) {
                (None, None) => Outcome::Closed,
                (Some(failure), _) => Outcome::ClientFailed(failure),
                (_, Some(failure)) => Outcome::UpstreamFailed(failure),
            };
            record.end(outcome, &self.client, &self.upstream);
            self.client.will_close(of_client);
            self.upstream.will_close(of_upstream);
            return;
        }
        let client_failed = self.client.failure();
        // Dropping a leg sends its RST, but what came before it has to arrive first; and a RST that is lost is for good.
        while let Some(leg) = self.without_link(shared, record) {
            shared.links.until_back(leg).await;
            tokio::time::sleep(SETTLED + spread(record.flow().id())).await;
        }
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

/// Returns when within [`SPREAD`] a connection has its turn.
fn spread(id: u64) -> Duration {
    SPREAD / 64 * u32::try_from(id % 64).unwrap_or_default()
}

/// Returns what a leg is watched for: data when the direction from it is starved, room when the one
/// towards it is backpressured.
pub(super) fn interest(from: Need, towards: Need) -> Option<Interest> {
    match (from == Need::Source, towards == Need::Sink) {
        (true, true) => Some(Interest::READABLE | Interest::PRIORITY | Interest::WRITABLE),
        (true, false) => Some(Interest::READABLE | Interest::PRIORITY),
        (false, true) => Some(Interest::WRITABLE),
        (false, false) => None,
    }
}
