//! What pepd counts and says: counters that the relay turns up, and a throttle for log lines
//! that a peer can trigger.

#![forbid(unsafe_code)]

mod counters;
mod throttle;

pub use counters::{Counter, Counters, Gauge, Held};
pub use throttle::Throttle;
