//! The tests of the real daemon on the real kernel, in network namespaces: a folder per subject,
//! in which what is needed for the tests of it stands beside them.
//!
//! They are one binary and run in parallel. What one of them changes of its process, or of the
//! kernel beyond its namespaces, the others would notice: [`harness`] has what is for that.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod faults;
mod harness;

mod admin;
mod capture;
mod cli;
mod cluster;
mod handshake;
mod kernel;
mod lifecycle;
mod limits;
mod relay;
mod streams;
mod survival;
mod tunnels;
mod weather;
