//! Finding the rate that a leg's path has: one controller for all connections of a leg, which knows more
//! than any of them alone.
//!
//! What is sent at one rate is an [`Epoch`]: the kernel counts what becomes of it, and [`Controller`] says
//! from that what to send at next. Loss is no sign of anything by itself. What the path carries is seen by
//! the distances at which acknowledgements come while there is a queue, and the queue by round trips that
//! are longer than the least; where there is no queue, sending a little more shows whether more arrives.
//!
//! [`simulation`] is a link to try that on, packet by packet and without a clock.

mod controller;
mod elasticity;
mod epoch;
mod least;
mod ledger;
mod near;
mod own_path;
pub mod simulation;
mod standing;
mod tally;

#[cfg(test)]
mod tests;

pub use self::controller::{Controller, Known, LimitedBy, Span};
pub use self::epoch::Epoch;
pub use self::ledger::{Ledger, OPEN};
pub use self::near::{CLASSES, Near};
pub use self::own_path::{Heard, LegDelay, OwnPath};

/// The bytes of a full IP packet, by which what is few is counted.
pub const PACKET: f64 = 1500.0;

/// For how long a receiver waits for a second packet before it acknowledges one, in seconds (`TCP_DELACK_MIN`,
/// include/net/tcp.h).
const DELAYED: f64 = 0.04;
