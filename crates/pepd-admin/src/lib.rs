//! What pepd tells the outside: the values of the admin API and the API itself, the metrics, the
//! dashboard, and the advice that the figures give.
//!
//! Nothing here is on the path of a connection: whoever asks reads a [`View`] of the daemon. In the
//! order in which a figure passes:
//!
//! - [`View`] is what the daemon implements.
//! - [`wire`] has the values that it gives, shared with the clients (`pepd status`, `top` …), which
//!   use nothing else of this crate; `counted` names the counters for it, and [`advise`] says what
//!   they mean for an operator.
//! - [`api`] serves them as JSON, [`metrics`] to Prometheus, and [`page`] beside the dashboard.
//! - `fixture` is a daemon on paper, for tests.

#![forbid(unsafe_code)]

mod advice;
pub mod api;
mod counted;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
pub mod metrics;
pub mod page;
mod view;
pub mod wire;

pub use advice::{LegFacts, advise};
pub use view::View;
