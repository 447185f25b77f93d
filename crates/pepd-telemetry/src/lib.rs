//! What pepd counts: counters that the relay turns up, the table of live connections with their
//! phases and figures, and a throttle for log lines that a peer can trigger.
//!
//! Nothing here reads a clock or makes a system call: a worker tells its connections' turns and
//! what it has seen of their sockets, with the time. Nothing here speaks HTTP either: pepd-admin
//! tells the outside.

#![forbid(unsafe_code)]

mod counters;
mod flow;
mod history;
mod measurements;
mod pairs;
mod phase;
mod snapshot;
mod table;
mod throttle;

pub use counters::{Counter, Counters, Gauge, Held};
pub use flow::{CongestionName, LegLook, Look, Opening, Socket, Turn, Wanted};
pub use history::POINTS_PER_FLOW;
pub use measurements::{
    Distribution, HistogramSnapshot, LegMeasurements, Measurements, PairMeasurements,
};
pub use phase::{Doing, PhaseClock, Spent};
pub use snapshot::{
    CountedFailure, DirectionPoint, DirectionSnapshot, FlowHistory, FlowSnapshot, Goodput,
    HandshakeMode, HistoryPoint, LegPoint, LegSnapshot, PairDirection, PairLeg, PairSnapshot,
    Phase, PhaseTimes, QueueBytes, Side, TcpFigures,
};
pub use table::{CHECK_INTERVAL, FlowTable, Registration, errno_name};
pub use throttle::{LineBudget, Throttle};
