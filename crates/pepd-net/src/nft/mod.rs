//! The table `inet pepd`: written, sent, listed and compared.

mod expr;
mod held_syn;
mod listing;
mod mss_clamp;
pub(crate) mod process;
pub(crate) mod ruleset;
mod tunnel_filter;
mod untrack;

pub(crate) use listing::Listing;
