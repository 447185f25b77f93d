//! The values of the admin API as they are on the wire: what the daemon writes and its clients
//! read. They need serde and nothing of the server; a client needs nothing but them.
//!
//! Those of single connections and campus pairs are pepd-telemetry's. Times are seconds, rates bits
//! per second of payload, sizes bytes, unless a name says otherwise. Readers must expect fields
//! that they do not know; [`API_VERSION`] changes when one that they know goes or means something
//! else.

mod buffers;
mod chosen;
mod confinement;
mod flows;
mod legs;
mod links;
mod lists;
mod moves;
mod peers;
mod problem;
mod rates;
mod ready;
mod status;
mod survival;
mod windows;
mod worth;

pub use buffers::{AutoBuffers, BufferSum};
pub use chosen::ChosenControl;
pub use confinement::Confinement;
pub use flows::{FlowList, FlowQuery, FlowSort, Place};
pub use legs::{LegHistoryQuery, LegList};
pub use links::{Held, LinkQuery, LinkState, ModemState, Outage};
pub use lists::{CounterList, Done, Index, LimitList, PeerList};
pub use moves::{
    DrainQuery, MoveCounts, MoveQuery, MoveReport, MovedConnection, NeighborMoves, StayedConnection,
};
pub use peers::{GuardDrops, Liveness, PeerState};
pub use pepd_telemetry::{
    ArrivalSnapshot, BufferFigures, Carried, CountedFailure, DirectionPoint, DirectionSnapshot,
    FlowHistory, FlowSnapshot, Goodput, HandshakeMode, HistoryPoint, HistoryStep, LegBuffers,
    LegHistory, LegHistoryPoint, LegPoint, LegSnapshot, LegState, LinkReport, LoadedRtt,
    PairDirection, PairLeg, PairSnapshot, PathPoint, Phase, PhaseSeconds, QueueBytes, RateLimit,
    Side, SizedBy, TcpFigures,
};
pub use problem::{ErrorBody, Problem};
pub use rates::{FoundRate, RateState};
pub use ready::{CampusReadiness, Fit, NoSuchCampus, Readiness, ReadyAnswer, ReadyQuery};
pub use status::{
    API_VERSION, Alarm, CampusSnapshot, CountedReason, DaemonState, LastReload, LimitUse,
    ReloadState, Status,
};
pub use survival::{Deaths, Survival, Takeover};
pub use windows::{NetworkWindow, WindowReason};
pub use worth::{Compared, GainInterval, Measured, PairWorth, Worth, WorthChoice};
