//! One system call fails, each in turn: `cargo xtask faults` has them all, and here are some.

use std::path::Path;

use anyhow::{Result, ensure};
use pepd_testbed::faults::Campaign;
use pepd_testbed::require;
use rstest::rstest;

use crate::harness::PEPD;

/// How many faults are tried with each handshake.
const FAULTS: usize = 20;

/// How many daemons run side by side.
const LANES: usize = 2;

const SEED: u64 = 0x5eed;

/// Bytes arrive or an error does, the daemon serves on or ends with a code and a message, nothing
/// hangs and nothing is left. `PEPD_SEED` draws other faults.
#[rstest]
fn whatever_fails_nothing_lies_hangs_or_stays(#[values(false, true)] early: bool) -> Result<()> {
    require!(root);
    let seed = std::env::var("PEPD_SEED").map_or(Ok(SEED), |seed| seed.parse())?;
    let campaign = Campaign::new(Path::new(PEPD), early)?;
    let faults = campaign.some_faults(FAULTS, seed);
    let findings = campaign.run(faults, LANES, |fault, outcome| match outcome {
        Ok(Some(outcome)) => println!("{fault}: {outcome}"),
        Ok(None) => println!("{fault}: not reached"),
        Err(error) => println!("{fault}: {error:#}"),
    })?;
    let defects: Vec<_> = findings
        .defects
        .iter()
        .map(|(fault, _)| fault.to_string())
        .collect();
    ensure!(
        defects.is_empty(),
        "see above; repeat them with `cargo xtask faults --early {early} --fault {}`",
        defects.join(" --fault ")
    );
    ensure!(findings.missed < findings.runs, "no fault was reached");
    Ok(())
}
