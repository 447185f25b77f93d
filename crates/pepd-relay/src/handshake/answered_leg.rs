//! An upstream leg whose destination has answered.

use std::os::fd::OwnedFd;

/// An upstream leg whose destination has answered while the client's SYN was held.
#[derive(Debug)]
pub(crate) struct AnsweredLeg {
    pub(crate) socket: OwnedFd,
    /// The number of bytes of the client's first data that went out in the SYN.
    pub(crate) sent: usize,
}
