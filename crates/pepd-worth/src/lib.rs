//! What splitting is worth on a path, measured: some connections are split and some are routed, chosen at
//! random, and both are watched at the same place; no I/O, no clock.
//!
//! - [`Watcher`] is given the headers of what passes, and tells of each connection, once it has ended, when
//!   the first byte came and when its client had acknowledged all.
//! - [`Worth`] keeps that by pair of campuses, and compares.
//! - [`Choice`] finds out and follows whether splitting pays between two campuses.
//! - [`Gain`] is how a comparison comes out: a factor with an interval, and none before there is enough.
//!
//! Both kinds are seen by the same means at the same place, the client's side of the box, so that what is
//! missed there (the way from the box to the client, and what the watching costs) is missed of both.

#![forbid(unsafe_code)]

mod choice;
mod figures;
mod gain;
mod sample;
mod watcher;

pub use choice::{Choice, Decision, Why};
pub use figures::{Arms, Finding, PairFindings, Quantity, Summary, Worth};
pub use gain::{FEWEST, Gain};
pub use watcher::{Arm, Ended, Place, Watcher};
