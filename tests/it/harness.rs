//! What tests of every subject need.

use std::time::Duration;

/// The daemon, as cargo has built it for these tests.
pub const PEPD: &str = env!("CARGO_BIN_EXE_pepd");

/// How long an event may take before a test fails. Not a measurement: machines are busy.
pub const LIMIT: Duration = Duration::from_secs(120);
