//! What the admin API, the metrics and the dashboard ask, and what answers.

use pepd_telemetry::Counters;

use crate::wire::{FlowHistory, FlowSnapshot, HistoryStep, LegHistory, Readiness, Status};

/// A daemon as those who ask about it see it. Every method returns at once and may be called from
/// any thread; what it gives is a copy.
pub trait View: Send + Sync {
    /// Returns the daemon as a whole.
    fn status(&self) -> Status;

    /// Returns whether connections are best led here; cheap, and of this moment.
    fn readiness(&self) -> Readiness;

    /// Returns all live connections, in no order.
    fn flows(&self) -> Vec<FlowSnapshot>;

    /// Returns one live connection.
    fn flow(&self, id: u64) -> Option<FlowSnapshot>;

    /// Returns the last minutes of one live connection.
    fn history(&self, id: u64) -> Option<FlowHistory>;

    /// Returns a leg's last minutes or its last day, after `since` in seconds since the Unix epoch; none of
    /// a leg that had no connection.
    fn leg_history(&self, leg: &str, step: HistoryStep, since: f64) -> Option<LegHistory>;

    /// Ends a second of the legs' histories; to be called about once a second while anybody may ask.
    fn end_second(&self) {}

    /// Returns the process's counters.
    fn counters(&self) -> &Counters;
}
