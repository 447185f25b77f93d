//! Fault injection: a daemon of which one system call fails, each in turn.
//!
//! A [`Campaign`] runs a scenario (a start, connections, a reload, an end) once to count the calls
//! that the daemon makes, and then once for each of them, with an error in its place. Whatever fails,
//! bytes arrive or an error does; the daemon serves on, or ends with a code and a message; nothing
//! hangs; and nothing is left in the kernel.
//!
//! It works by ptrace(2) and knows the registers of x86-64 only.

mod call;
mod campaign;
mod daemon;
mod fault;
mod scenario;
mod tracer;

pub use campaign::{Campaign, Findings};
pub use fault::Fault;
pub use scenario::Outcome;
