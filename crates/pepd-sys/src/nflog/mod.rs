//! A reader of one group of NFLOG: packets of which the kernel passes on the headers while they go their
//! way.
//!
//! What finds the reader too slow is lost: nothing waits for it.

mod log;
mod message;

pub use log::{Log, MESSAGE_BYTES};
pub use message::{Logged, Way, packets};
