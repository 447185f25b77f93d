//! The words that pepd's crates share about packets; no I/O, no clock.
//!
//! The kernel state and the data path never see each other, but have to mean the same by a
//! mark, a queue or a rate: each of these is a type here.
//!
//! - [`mark`]: the packet mark, and what its values say;
//! - [`queue`]: the numbers of NFQUEUEs;
//! - [`units`]: rates and sizes.

#![forbid(unsafe_code)]

pub mod mark;
pub mod queue;
pub mod units;

pub use mark::{Mark, MarkMask, MarkValue, PacketMark, SocketMarks, VerdictMarks};
pub use queue::QueueNumber;
pub use units::{Rate, Size};
