//! What one leg carries by itself: a congestion control, a round trip, losses, and what caps it.
//!
//! - [`Leg`] is a leg, and [`Leg::alone`] what it carries, which cap binds, and how far that is to be
//!   trusted;
//! - [`aimd`]: additive increase and multiplicative decrease, of which Reno is one, and its moments;
//! - [`reno`]: with timeouts (PFTK);
//! - [`cubic`]: RFC 9438;
//! - [`measured`]: bbr, of which there is no law, only what was measured.
//!
//! Rates are full packets a second, windows and sizes full packets, times seconds.

pub mod aimd;
mod alone;
pub mod cubic;
mod leg;
mod loss;
pub mod measured;
pub mod reno;

pub use self::alone::{Alone, Bound, Confidence};
pub use self::leg::{Control, Leg};
pub use self::loss::Loss;

/// The payload of a full packet, bytes: 1500 less the headers of IPv4 and of TCP with timestamps.
pub const PAYLOAD: f64 = 1448.0;

/// A full packet on the wire, bytes.
pub const WIRE: f64 = 1500.0;
