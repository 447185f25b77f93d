//! What the workers share, and what one worker's connections share.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use pepd_packet::VerdictMarks;
use pepd_telemetry::{Counters, FlowTable};

use crate::connection::access_log::AccessLog;
use crate::fast_open::Key;
use crate::first_window::{Flights, Learner};
use crate::gate_history::GateWatch;
use crate::handshake::answered_leg::AnsweredLeg;
use crate::handshake::dial_handle::DialHandle;
use crate::handshake::queued_packet::QueuedPacket;
use crate::handshake::table::Table;
use crate::handshake::verdict::SynVerdict;
use crate::left_legs::LeftLegs;
use crate::limits::Admission;
use crate::memory::Watched;
use crate::outage::{Injector, Links};
use crate::pipe_pool::PipePool;
use crate::settings::{Leg, Settings};
use crate::slots::Slots;

/// The held SYNs and what came of them, as the workers have them.
pub(crate) type Handshakes = Table<QueuedPacket, AnsweredLeg, DialHandle>;

/// The state that all workers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: ArcSwap<Settings>,
    /// The marks of a capture that is about to hold SYNs, while by the settings none does: it does so some time before
    /// they come into force.
    pub(crate) coming_marks: ArcSwapOption<VerdictMarks>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) gate: GateWatch,
    pub(crate) handshakes: Handshakes,
    pub(crate) fast_open_key: Key,
    pub(crate) flows: Arc<FlowTable>,
    pub(crate) access_log: AccessLog,
    /// By which legs are restarted; none where that was not permitted.
    pub(crate) injector: Option<Arc<Injector>>,
    /// The congestion control that opens the windows of those; none where the kernel does not take it.
    pub(crate) resume: Option<String>,
    /// What connections may begin with.
    pub(crate) first_windows: Learner,
    /// The links under the legs.
    pub(crate) links: Arc<Links>,
    /// Upstream legs that a process before this one has left, for clients that are to come.
    pub(crate) left_legs: LeftLegs,
    /// Notes about the live connections, for whoever goes on with them if this process dies.
    pub(crate) slots: Arc<Slots>,
    /// The number of workers.
    pub(crate) workers: usize,
    /// The leg for a destination that a reload has just taken out of every campus.
    pub(crate) unnamed_leg: Leg,
}

impl Shared {
    /// Gives a queued packet its verdict, and counts it.
    pub(crate) fn decide(&self, packet: QueuedPacket, verdict: SynVerdict) {
        let marks = self.settings.load().end_to_end.map(|held| held.marks);
        let marks = marks.or_else(|| self.coming_marks.load().as_deref().copied());
        packet.decide(verdict, marks, &self.counters);
    }

    /// Shows how many flows are pending.
    pub(crate) fn note_pending(&self) {
        self.counters.pending.set(self.handshakes.len() as u64);
    }
}

/// The state that one worker's connections share.
#[derive(Debug)]
pub(crate) struct Context {
    /// The worker's index.
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<PipePool>,
    /// The buffers of its connections.
    pub(crate) watched: Arc<Watched>,
    /// Those of its connections whose first window is under way.
    pub(crate) flights: Flights,
}
