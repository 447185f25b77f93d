//! What pepd tells the outside: the values of the admin API and the API itself, the metrics, the
//! dashboard, and the advice that the figures give.
//!
//! Nothing here is on the path of a connection: whoever asks reads a [`View`] of the daemon.

#![forbid(unsafe_code)]

mod advice;
pub mod api;
mod counted;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
pub mod metrics;
pub mod page;
mod peers;
mod status;
mod view;

pub use advice::{LegFacts, advise};
pub use peers::{GuardDrops, Liveness, PeerState};
pub use status::{API_VERSION, CampusSnapshot, CountedReason, DaemonState, LimitUse, Status};
pub use view::View;
