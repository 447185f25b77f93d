//! What happens to connections when the daemon's process dies, and another one goes on.

mod adversity;
mod churn;
mod crash;
mod deaths;
mod half_way;
mod upgrade;

use anyhow::Result;
use pepd_testbed::{Stage, wait_until};

use crate::harness::LIMIT;

/// What is logged of a daemon that is up.
const UP: &str = "new connections are split";

/// Waits until the daemon has logged `words`.
fn await_line(stage: &Stage, words: &str) -> Result<()> {
    wait_until(LIMIT, &format!("`{words}` in the log"), || {
        let pepd = stage.pepd.as_ref();
        pepd.is_some_and(|pepd| pepd.log().contains(words))
    })
}
