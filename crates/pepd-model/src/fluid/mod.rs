//! A chain of legs with buffers between them, as a fluid: Baccelli, Carofiglio & Foss, *Proxy caching in split
//! TCP*, eq. 19.4 to 19.7, for any number of legs, event by event and without a time step.
//!
//! Each leg i has a rate Xᵢ that its window allows (window over round trip), and one sᵢ at which it sends. It is
//! *free* (sᵢ = Xᵢ), *starved* (the buffer before it is empty, and what comes is less than Xᵢ: sᵢ is that), or
//! *backpressured* (the buffer behind it is full: sᵢ is what leaves that one). So each leg is locked to one that
//! is free, its *driver*, whose rate is a line in time until the next event. Windows grow by what is acknowledged:
//! Xᵢ² = Xᵢ₀² + 2 αᵢ ∫ sᵢ. Queues are quadratics. So every event (a queue empty or full, a rate that meets its
//! driver's or its cap, a loss) is a root that is exact.
//!
//! - [`Leg`] and its [`Loss`](crate::law::Loss);
//! - [`Chain`] runs, from event to event;
//! - [`Record`] is what comes of it: throughput, phases, queues;
//! - [`tail`] looks at how heavy a queue's tail is.
//!
//! Rates are packets a second, queues packets, times seconds.

mod chain;
mod leg;
mod line;
mod losses;
mod record;
pub mod tail;

#[cfg(test)]
mod tests;

pub use self::chain::Chain;
pub use self::leg::Leg;
pub use self::record::{Hold, Record, Shares};
