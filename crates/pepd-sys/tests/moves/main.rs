//! One end of a connection goes from one host to another, while its peer reads and writes as ever.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod ground;
mod refusals;
mod shapes;
mod to_and_fro;
