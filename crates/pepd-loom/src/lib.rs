//! What pepd's workers share, under a model checker: loom runs a few operations of two or three
//! threads in every order that there is, and with every value that memory may give.
//!
//! Little is shared. A connection never leaves its worker's thread, and what the workers have in
//! common are a few tables, each behind one lock that is held for one operation; what they need of
//! each other besides goes through the kernel. What is left to be checked is what lies outside a
//! lock: a number or a flag that is read or changed without it, and what is done in two steps.
//!
//! - [`admission`]: the numbers of connections, and whether a limit is reached;
//! - [`pipes`]: the pool, which is one worker's; the main thread changes its size;
//! - [`table`]: the held SYNs, with the flag by which an accept takes no lock.
//!
//! Not here: the gate's history and the verdicts that are due (one lock, one operation), counters
//! (one atomic each), and the settings, a snapshot that is swapped whole (arc-swap).
//!
//! The relay's own files are compiled here once more, with loom's locks and atomics in place of
//! std's: `crate::sync` says which.

#![forbid(unsafe_code)]

pub mod admission;
pub mod pipes;
pub mod table;

#[path = "../../pepd-relay/src/asymmetric_routes.rs"]
#[allow(dead_code, unreachable_pub, reason = "a file of the relay's")]
mod asymmetric_routes;
#[path = "../../pepd-relay/src/limits.rs"]
#[allow(dead_code, unreachable_pub, reason = "a file of the relay's")]
mod limits;
#[path = "../../pepd-relay/src/pipe_pool.rs"]
#[allow(dead_code, unreachable_pub, reason = "a file of the relay's")]
mod pipe_pool;

#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "files of the relay's"
)]
mod handshake;

/// What those files take of others.
mod settings {
    pub(crate) use pepd_relay::Limits;
}

/// What those files take of others.
mod listener {
    use std::time::Duration;

    /// As a listener has it.
    pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(15);
}

/// The locks and atomics of those files.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
}
