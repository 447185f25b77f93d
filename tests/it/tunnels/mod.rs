//! Chains and trees of helper boxes that are joined by tunnels.

mod chain;
mod fleet;
mod guard;
mod missing_modules;
mod mss;
mod path;
mod routing;
pub mod running;
mod tree;
