//! The path of every experiment: a sender, a box in the middle, a receiver, two emulated links,
//! and what splits connections in the middle.

mod config;
mod network;
mod proxy;

pub use network::{HEADERS, MTU, Path, TUNNEL};
pub use proxy::Proxy;
