//! `cargo xtask faults`: what the daemon does when one of its system calls fails, for each of them.

use std::path::PathBuf;

use anyhow::{Result, bail};
use pepd_testbed::faults::{Campaign, Fault, Findings};

use crate::demo::build;

/// Fail every system call of a start, connections, a reload and an end of pepd, one at a time, and
/// see that bytes arrive or an error does, nothing hangs and nothing is left (needs root, x86-64).
///
/// Each fault is written CALL:N:ERROR and can be repeated with --fault: the Nth call of this kind,
/// over all of pepd's threads, gives the error instead of doing its work.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only this fault, such as splice:3:ENOMEM; may be repeated
    #[arg(long, value_name = "CALL:N:ERROR")]
    fault: Vec<Fault>,
    /// Only calls of this name; may be repeated
    #[arg(long, value_name = "CALL")]
    only: Vec<String>,
    /// Not every fault but so many of them, of each call alike
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// What the sample is drawn by
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// The handshake "early" only, or the default one only; both otherwise
    #[arg(long, value_name = "BOOL")]
    early: Option<bool>,
    /// Runs side by side
    #[arg(long, value_name = "N", default_value = "4")]
    lanes: usize,
    /// This program instead of one that is built now
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// Runs the campaign and prints what it finds.
///
/// # Errors
/// When something does not hold.
pub fn run(args: &Args) -> Result<()> {
    let pepd = build::for_namespaces(args.binary.as_deref())?;
    let mut defects = 0;
    for early in [false, true] {
        if args.early.is_some_and(|wanted| wanted != early) {
            continue;
        }
        let handshake = if early { "early" } else { "end-to-end" };
        println!("Handshake {handshake}:");
        let campaign = Campaign::new(&pepd, early)?;
        print_calls(&campaign);
        let faults = choose(args, &campaign);
        println!("{} faults, {} side by side:", faults.len(), args.lanes);
        let findings = campaign.run(faults, args.lanes, |fault, outcome| match outcome {
            Ok(Some(outcome)) => println!("  {fault}: {outcome}"),
            Ok(None) => println!("  {fault}: not reached"),
            Err(error) => println!("  {fault}: DEFECT: {error:#}"),
        })?;
        print_findings(&findings);
        defects += findings.defects.len();
    }
    match defects {
        0 => Ok(()),
        count => bail!("{count} faults have shown a defect"),
    }
}

fn choose(args: &Args, campaign: &Campaign) -> Vec<Fault> {
    if !args.fault.is_empty() {
        return args.fault.clone();
    }
    let mut faults = match args.sample {
        Some(number) => campaign.some_faults(number, args.seed),
        None => campaign.every_fault(),
    };
    let wanted = |fault: &Fault| args.only.iter().any(|name| name == fault.call_name());
    faults.retain(|fault| args.only.is_empty() || wanted(fault));
    faults
}

fn print_calls(campaign: &Campaign) {
    println!("  calls at: start, connections, reload, end");
    for (name, [start, connections, reload, end]) in campaign.counts() {
        println!("  {name:>24} {start:>5} {connections:>5} {reload:>5} {end:>5}");
    }
}

fn print_findings(findings: &Findings) {
    println!("{} runs, of which:", findings.runs);
    println!("  {:>6} did not come to the call", findings.missed);
    for (outcome, count) in &findings.outcomes {
        println!("  {count:>6} {outcome}");
    }
    println!("  {:>6} showed a defect", findings.defects.len());
    for (fault, why) in &findings.defects {
        let first = why.lines().next().unwrap_or_default();
        println!("         {fault}: {first}");
    }
}
