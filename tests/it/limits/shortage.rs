//! Descriptors that run out for a moment.

use anyhow::Result;
use pepd_testbed::{Family, Stage, World, accepted, require, wait_until};
use rstest::rstest;

use crate::harness::{LIMIT, PEPD};

/// When there are descriptors again, new connections are split again, even if none of the existing
/// ones has ended.
#[rstest]
fn a_shortage_that_is_over_is_forgotten(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("prlimit"));
    // The descriptors are counted: the thread that answers questions takes some of its own, in its own time.
    let config = World::config().replacen("[node]", "[node]\nworkers = 1", 1)
        + "\n[admin]\nsocket = \"off\"\n";
    let mut stage = Stage::with_config(PEPD, &config)?;
    let pid = stage.pepd()?.daemon()?;
    // One connection takes two, and the socket kept for the next one is the third.
    let free: Vec<u32> = (0..)
        .filter(|fd| !std::path::Path::new(&format!("/proc/{pid}/fd/{fd}")).exists())
        .take(2)
        .collect();
    stage.pepd()?.limit_descriptors(free[1] + 1)?;
    let before = accepted(stage.world.hb())?;
    let first = stage.world.pair(family)?;
    // It carries nothing before there is a third descriptor.
    wait_until(LIMIT, "it is split", || {
        accepted(stage.world.hb()).is_ok_and(|now| now > before)
    })?;
    let Stage { world, pepd, .. } = &stage;
    let pepd = pepd.as_ref().unwrap();
    // A look at the kernel's state may have had descriptors meanwhile, and given them back.
    let mut more = Vec::new();
    wait_until(LIMIT, "the shortage is noticed", || {
        let noticed = pepd.log().contains("accepting pauses");
        if !noticed {
            more.push(world.pair(family).unwrap());
        }
        noticed
    })?;
    stage.pepd()?.limit_descriptors(1000)?;
    wait_until(LIMIT, "new connections are split again", || {
        stage.world.probe(family).is_ok_and(|(_, split)| split)
    })?;
    first.exchange(1000)?;
    stage.finish()
}
