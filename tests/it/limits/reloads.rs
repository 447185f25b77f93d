//! Many reloads in a row: the listeners of those before are within what descriptors were shared out.

use anyhow::{Result, ensure};
use pepd_testbed::{Family, Pepd, Stage, Via, World, require};
use rstest::rstest;

use crate::harness::PEPD;

/// Each of the reloads needs other listeners, while connections take all that is left for them.
#[rstest]
fn reloads_in_a_row_keep_within_the_descriptors(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("prlimit"));
    const RELOADS: u32 = 30;
    const LEGS: usize = 2;
    const WORKERS: usize = 2;
    // Two address families; the running ones, two sets that retire, and one in preparation.
    const LISTENERS: usize = LEGS * WORKERS * 2 * 4;
    let config = |number: u32| {
        World::config()
            .replacen("[node]", "[node]\nworkers = 2", 1)
            .replace(
                "[leg.lan]",
                &format!("[leg.lan]\nuser_timeout = \"{}s\"", 100 + number),
            )
    };
    let mut stage = Stage::open(Via::Routing, PEPD)?;
    let few = Pepd::builder(PEPD).wrapper(&["prlimit", "--nofile=260:260"]);
    stage.pepd = Some(few.start(stage.world.hb(), &config(0))?);
    let mut pairs = Vec::new();
    loop {
        let (pair, split) = stage.world.probe(family)?;
        pairs.push(pair);
        if !split {
            break;
        }
    }
    ensure!(pairs.len() > 8, "{} connections", pairs.len());
    for number in 1..=RELOADS {
        stage.pepd()?.reload(&config(number))?;
        let listening = stage.world.hb().sh("ss -Htln")?.lines().count();
        ensure!(listening <= LISTENERS, "{listening} listeners");
        for pair in &pairs {
            pair.exchange(1000)?;
        }
    }
    let log = stage.pepd()?.log();
    ensure!(!log.contains("Too many open files"), "{log}");
    ensure!(!log.contains("accepting pauses"), "{log}");
    let reloads = log.lines().filter(|line| line.ends_with(" reloaded"));
    ensure!(reloads.count() == RELOADS as usize, "{log}");
    stage.finish()
}
