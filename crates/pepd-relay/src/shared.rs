//! What the workers share, and what one worker's connections share.

use std::sync::Arc;

use arc_swap::ArcSwap;
use pepd_telemetry::{Counters, FlowTable};

use crate::connection::access_log::AccessLog;
use crate::fast_open::Key;
use crate::gate_history::GateWatch;
use crate::handshake::{Decision, Held, Waiting};
use crate::limits::Admission;
use crate::pipe_pool::PipePool;
use crate::settings::{Leg, Settings};

/// What all workers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: ArcSwap<Settings>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) gate: GateWatch,
    pub(crate) held: Held,
    pub(crate) fast_open_key: Key,
    pub(crate) flows: Arc<FlowTable>,
    pub(crate) access_log: AccessLog,
    /// For a destination that a reload has just taken out of every campus.
    pub(crate) unnamed_leg: Leg,
}

impl Shared {
    /// Decides about a held SYN.
    pub(crate) fn decide(&self, waiting: Waiting, decision: Decision) {
        let marks = self.settings.load().hold.map(|hold| hold.marks);
        waiting.decide(decision, marks, &self.counters);
    }

    /// Shows how many flows are pending.
    pub(crate) fn note_pending(&self) {
        self.counters.pending.set(self.held.len() as u64);
    }
}

/// What one worker's connections share.
#[derive(Debug)]
pub(crate) struct Context {
    /// Which worker it is.
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<PipePool>,
}
