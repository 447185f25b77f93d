//! pepd's kernel state: planned, applied, verified and undone.
//!
//! A [`Request`] says what a helper box splits. [`Plan::new`] turns it into the exact
//! nftables ruleset, policy-routing rules and routes, without looking at the host; printing
//! the plan is all that `pepd show` does. [`install`] applies a plan and gives an
//! [`Installed`] that can verify, replace and remove it; [`remove`] clears whatever a
//! crash left. [`Gate`] is the switch that the daemon renews while it is well: without it
//! every new connection is routed, unsplit.
//!
//! The kernel state outlives the process on purpose. Dropping an [`Installed`] removes
//! nothing: an unattended box then has a closed gate, which is plain routing.
//!
//! # Reading order
//!
//! The modules in the order in which a configuration passes through them:
//!
//! 1. `request` is what is asked for; `plan` makes everything of it that will be in the kernel,
//!    with `prefix` (addresses cut into ranges), `route/next_hop` and `route/initcwnd` (rules and
//!    routes) and `tunnel/spec` (devices); `validate` checks the result, still without the kernel.
//! 2. `nft/ruleset` writes a plan as nft's table, chain by chain, and `iptables/rules` what
//!    iptables does where nft cannot hold a packet; `display` is the plan as text.
//! 3. `preflight` is what can be found out about the host without changing it; `queue_backend` is
//!    what can hold a packet there.
//! 4. `apply/transaction` puts a plan into the kernel, by `route/netlink`, `tunnel/devices`,
//!    `iptables/process` and `nft/process`: all of it, or nothing; `apply/verify` compares.
//! 5. `apply/installed` is what the daemon holds from then on; `counters` is what the table has
//!    counted, `route/follow` what changes with the host's routes, and `gate` opens and closes.
//! 6. `watch` looks meanwhile whether split connections come through, and for what stands in
//!    their way.
//! 7. `apply/remove` takes everything back, whoever made it, and `diag` ends the sockets that the
//!    kernel keeps for a while.
//!
//! `program` runs nft and iptables, each within a time limit. `fuzzing` (a feature) is what a fuzzer
//! calls.

#![forbid(unsafe_code)]

mod apply;
mod counters;
mod diag;
mod display;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gate;
mod interfaces;
mod iptables;
mod netlink;
mod nft;
mod plan;
mod prefix;
mod preflight;
mod program;
mod queue_backend;
mod request;
mod route;
mod translations;
mod tunnel;
mod validate;
mod watch;

pub use apply::error::{InstallError, RemoveError, VerifyError};
pub use apply::installed::{Installed, install};
pub use apply::remove::{Removed, remove};
pub use counters::{Counts, Guard, Unsplit};
pub use diag::end_half_open;
pub use error::{Classify, Drift, Kind};
pub use gate::away::Away;
pub use gate::choices::Choices;
pub use gate::moving::Moving;
pub use gate::{Gate, GateError};
pub use interfaces::{InterfaceChange, Interfaces};
pub use iptables::process::IptablesError;
pub use iptables::tables::open_iptables_lists;
pub use netlink::NetlinkError;
pub use nft::error::NftError;
pub use nft::names::{
    ASYMMETRIC_ROUTES, AUTO_RANGES, FLOODED_DESTINATIONS, FULL_SOURCES, MOVED, NEIGHBORS,
    WATCHED_ROUTED, WATCHED_SPLIT,
};
pub use plan::Plan;
pub use prefix::Family;
pub use preflight::firewall::Firewall;
pub use preflight::host::SourceValidMark;
pub use preflight::warning::Warning;
pub use preflight::{Preflight, preflight};
pub use queue_backend::{QueueBackendError, find_queue_backend};
pub use request::{
    Action, Campus, Handshake, HoldQueue, InitialWindow, Listener, LogGroup, Mark, Measure,
    Neighbor, Peer, PerMyriad, QueueBackend, Queues, Request, Rule, SocketMarks, VerdictMarks, Via,
};
pub use route::error::RouteError;
pub use route::ids::{PROBE_TOS, PROTOCOL, Preference, RouteTable};
pub use translations::{Translation, Translations, has_zones, translates};
pub use tunnel::error::TunnelError;
pub use tunnel::spec::TunnelKind;
pub use validate::RequestError;
pub use watch::lookup::{impossible_by, is_local, link_to, source_towards};
pub use watch::{Cause, Finding, Passage, Tally, Watch, WatchError, examine, examine_firewall};

/// Gives the programs that are run here, by name or path, in the order in which they are tried.
pub fn programs() -> impl Iterator<Item = &'static str> {
    let [nft, v4, v6] = [
        &nft::process::PROGRAMS[..],
        &iptables::process::PROGRAMS4,
        &iptables::process::PROGRAMS6,
    ];
    [nft, v4, v6].into_iter().flatten().copied()
}
