//! What pepd counts and says: counters that the relay turns up, the table of live connections
//! with their phases and figures, the values of the admin API, and a throttle for log lines that
//! a peer can trigger.
//!
//! Nothing here reads a clock or makes a system call: a worker tells its connections' turns and
//! what it has seen of their sockets, with the time.

#![forbid(unsafe_code)]

mod advice;
pub mod api;
mod counters;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod flow;
mod history;
pub mod metrics;
pub mod page;
mod pairs;
mod peers;
mod phase;
mod snapshot;
mod table;
mod throttle;
mod view;

pub use advice::{LegFacts, advise};
pub use counters::{Counter, Counters, Gauge, Held};
pub use flow::{CongestionName, LegLook, Look, Opening, Socket, Turn, Wanted};
pub use history::POINTS_PER_FLOW;
pub use peers::{GuardDrops, Liveness, PeerState};
pub use phase::{Doing, PhaseClock, Spent};
pub use snapshot::{
    API_VERSION, CampusSnapshot, CountedFailure, CountedReason, DaemonState, DirectionPoint,
    DirectionSnapshot, FlowHistory, FlowSnapshot, Goodput, HandshakeMode, HistoryPoint, LegPoint,
    LegSnapshot, LimitUse, PairDirection, PairLeg, PairSnapshot, Phase, PhaseTimes, QueueBytes,
    Side, Status, TcpFigures,
};
pub use table::{CHECK_INTERVAL, FlowTable, Registration, errno_name};
pub use throttle::{LineBudget, Throttle};
pub use view::View;
