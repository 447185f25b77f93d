//! `cargo xtask sizing`: what a box takes for thousands of users, counted with real connections.

mod crowd;
mod figures;

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pepd_testbed::{Pepd, World, accepted, ask, raise_descriptor_limit};

use crate::demo::build;
use crowd::{Crowd, PER_USER};
use figures::{Figures, kernel_bytes};

/// The connections without a daemon, which tell what the hosts' own ends take of the kernel.
const ROUTED: u32 = 2000;
const ENDS_LIMIT: Duration = Duration::from_secs(300);

/// How often it is told how far the opening is.
const STEPS: u32 = 20;

/// Open so many connections of users with 20 each, a byte each way, have one in twenty go on with data,
/// print what the daemon and the kernel hold, and see that every one still answers (needs root, and 2 descriptors
/// for each connection, in each of two processes: `cargo xtask vm` has a million).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many connections
    #[arg(long, value_name = "N", default_value = "20000",
          value_parser = clap::value_parser!(u32).range(20..=250_000))]
    connections: u32,
    /// Be content with what is open after so many seconds
    #[arg(long, value_name = "S", default_value = "3600")]
    opening: u64,
    /// For so many seconds one in twenty carries data
    #[arg(long, value_name = "S", default_value = "30")]
    seconds: u64,
    /// This program instead of one that is built now
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// Runs it, and prints each figure as soon as it is known.
///
/// # Errors
/// When a connection is not established, not split or does not answer, or the daemon ends.
pub fn run(args: &Args) -> Result<()> {
    let binary = build::for_namespaces(args.binary.as_deref())?;
    raise_descriptor_limit()?;
    let world = World::standard()?;
    crowd::place_users(&world)?;
    let ends = ends_bytes(&world)?;

    let config = config(&world, args.connections);
    let mut pepd = Pepd::start(binary, world.hb(), &config)?;
    let before = Figures::read(&pepd)?;
    println!("before: {before}");
    let crowd = open(&world, &mut pepd, args)?;
    let open = Figures::read(&pepd)?;
    println!("open, a byte each way: {open}");

    let time = Duration::from_secs(args.seconds);
    let pieces = crowd.carry(time)?;
    let after = Figures::read(&pepd)?;
    println!("{pieces} pieces carried in {} s: {after}", args.seconds);
    let connections = crowd.connections()?;
    let users = connections / PER_USER;
    println!("for each of {connections} connections ({users} users):");
    println!("{}", Shares::of(&before, &after, ends, connections));

    for request in ["GET /v1/status", "GET /v1/flows?limit=20"] {
        let asked = Instant::now();
        let answer = ask(&world.admin_socket(), request)?;
        let ms = asked.elapsed().as_millis();
        println!("{request}: {} bytes after {ms} ms", answer.len());
    }
    let answering = crowd.answering()?;
    println!("{answering} of {connections} answer at the end");
    ensure!(answering == connections, "not all answer");
    ensure!(pepd.runs(), "the daemon has ended:\n{}", pepd.log());
    Ok(())
}

/// Opens the connections, and tells how far it is: a box that gets slower with each shows here.
fn open(world: &World, pepd: &mut Pepd, args: &Args) -> Result<Crowd> {
    let started = Instant::now();
    let end = started + Duration::from_secs(args.opening);
    let (before, mut steps) = (accepted(world.hb())?, 0);
    let crowd = Crowd::open(world, args.connections, end, |open| {
        let step = open / args.connections.div_ceil(STEPS);
        if step > steps {
            steps = step;
            let seconds = started.elapsed().as_secs();
            let resident = pepd.resident_bytes()? >> 20;
            println!("{open} open after {seconds} s: {resident} MiB of the daemon");
        }
        ensure!(pepd.runs(), "the daemon has ended:\n{}", pepd.log());
        Ok(())
    })?;
    let (split, connections) = (accepted(world.hb())? - before, crowd.connections()?);
    ensure!(
        split >= u64::from(connections),
        "{split} of {connections} were split:\n{}",
        pepd.log()
    );
    Ok(crowd)
}

fn config(world: &World, connections: u32) -> String {
    let limits = format!("[limits]\nconnections = {}\n", connections + 1000);
    format!("{}\n{limits}\n{}", World::config(), world.admin())
}

/// Returns the bytes of the kernel's objects for the two hosts' ends of a connection, which are in the
/// same kernel as the box.
fn ends_bytes(world: &World) -> Result<f64> {
    let before = kernel_bytes()?;
    let end = Instant::now() + ENDS_LIMIT;
    let crowd = Crowd::open(world, ROUTED, end, |_| Ok(()))?;
    Ok((kernel_bytes()? - before) / f64::from(crowd.connections()?))
}

/// What one connection takes on the box.
struct Shares {
    descriptors: f64,
    resident: f64,
    kernel: f64,
}

impl Shares {
    fn of(before: &Figures, after: &Figures, ends: f64, connections: u32) -> Self {
        let each = |after: f64, before: f64| (after - before) / f64::from(connections);
        Self {
            descriptors: each(after.descriptors, before.descriptors),
            resident: each(after.resident, before.resident),
            kernel: each(after.kernel, before.kernel) - ends,
        }
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} descriptors, {:.2} KiB of the daemon, {:.2} KiB of the kernel's objects",
            self.descriptors,
            self.resident / 1024.0,
            self.kernel / 1024.0
        )
    }
}
