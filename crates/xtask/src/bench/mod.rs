//! `cargo xtask bench`: pepd beside plain forwarding and HAProxy, in namespaces.
//!
//! All contenders stand ready at once, each on a box of its own between a client and a server
//! of its own, and are measured in turn: setting by setting, contender by contender, round by
//! round, in an order that moves on by one each round. Only numbers of the same round are
//! divided by each other, so that a machine that grows slower for a while slows all of them
//! alike. Nothing passes or fails here.
//!
//! The ends are made as cheap as they can be without help from the box's own techniques: a
//! sender writes one static buffer, a receiver has the kernel discard what arrives (MSG_TRUNC,
//! tcp(7)). What limits a transfer is then the path through the box, and the sender's and
//! receiver's TCP, which all contenders share.

mod contender;
mod cores;
mod interrupt;
mod lane;
mod lineup;
mod load;
mod machine;
mod plan;
mod report;
mod results;
mod sampling;
mod takeover;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use cores::{Cores, Sharing};
use interrupt::Interrupt;
use load::bulk::Ends;
pub use load::float;
pub use load::idle::kernel_bytes;
use machine::Machine;
use plan::{Durations, Plan};

use crate::demo::build;
use crate::packages::{self, Need};

/// Measure pepd beside plain forwarding and HAProxy, in network namespaces (needs root).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Rounds, each of which measures every contender once in every setting [default: 5, with
    /// --quick 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Short measurements: a look, not a result.
    #[arg(long)]
    quick: bool,
    /// What the receivers of bulk transfers do with what arrives.
    #[arg(long, value_enum, default_value = "discard")]
    ends: Ends,
    /// How the machine's cores are shared out.
    #[arg(long, value_enum, default_value = "split")]
    cores: Sharing,
    /// Only the settings whose names, as shown while it runs, have TEXT in them; may be repeated.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// How often the daemon's process dies, and how often it is replaced, with each number of
    /// connections of `--only takeover`.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    deaths: u16,
    /// Compare with another build of pepd, in place of HAProxy: what a change costs shows only
    /// within one run.
    #[arg(long, value_name = "PEPD")]
    against: Option<PathBuf>,
    /// Write every single measurement to FILE.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write what stands in the README to FILE.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// The programs that the benchmark starts.
const NEEDS: &[Need] = &[
    Need::new("haproxy", "haproxy"),
    Need::new("nft", "nftables"),
    Need::new("ip", "iproute2"),
    Need::new("ss", "iproute2"),
    Need::new("ethtool", "ethtool"),
    Need::new("taskset", "util-linux"),
    Need::new("renice", "bsdutils"),
];

/// Runs the benchmark and prints its table.
///
/// # Errors
/// Without root, when a contender does not start or is not in the path, and when interrupted.
pub fn run(args: &Args) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("network namespaces need root: run it with sudo");
    }
    Cores::take_precedence()?;
    let interrupt = Interrupt::on_signals()?;
    let wanted =
        |name: &str| args.only.is_empty() || args.only.iter().any(|it| name.contains(&**it));
    if wanted(sampling::NAME) {
        println!("{}", sampling::run(&interrupt)?);
    }
    if args.only.iter().any(|it| it == sampling::NAME) && args.only.len() == 1 {
        return Ok(());
    }
    packages::provide(NEEDS)?;
    pepd_testbed::raise_descriptor_limit()?;
    let pepd = build::release()?;
    let machine = Machine::inspect(&pepd)?;
    println!("{machine}");
    let cores = Cores::share(args.cores)?;
    cores.keep_hosts()?;
    let plan = Plan {
        cores,
        rounds: usize::from(args.rounds.unwrap_or(if args.quick { 2 } else { 5 })),
        durations: if args.quick {
            Durations::quick()
        } else {
            Durations::full()
        },
        ends: args.ends,
        only: args.only.clone(),
        deaths: args.deaths,
        pepd,
        against: args.against.clone(),
    };
    let results = plan.run(&interrupt)?;
    println!("{}", report::terminal(&results));
    if let Some(path) = &args.json {
        let json = report::json(&results, &machine)?;
        fs::write(path, json).with_context(|| format!("write {}", path.display()))?;
    }
    if let Some(path) = &args.markdown {
        let markdown = report::markdown(&results, &machine);
        fs::write(path, markdown).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
