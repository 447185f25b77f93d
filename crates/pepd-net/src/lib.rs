//! pepd's kernel state: planned, applied, verified and undone.
//!
//! A [`Request`] says what a helper box splits. [`Plan::new`] turns it into the exact
//! nftables script, policy-routing rules and routes, without looking at the host; printing
//! the plan is all that `pepd show` does. [`install`] applies a plan and gives an
//! [`Installed`] that can verify, replace and remove it; [`remove`] clears whatever a
//! crash left. [`Gate`] is the switch that the daemon renews while it is well: without it
//! every new connection is routed, unsplit.
//!
//! The kernel state outlives the process on purpose. Dropping an [`Installed`] removes
//! nothing: an unattended box then has a closed gate, which is plain routing.

#![forbid(unsafe_code)]

mod apply;
mod counters;
mod display;
mod error;
mod gate;
mod iptables;
mod nft;
mod plan;
mod prefix;
mod preflight;
mod request;
mod route;
mod tunnel;

pub use apply::{Installed, Removed, install, remove};
pub use counters::{Counts, Guard, Unsplit};
pub use error::{Error, Kind};
pub use gate::Gate;
pub use nft::process::find_holder;
pub use plan::Plan;
pub use preflight::host::Warning;
pub use preflight::{Firewall, Rehearsal, rehearse};
pub use request::{
    Action, Campus, Handshake, Holder, Listener, Mark, Peer, Queues, Request, Rule, SocketMarks,
    VerdictMarks, Via,
};
pub use route::netlink::{
    NEXT_PREFERENCE, PREFERENCE, PROBE_PREFERENCE, PROBE_TOS, PROTOCOL, WINDOWS_PREFERENCE,
};
