//! Frames as bytes. Each fits into one record of a session; a connection's data comes in as many as it takes.
//!
//! Numbers are big-endian. A frame is its kind, one byte, and what belongs to it; whatever is left over,
//! missing, or out of bounds makes it none.

mod codec;
mod connection;
mod frame;

pub use connection::{Assembly, AssemblyError, Head};
pub use frame::{Frame, FrameError, MoveId, Offer, Offered, Reason, Refused, Translated};

/// The longest frame, in bytes: what one record of a session holds (65,535 bytes less its tag of 16; The Noise
/// Protocol Framework, revision 34, section 3).
pub const LONGEST_FRAME: usize = 65_535 - 16;

/// The most connections in one move.
pub const MOST_CONNECTIONS: usize = 1024;

/// The most data of one connection, in bytes: both queues of both sockets, and both pipes.
pub const MOST_DATA: usize = 256 << 20;

/// The most data in one frame, in bytes.
pub const MOST_IN_FRAME: usize = 60_000;
