//! The part of a connection that changes: both directions, and what its sockets have shown.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::meter::{DirectionMeter, StepReport};
use super::recent::{RecentSeconds, rate};
use super::sample::{ConnectionSample, LegEstimate, SampleFields, SocketSample};
use crate::history::{History, LegSecond, Point, PointBudget, millis};
use crate::pairs::Pair;
use crate::phase::Activity;
use crate::{DirectionSnapshot, Goodput, QueueBytes};

/// The part of a connection that changes.
#[derive(Debug)]
pub(super) struct State {
    pub(super) up: DirectionMeter,
    pub(super) down: DirectionMeter,
    /// The time from the accept to the first byte delivered to the client.
    pub(super) first_byte: Option<Duration>,
    /// Whether another process has seen that byte, and nobody knows when.
    pub(super) had_first_byte: bool,
    /// Whether another process had it before.
    pub(super) is_taken_over: bool,
    /// Whether something has happened since the last second ended.
    pub(super) changed: bool,
    /// The time at which the last second ended.
    pub(super) sampled_at: Instant,
    /// Present from the first sample on: a short connection never has one.
    pub(super) legs: Option<Box<Legs>>,
}

/// Both legs of a connection, as samples of their sockets have shown them.
#[derive(Debug)]
pub(super) struct Legs {
    pub(super) client: SocketSample,
    pub(super) upstream: SocketSample,
    pub(super) history: History,
    up: RecentSeconds,
    down: RecentSeconds,
    /// The index of the newest of the seconds.
    newest: usize,
    /// The length of that second.
    span: Duration,
}

impl State {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            up: DirectionMeter::new(now),
            down: DirectionMeter::new(now),
            first_byte: None,
            had_first_byte: false,
            is_taken_over: false,
            changed: true,
            sampled_at: now,
            legs: None,
        }
    }

    /// Takes the reports of both directions on one step.
    pub(super) fn report(
        &mut self,
        woke: Instant,
        done: Instant,
        up: StepReport,
        down: StepReport,
    ) {
        let (client, upstream) = self.estimates();
        self.changed |= self.up.report(woke, done, up, &client, &upstream)
            | self.down.report(woke, done, down, &upstream, &client);
    }

    /// Returns whether the sockets may show anything new.
    pub(super) fn is_due(&self) -> bool {
        let in_flight = |leg: &SocketSample| {
            leg.unacknowledged > 0 || leg.tcp.is_some_and(|tcp| tcp.unacked > 0)
        };
        self.changed
            || !self.up.clock.at_rest()
            || !self.down.clock.at_rest()
            || self
                .legs
                .as_ref()
                .is_some_and(|legs| in_flight(&legs.client) || in_flight(&legs.upstream))
    }

    /// Returns what the next sample has to hold.
    pub(super) fn fields(&self) -> SampleFields {
        // A direction that waits for its source has read all there was.
        let unread = |meter: &DirectionMeter| {
            matches!(
                meter.clock.activity(),
                Activity::AwaitsSink | Activity::Moving
            )
        };
        SampleFields {
            congestion: self.legs.is_none(),
            client_unread: unread(&self.up),
            upstream_unread: unread(&self.down),
        }
    }

    /// Ends a second in which something happened.
    pub(super) fn active_second(
        &mut self,
        now: Instant,
        centiseconds: u32,
        sample: ConnectionSample,
        budget: &Arc<PointBudget>,
    ) {
        let span = now.saturating_duration_since(self.sampled_at);
        let [client_before, upstream_before] = self.retransmitted_segments();
        self.add_sample(now, sample, budget);
        let Self { up, down, legs, .. } = self;
        let Some(legs) = legs else { return };
        let up_queue = up.queue(&legs.client, &legs.upstream);
        let down_queue = down.queue(&legs.upstream, &legs.client);
        up.note_queue(up_queue.total());
        down.note_queue(down_queue.total());
        legs.newest = (legs.newest + 1) % 10;
        legs.span = span;
        let point = Point {
            time: centiseconds,
            span: millis(span),
            up: legs.up.advance(legs.newest, now, up, up_queue),
            down: legs.down.advance(legs.newest, now, down, down_queue),
            client_leg: leg_second(&legs.client, client_before),
            upstream_leg: leg_second(&legs.upstream, upstream_before),
        };
        legs.history.push(point);
    }

    /// Ends a second in which nothing happened.
    pub(super) fn quiet_second(&mut self, now: Instant) {
        self.settle(now);
        let Self { up, down, legs, .. } = self;
        if let Some(legs) = legs {
            legs.newest = (legs.newest + 1) % 10;
            legs.span = now.saturating_duration_since(self.sampled_at);
            legs.up.advance(legs.newest, now, up, QueueBytes::default());
            legs.down
                .advance(legs.newest, now, down, QueueBytes::default());
        }
    }

    /// Keeps a sample, and settles the phases up to now with what it shows unsent.
    pub(super) fn add_sample(
        &mut self,
        now: Instant,
        sample: ConnectionSample,
        budget: &Arc<PointBudget>,
    ) {
        let Self { up, down, .. } = &*self;
        let began = [up, down].map(|meter| RecentSeconds::after(meter.counted()));
        let legs = self
            .legs
            .get_or_insert_with(|| Box::new(Legs::new(History::new(Arc::clone(budget)), began)));
        legs.client.update(sample.client);
        legs.upstream.update(sample.upstream);
        self.up.note_unacknowledged(sample.upstream.unacknowledged);
        self.down.note_unacknowledged(sample.client.unacknowledged);
        self.settle_with(now, sample.client.unsent, sample.upstream.unsent);
    }

    /// Settles the phases with what was last known to be unsent.
    pub(super) fn settle(&mut self, now: Instant) {
        let unsent = |meter: &DirectionMeter| match meter.clock.activity() {
            Activity::AwaitsSource { unsent } => unsent,
            _ => 0,
        };
        let (up, down) = (unsent(&self.up), unsent(&self.down));
        self.settle_with(now, down, up);
    }

    /// Adds to the pair what both directions did since the last time, and gives the bytes
    /// (up, down) of that.
    pub(super) fn add_progress(&mut self, pair: &Pair, now: Instant) -> (u64, u64) {
        let (up, down) = (self.up.take_progress(), self.down.take_progress());
        pair.add(now, up, down);
        (up.bytes, down.bytes)
    }

    /// Returns the direction from the client, as the API gives it.
    pub(super) fn up_snapshot(&self, now: Instant, age: Duration) -> DirectionSnapshot {
        self.snapshot(now, age, &self.up, |legs| {
            (&legs.up, &legs.client, &legs.upstream)
        })
    }

    /// Returns the direction from the server, as the API gives it.
    pub(super) fn down_snapshot(&self, now: Instant, age: Duration) -> DirectionSnapshot {
        self.snapshot(now, age, &self.down, |legs| {
            (&legs.down, &legs.upstream, &legs.client)
        })
    }

    /// Returns a direction as the API gives it; `select` gives the direction's seconds, its
    /// incoming and its outgoing leg.
    fn snapshot<'a>(
        &'a self,
        now: Instant,
        age: Duration,
        meter: &DirectionMeter,
        select: impl Fn(&'a Legs) -> (&'a RecentSeconds, &'a SocketSample, &'a SocketSample),
    ) -> DirectionSnapshot {
        let legs = self.legs.as_deref();
        let (goodput, incoming, outgoing) = match legs.map(|legs| (legs, select(legs))) {
            Some((legs, (seconds, incoming, outgoing))) => {
                let running = now.saturating_duration_since(self.sampled_at);
                let goodput =
                    seconds.goodput(legs.newest, legs.span, running, meter.delivered(), age);
                (goodput, incoming, outgoing)
            }
            None => {
                let life = rate(meter.delivered(), age);
                let goodput = Goodput {
                    last_second: life,
                    last_ten_seconds: life,
                    life,
                };
                (goodput, &SocketSample::NONE, &SocketSample::NONE)
            }
        };
        let (times, idle) = meter.clock.at(now, incoming.estimate().rtt);
        DirectionSnapshot {
            bytes: meter.delivered(),
            goodput,
            phase: meter.clock.phase(),
            phases: times.into(),
            idle: idle.as_secs_f64(),
            queue: meter.queue(incoming, outgoing),
            queue_max: meter.queue_max.into(),
        }
    }

    /// Returns what is known of the client leg and of the upstream leg.
    fn estimates(&self) -> (LegEstimate, LegEstimate) {
        self.legs.as_ref().map_or_else(Default::default, |legs| {
            (legs.client.estimate(), legs.upstream.estimate())
        })
    }

    /// Returns the segments that the client leg and the upstream leg have retransmitted, as of the
    /// last sample.
    fn retransmitted_segments(&self) -> [u32; 2] {
        self.legs.as_ref().map_or([0; 2], |legs| {
            [&legs.client, &legs.upstream]
                .map(|leg| leg.tcp.map_or(0, |tcp| tcp.retransmitted_segments))
        })
    }

    fn settle_with(&mut self, now: Instant, client_unsent: u64, upstream_unsent: u64) {
        let (client, upstream) = self.estimates();
        let (up, down) = (
            upstream.backlog(upstream_unsent),
            client.backlog(client_unsent),
        );
        self.up.clock.settle(now, up, upstream.rate);
        self.down.clock.settle(now, down, client.rate);
    }
}

impl Legs {
    fn new(history: History, [up, down]: [RecentSeconds; 2]) -> Self {
        Self {
            client: SocketSample::NONE,
            upstream: SocketSample::NONE,
            history,
            up,
            down,
            newest: 0,
            span: Duration::ZERO,
        }
    }
}

/// Returns a leg's second, before which it had retransmitted `before` segments.
fn leg_second(leg: &SocketSample, before: u32) -> LegSecond {
    let tcp = leg.tcp.unwrap_or_default();
    let rtt = Duration::try_from_secs_f64(tcp.rtt).unwrap_or_default();
    let retransmitted = tcp.retransmitted_segments.saturating_sub(before);
    LegSecond {
        rtt: u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX),
        cwnd: tcp.cwnd,
        retransmitted_segments: u16::try_from(retransmitted).unwrap_or(u16::MAX),
    }
}
