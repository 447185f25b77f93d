//! What pepd computes about senders and paths; no I/O, no clock.
//!
//! - [`law`]: what one leg carries by itself;
//! - [`fluid`]: what legs with buffers between them carry together, as a fluid;
//! - [`packets`]: the same as single packets, with TCP's senders as they are;
//! - [`predict`]: what is to be expected of a connection that is split;
//! - [`placement`]: where boxes are worth most;
//! - [`find_rate`]: what to send at over a link whose rate nobody knows; a link to try that on;
//! - [`control_choice`]: which congestion control a leg's new connections have, by what its connections meet;
//! - [`first_window`]: what a connection may begin with, by what others to the same place have carried;
//! - [`buffers`]: what a leg's sockets may hold, by what it carries and by the memory that is left;
//! - [`hold_acks`]: when ACKs that are held during an outage are released.

#![forbid(unsafe_code)]

pub mod buffers;
pub mod control_choice;
mod events;
pub mod find_rate;
pub mod first_window;
pub mod fluid;
pub mod hold_acks;
pub mod law;
pub mod packets;
pub mod placement;
pub mod predict;
mod random;
