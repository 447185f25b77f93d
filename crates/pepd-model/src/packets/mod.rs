//! A chain of legs with buffers between them, packet by packet: what small buffers cost is an effect of
//! packets, which the [`fluid`](crate::fluid) does not have.
//!
//! Each leg is a TCP sender, a link and a receiver. Packets are full ones, numbered from 0; a link delays, has a
//! rate and a queue, and loses as a [`Loss`](crate::law::Loss) says: with losses over time the first packet
//! after each. Acknowledgements arrive. Between two legs is a box, whose [`Gap`] says how much it holds and what
//! counts as held.
//!
//! - [`Setup`] is what is simulated, and [`Chain`] runs it, from event to event;
//! - `sender` is a TCP sender: what is lost is found by RACK and by a probe (RFC 8985) or a timeout (RFC 6298),
//!   and sent again as RFC 6675 has it; `window` is Reno's and CUBIC's; `receiver` acknowledges;
//! - [`Record`] is what comes of it: throughput, phases, queues.
//!
//! Times are seconds, rates packets a second, sizes packets.

mod chain;
mod link;
mod receiver;
mod record;
mod rtt;
mod sender;
mod setup;
mod window;

#[cfg(test)]
mod tests;

pub use self::chain::Chain;
pub use self::record::Record;
pub use self::setup::{Gap, Held, Setup};
