//! `pepd-lab`: the papers' experiments, repeated with pepd, beside the numbers they printed.

#![forbid(unsafe_code)]

mod cli;
mod failure;
mod measure;
mod paper;
mod path;
mod report;
mod results;
mod run;
mod stats;
mod traffic;

use std::collections::btree_map::Entry;
use std::fs;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use pepd_testbed::vm;

use cli::{Cli, Command, Output};
use failure::Failure;
use results::Results;

/// EX_SOFTWARE.
const INTERNAL: u8 = 70;

fn main() -> ExitCode {
    match dispatch(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read it has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pepd-lab: {error:#}");
            let unable = error.downcast_ref().map(vm::Error::exit_code);
            let failed = error.downcast_ref().map(|failure: &Failure| failure.status);
            ExitCode::from(unable.or(failed).unwrap_or(INTERNAL))
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error: Option<&io::Error> = error.downcast_ref();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn dispatch(command: &Command) -> Result<()> {
    match command {
        Command::List => list(),
        Command::Run(args) => run_and_report(args),
        Command::Report(args) => show(&args.names, &args.output, &stored(&args.output)?),
        Command::Measure(args) => run::measure(args),
    }
}

fn list() -> Result<()> {
    let mut out = io::stdout().lock();
    for paper in paper::all()? {
        writeln!(out, "{}: {}", paper.authors, paper.title)?;
        for experiment in &paper.experiments {
            writeln!(
                out,
                "  {:<24} {:<34} {}",
                experiment.name, experiment.source, experiment.title
            )?;
        }
    }
    Ok(())
}

fn run_and_report(args: &cli::Run) -> Result<()> {
    let folder = &args.output.folder;
    let new = !folder.exists();
    // Now: to find out after an hour that it cannot be made would be late.
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let file = folder.join("results.json");
    let mut results = if file.exists() {
        Results::read(&file)?
    } else {
        Results::new()
    };
    let mut names = Vec::new();
    let ran = run::run(args, &mut |name, outcome| {
        if !names.contains(&name) {
            names.push(name.clone());
        }
        match results.experiments.entry(name) {
            Entry::Vacant(place) => drop(place.insert(outcome)),
            Entry::Occupied(mut before) => before.get_mut().update(outcome),
        }
        // Each at once: a later one may fail.
        results.write(&file)
    });
    if new && ran.is_err() {
        // Unless something was measured before: then it is not empty, and this fails.
        let _ = fs::remove_dir(folder);
    }
    // Where one measurement has failed the others are worth a look.
    if !names.is_empty() {
        show(&names, &args.output, &results)?;
    }
    ran
}

fn stored(output: &Output) -> Result<Results> {
    let file = output.folder.join("results.json");
    if !file.exists() {
        let message = format!("no {}: `pepd-lab run` makes it", file.display());
        return Err(Failure::usage(message).into());
    }
    Results::read(&file)
}

fn show(names: &[String], output: &Output, results: &Results) -> Result<()> {
    let papers = paper::all()?;
    report::write(&papers, results, &output.folder)?;
    if let Some(file) = &output.json {
        results.write(file)?;
    }
    let mut out = io::stdout().lock();
    for paper in &papers {
        for experiment in &paper.experiments {
            let wanted = names.is_empty() || names.contains(&experiment.name);
            if let Some(outcome) = results.experiments.get(&experiment.name).filter(|_| wanted) {
                writeln!(out, "{}", report::table(experiment, outcome))?;
            }
        }
    }
    let folder = output.folder.display();
    writeln!(out, "figures and report.html are in {folder}")?;
    Ok(())
}
