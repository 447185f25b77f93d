//! `cargo xtask soak`: a million connections in bad weather, and every byte accounted for.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use pepd_testbed::soak::Soak;

use crate::demo::build;

/// Have connections by the hundred thousand go through pepd, with every kind of end, while it is
/// reloaded, paused, killed and flooded; account for every byte, and see that nothing grows (needs
/// root).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many connections
    #[arg(long, value_name = "N", default_value = "1000000")]
    connections: u64,
    /// End after so many seconds, even if there were fewer connections
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    /// What everything is drawn by
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// How many connections are open at once
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u16).range(1..=4000))]
    at_a_time: u16,
    /// This program instead of one that is built now
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// Runs the soak, and prints how far it is and what it has come to.
///
/// # Errors
/// What does not hold.
pub fn run(args: &Args) -> Result<()> {
    let pepd = build::for_namespaces(args.binary.as_deref())?;
    let soak = Soak {
        connections: args.connections,
        time: args.seconds.map(Duration::from_secs),
        seed: args.seed,
        at_a_time: args.at_a_time.into(),
        // Each ends with a few seconds in which the last ones vanish.
        round: (args.connections / 50).clamp(500, 20_000),
    };
    let summary = soak.run(&pepd, |summary| println!("{summary}"))?;
    println!("Nothing was lost, and nothing is left.\n{summary}");
    Ok(())
}
