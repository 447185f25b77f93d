//! The table `inet pepd`, in reading order: what its objects are called (`names`), the ruleset of a
//! plan (`ruleset`, and the chains by subject), what is read back of it (`listing`), and the
//! program that does both (`process`).

mod capture;
pub(crate) mod carried;
pub(crate) mod error;
mod expr;
mod held_syn;
pub(crate) mod listing;
mod mss_clamp;
pub(crate) mod names;
mod passage;
pub(crate) mod process;
pub(crate) mod ruleset;
pub(crate) mod text;
mod tunnel_filter;
mod untrack;
