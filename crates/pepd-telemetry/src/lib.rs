//! What pepd counts: counters that the relay turns up, the table of live connections with their
//! phases and figures, and a throttle for log lines that a peer can trigger.
//!
//! Nothing here reads a clock or makes a system call: a worker reports the steps of its
//! connections and samples their sockets, and says when. Nothing here speaks HTTP either:
//! pepd-admin tells the outside.
//!
//! The files in the order in which a figure passes through them:
//!
//! - `counters` are turned up wherever something happens: each a `counter`, or one for every
//!   `reason`; `measurements` are the distributions among them.
//! - `table` takes the reports and samples of all connections, `flow` keeps those of one: a
//!   `meter` for each direction with the clock of its `phase`, the `recent` seconds, and `history`.
//! - `pairs` sums the flows up by campuses, `legs` by the legs that they use.
//! - `snapshot` is what is told of all that, as the admin API gives it.
//! - `throttle` stands alone.

#![forbid(unsafe_code)]

mod counter;
mod counters;
mod flow;
mod history;
mod legs;
mod measurements;
mod pairs;
mod phase;
mod reason;
mod snapshot;
mod table;
mod throttle;

pub use counter::{Counter, Gauge, GaugeGuard};
pub use counters::Counters;
pub use flow::{
    Arrival, CongestionName, ConnectionSample, FlowInfo, LiveLeg, SampleFields, Socket,
    SocketSample, StepReport,
};
pub use history::POINTS_PER_FLOW;
pub use legs::{
    BUSY, Carried, HistoryStep, LegHistory, LegHistoryPoint, LegSecondFacts, LegState, LoadedRtt,
    MINUTES_PER_LEG, PathPoint, RateLimit, SECONDS_PER_LEG,
};
pub use measurements::{
    Distribution, HistogramSnapshot, LegMeasurements, Measurements, PairMeasurements,
};
pub use phase::{Activity, PhaseClock, PhaseTimes};
pub use reason::{CountersBy, HeldSynFailure, Reason, UnsplitReason};
pub use snapshot::{
    ArrivalSnapshot, BufferFigures, CountedFailure, DirectionPoint, DirectionSnapshot, FlowHistory,
    FlowSnapshot, Goodput, HandshakeMode, HistoryPoint, LegBuffers, LegPoint, LegSnapshot,
    LinkReport, PairDirection, PairLeg, PairSnapshot, Phase, PhaseSeconds, QueueBytes, Side,
    SizedBy, TcpFigures,
};
pub use table::{FlowTable, Registration, SAMPLE_INTERVAL, errno_name};
pub use throttle::{HeldBack, LineBudget, Throttle};
