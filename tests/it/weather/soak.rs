//! Thousands of connections in bad weather: the short form of `cargo xtask soak`.

use std::path::Path;

use anyhow::{Context, Result};
use pepd_testbed::require;
use pepd_testbed::soak::Soak;

use crate::harness::{PEPD, many_descriptors};

const SEED: u64 = 0x5eed;

/// No byte is lost, whichever way connections end and whatever happens to the daemon meanwhile;
/// and when it is over, nothing has grown and nothing is left. `PEPD_SEED` draws another one.
#[test]
fn nothing_is_lost_and_nothing_grows() -> Result<()> {
    require!(root);
    let _turn = many_descriptors()?;
    let seed = std::env::var("PEPD_SEED").map_or(Ok(SEED), |seed| seed.parse())?;
    let soak = Soak {
        connections: 2000,
        time: None,
        seed,
        at_a_time: 200,
        round: 1000,
    };
    let summary = soak
        .run(Path::new(PEPD), |summary| println!("{summary}"))
        .with_context(|| format!("repeat it with PEPD_SEED={seed}"))?;
    println!("{summary}");
    Ok(())
}
