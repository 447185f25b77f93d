//! What becomes of the packets of a connection that stays end to end while the link to one of its ends is
//! gone (G. Bhutani, "A Near-Optimal Scheme for TCP ACK Pacing to Maintain Throughput in Wireless
//! Networks"); no I/O, no clock.
//!
//! - Going down: the ACKs of the end that will be away are held, each until its sender would time out
//!   soon.
//! - Gone: those that are there are released one by one, over as long a time as they can be. What comes
//!   for the end that is away is kept.
//! - Back: both go on, in order, at the rate of the link.
//!
//! [`Holder`] is told of links and given packets, and says of each packet once what becomes of it.
//!
//! Other than in the paper, nothing has to be known of the sender: what a Linux sender waits for is
//! counted from when the segment was sent that an ACK acknowledges, so that the round trip drops out
//! ([`pepd_model::hold_acks::linux`]). It counts for the last ACK only. An ACK is never sent twice: that
//! would restart no timer.

#![forbid(unsafe_code)]

mod figures;
mod flow;
mod holder;
mod leg;

#[cfg(test)]
mod tests;

pub use figures::{Figures, Limits};
pub use holder::Holder;
pub use leg::Report;

use pepd_packet::Segment;

/// The number by which whoever holds a packet knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PacketId(pub u64);

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// The packet goes on.
    Release(PacketId),
    /// It does not: another one that is kept says the same, or its receiver has it.
    Drop(PacketId),
    /// This segment is sent: a part of an ACK that is still held.
    Send(Segment),
}
