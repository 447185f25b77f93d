//! Split connections move between two relays, each in a box of its own, while both their ends read and
//! write as ever.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod ground;
mod kinds;
mod stays;
