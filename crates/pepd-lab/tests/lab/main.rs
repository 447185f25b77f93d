//! The tests of the program `pepd-lab`, which cargo builds for tests of its package alone.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod command;
mod guest;
