//! When ACKs that are held during an outage are released, so that their sender does not time out
//! (G. Bhutani, "A Near-Optimal Scheme for TCP ACK Pacing to Maintain Throughput in Wireless
//! Networks").
//!
//! - [`paper`]: the paper's sender, whose samples are the times between ACKs;
//! - [`linux`]: today's, whose samples are the whole ages of the segments;
//! - [`split`]: how many ACKs one may be made.
//!
//! Times are in seconds, counted from the moment at which the link is gone.

pub mod linux;
pub mod paper;
pub mod split;

#[cfg(test)]
mod linux_sender;

/// The most ACKs that a schedule is made for; what is beyond is let go at once. A Linux sender
/// can be kept for as long as it can be with far fewer.
pub const MOST_ACKS: usize = 4096;

/// When the ACKs are released, and what that comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// When each ACK is released, in seconds, in the ACKs' order.
    pub releases: Vec<f64>,
    /// The sender's retransmission timeout after the last of them, in seconds. The lower, the
    /// sooner a loss after the outage is noticed.
    pub final_rto: f64,
}
