//! One live connection, as its worker reports it and others see it.

mod info;
mod meter;
mod recent;
mod sample;
mod state;
#[cfg(test)]
mod tests;

use std::fmt;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

pub use self::info::{Arrival, FlowInfo};
pub use self::meter::StepReport;
pub use self::sample::{CongestionName, ConnectionSample, SampleFields, SocketSample};
use self::state::State;
use crate::history::PointBudget;
use crate::legs::{LegLook, LegMeter};
use crate::pairs::Pair;
use crate::{
    ArrivalSnapshot, FlowSnapshot, HistoryPoint, LegSnapshot, LinkReport, Side, TcpFigures,
};

/// A socket that may be sampled while it is open. The table holds it weakly: it is closed when
/// its connection drops it, and not a moment later.
pub type Socket = dyn AsFd + Send + Sync;

/// A connection that came shortly before its turn is first sampled a second later: figures of a
/// few milliseconds are not those of a second.
const SHORTEST_SECOND: Duration = Duration::from_millis(500);

/// One leg of a live connection, for whoever has something to do with its socket.
#[derive(Clone)]
pub struct LiveLeg {
    /// The connection's id.
    pub flow: u64,
    /// Which of its legs it is.
    pub side: Side,
    /// The socket, while it is open. It is to be held for a call only, or it does not close in time.
    pub socket: Weak<Socket>,
}

/// One live connection.
pub(crate) struct Flow {
    pub(crate) id: u64,
    pub(crate) info: FlowInfo,
    pub(crate) pair: Arc<Pair>,
    /// The client leg's, and the upstream leg's.
    legs: [Arc<LegMeter>; 2],
    client_socket: Weak<Socket>,
    upstream_socket: Weak<Socket>,
    state: Mutex<State>,
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow")
            .field("id", &self.id)
            .field("info", &self.info)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Flow {
    pub(crate) fn new(
        id: u64,
        info: FlowInfo,
        (pair, legs): (Arc<Pair>, [Arc<LegMeter>; 2]),
        (client_socket, upstream_socket): (Weak<Socket>, Weak<Socket>),
        now: Instant,
    ) -> Self {
        Self {
            id,
            info,
            pair,
            legs,
            client_socket,
            upstream_socket,
            state: Mutex::new(State::new(now)),
        }
    }

    /// Begins with what another process had written of it, to the server and to the client.
    pub(crate) fn had_written(&self, [up, down]: [u64; 2]) {
        let mut state = self.lock();
        state.up.had_written(up);
        state.down.had_written(down);
        state.had_first_byte = down > 0;
        state.is_taken_over = true;
    }

    /// Takes the reports of both directions on a step that began at `woke` and ended at `done`.
    pub(crate) fn report(&self, woke: Instant, done: Instant, up: StepReport, down: StepReport) {
        let mut state = self.lock();
        state.report(woke, done, up, down);
        let is_first = state.first_byte.is_none() && !state.had_first_byte;
        if is_first && state.down.written > 0 {
            state.first_byte = Some(done.saturating_duration_since(self.info.accepted));
        }
    }

    /// Ends a second: samples the sockets with `read` if anything can have changed, and gives
    /// the bytes (up, down) that were delivered since the last.
    pub(crate) fn sample(
        &self,
        now: Instant,
        centiseconds: u32,
        budget: &Arc<PointBudget>,
        read: impl FnOnce(&Socket, &Socket, SampleFields) -> ConnectionSample,
    ) -> (u64, u64) {
        let mut state = self.lock();
        if now.saturating_duration_since(state.sampled_at) < SHORTEST_SECOND {
            return (0, 0);
        }
        if state.is_due() {
            let (Some(client), Some(upstream)) =
                (self.client_socket.upgrade(), self.upstream_socket.upgrade())
            else {
                return (0, 0);
            };
            let sample = read(&*client, &*upstream, state.fields());
            self.pair
                .observe_rtts(sample.client.tcp, sample.upstream.tcp);
            self.observe_legs(&state, now, &sample);
            state.active_second(now, centiseconds, sample, budget);
        } else {
            state.quiet_second(now);
        }
        state.changed = false;
        state.sampled_at = now;
        state.add_progress(&self.pair, now)
    }

    /// Returns its legs of whose name that is true: none, one, or both.
    pub(crate) fn legs(&self, is_meant: impl Fn(&str) -> bool) -> impl Iterator<Item = LiveLeg> {
        let sides = [
            (Side::Client, &self.info.client_profile, &self.client_socket),
            (
                Side::Upstream,
                &self.info.upstream_profile,
                &self.upstream_socket,
            ),
        ];
        sides
            .into_iter()
            .filter(move |side| is_meant(side.1))
            .map(|(side, _, socket)| LiveLeg {
                flow: self.id,
                side,
                socket: Weak::clone(socket),
            })
    }

    /// Adds the last progress to the pair, and gives the bytes (up, down) of that.
    pub(crate) fn finish(&self, now: Instant) -> (u64, u64) {
        let mut state = self.lock();
        state.settle(now);
        state.add_progress(&self.pair, now)
    }

    /// Returns whether its sockets have been sampled.
    pub(crate) fn was_sampled(&self) -> bool {
        self.lock().legs.is_some()
    }

    /// Takes a sample in between; history and seconds go on as if there had been none.
    pub(crate) fn add_sample(
        &self,
        now: Instant,
        sample: ConnectionSample,
        budget: &Arc<PointBudget>,
    ) {
        let mut state = self.lock();
        self.observe_legs(&state, now, &sample);
        state.add_sample(now, sample, budget);
    }

    /// Tells both legs what a sample shows since the one before.
    fn observe_legs(&self, state: &State, now: Instant, sample: &ConnectionSample) {
        let span = now.saturating_duration_since(state.sampled_at);
        let known = state.legs.as_deref();
        // What its sockets have counted for another process is not this one's.
        if known.is_none() && state.is_taken_over {
            return;
        }
        let before = [
            known.and_then(|legs| legs.client.tcp),
            known.and_then(|legs| legs.upstream.tcp),
        ];
        let after = [&sample.client, &sample.upstream];
        for ((leg, before), after) in self.legs.iter().zip(before).zip(after) {
            leg.observe(LegLook::between(before, after.tcp, after.unsent, span));
        }
    }

    /// Returns the last figures of the client leg and of the upstream leg.
    pub(crate) fn figures(&self) -> (Option<TcpFigures>, Option<TcpFigures>) {
        let state = self.lock();
        let legs = state.legs.as_deref();
        (
            legs.and_then(|legs| legs.client.tcp),
            legs.and_then(|legs| legs.upstream.tcp),
        )
    }

    pub(crate) fn history(&self, epoch: f64) -> Vec<HistoryPoint> {
        let state = self.lock();
        state
            .legs
            .as_ref()
            .map(|legs| legs.history.expand(epoch))
            .unwrap_or_default()
    }

    /// Returns the connection as the API gives it; `epoch` is that of `began`, in seconds since the
    /// Unix epoch.
    pub(crate) fn snapshot(&self, now: Instant, began: Instant, epoch: f64) -> FlowSnapshot {
        let state = self.lock();
        let FlowInfo {
            client,
            server,
            ref client_campus,
            ref server_campus,
            ref client_profile,
            ref upstream_profile,
            handshake,
            accepted,
            ref came,
        } = self.info;
        let age = now.saturating_duration_since(accepted);
        let leg = |profile: &Arc<str>, sample: Option<&SocketSample>| LegSnapshot {
            profile: profile.to_string(),
            congestion: sample.and_then(|sample| sample.congestion.map(|name| name.to_string())),
            // The daemon hears of links, and fills this in.
            link: LinkReport::Up,
            tcp: sample.and_then(|sample| sample.tcp),
            buffers: sample.and_then(|sample| sample.buffers),
        };
        let legs = state.legs.as_deref();
        FlowSnapshot {
            id: self.id,
            client,
            server,
            client_campus: client_campus.to_string(),
            server_campus: server_campus.to_string(),
            handshake,
            // It may have been accepted by a process before this one.
            started: epoch + accepted.saturating_duration_since(began).as_secs_f64()
                - began.saturating_duration_since(accepted).as_secs_f64(),
            age: age.as_secs_f64(),
            first_byte: state.first_byte.map(|time| time.as_secs_f64()),
            came: came.as_ref().map(|came| ArrivalSnapshot {
                from: came.from.to_string(),
                pause: came.pause.as_secs_f64(),
                age: now.saturating_duration_since(came.at).as_secs_f64(),
            }),
            up: state.up_snapshot(now, age),
            down: state.down_snapshot(now, age),
            client_leg: leg(client_profile, legs.map(|legs| &legs.client)),
            upstream_leg: leg(upstream_profile, legs.map(|legs| &legs.upstream)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held leaves at worst a figure that is off.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
