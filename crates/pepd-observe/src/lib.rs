//! What pepd counts and says: counters that the relay turns up, the values of the admin API,
//! and a throttle for log lines that a peer can trigger.

#![forbid(unsafe_code)]

mod counters;
mod peers;
mod snapshot;
mod throttle;
mod view;

pub use counters::{Counter, Counters, Gauge, Held};
pub use peers::{Liveness, PeerState};
pub use snapshot::{
    API_VERSION, CampusSnapshot, CountedFailure, CountedReason, DaemonState, DirectionPoint, DirectionSnapshot,
    FlowHistory, FlowSnapshot, Goodput, HandshakeMode, HistoryPoint, LegPoint, LegSnapshot,
    LimitUse, PairDirection, PairLeg, PairSnapshot, Phase, PhaseTimes, QueueBytes, Side, Status,
    TcpFigures,
};
pub use throttle::Throttle;
pub use view::View;
