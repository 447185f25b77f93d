//! Split connections are frozen and go on between two relays, each in a box of its own. (How connections of all
//! kinds move between two daemons is in `tests/it/cluster/moves`.)

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod ground;
mod stays;
