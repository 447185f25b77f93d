//! The table `inet pepd`, and those of one family beside it, in reading order: what its objects are
//! called (`names`), the ruleset of a plan (`ruleset`, and the chains by subject), what is read back
//! of it (`listing`, and `elements`), what stays where another takes its place (`carried`, `hook`), and the
//! program nft (`process`), which also makes room for iptables' rules (`iptables_tables`).

mod capture;
pub(crate) mod carried;
pub(crate) mod elements;
pub(crate) mod error;
mod expr;
pub(crate) mod forward;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod held_syn;
mod hold_acks;
mod hook;
pub(crate) mod iptables_tables;
pub(crate) mod listing;
mod measure;
mod moving;
mod mss_clamp;
pub(crate) mod names;
pub(crate) mod operators;
mod passage;
pub(crate) mod process;
pub(crate) mod ruleset;
pub(crate) mod text;
mod tunnel_filter;
mod untrack;
