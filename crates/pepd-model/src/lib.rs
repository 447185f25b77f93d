//! What pepd computes about senders and paths; no I/O, no clock.
//!
//! - [`buffers`]: what a leg's sockets may hold, by what it carries and by the memory that is left.
//! - [`find_rate`]: what to send at over a link whose rate nobody knows; a link to try that on.
//! - [`hold_acks`]: when ACKs that are held during an outage are released.

#![forbid(unsafe_code)]

pub mod buffers;
pub mod find_rate;
pub mod hold_acks;
