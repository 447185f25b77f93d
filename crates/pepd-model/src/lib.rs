//! What pepd computes about senders and paths; no I/O, no clock.
//!
//! - [`hold_acks`]: when ACKs that are held during an outage are released.

#![forbid(unsafe_code)]

pub mod hold_acks;
