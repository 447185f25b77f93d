//! The tests of the testbed by itself: its links, namespaces, programs and guests, without pepd.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod link_model;
mod link_netns;
mod netem;
mod vm;
mod world;
