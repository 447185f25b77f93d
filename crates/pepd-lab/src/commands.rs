//! The subcommands that people call, but for what runs the experiments.

use std::collections::btree_map::Entry;
use std::fs;
use std::io::{self, Write as _};

use anyhow::{Context as _, Result};

use crate::cli::{self, Output};
use crate::failure::Failure;
use crate::results::Results;
use crate::run::Chosen;
use crate::{paper, report, run};

/// `pepd-lab list`: names the experiments of every paper.
///
/// # Errors
/// When it cannot be written.
pub fn list() -> Result<()> {
    let mut out = io::stdout().lock();
    for paper in paper::all()? {
        writeln!(out, "{}: {}", paper.authors, paper.title)?;
        let measured = paper.experiments.iter();
        let measured = measured.map(|it| (&it.name, &it.source, &it.title, ""));
        let computed = paper.computed.iter();
        let computed = computed.map(|it| (&it.name, &it.source, &it.title, " (computed)"));
        for (name, source, title, how) in measured.chain(computed) {
            writeln!(out, "  {name:<24} {source:<34} {title}{how}")?;
        }
    }
    Ok(())
}

/// `pepd-lab run`: runs experiments, keeps what they gave and reports it, and what is computed.
///
/// # Errors
/// Those of [`run::run`], and when a file cannot be read or written.
pub fn run(args: &cli::Run) -> Result<()> {
    let Chosen {
        experiments,
        computed: mut names,
    } = run::select(&args.selection.names)?;
    let folder = &args.output.folder;
    let new = !folder.exists();
    // Now: after an hour it would be too late to find out that it cannot be made.
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let file = folder.join("results.json");
    let mut results = if file.exists() {
        Results::read(&file)?
    } else {
        Results::new()
    };
    let mut keep = |name: String, outcome| {
        if !names.contains(&name) {
            names.push(name.clone());
        }
        match results.experiments.entry(name) {
            Entry::Vacant(place) => drop(place.insert(outcome)),
            Entry::Occupied(mut before) => before.get_mut().update(outcome),
        }
        // Each at once: a later one may fail.
        results.write(&file)
    };
    let ran = match &experiments[..] {
        [] => Ok(()),
        some => run::run(args, some, &mut keep),
    };
    if new && ran.is_err() {
        // Unless something was measured before: then it is not empty, and this fails.
        let _ = fs::remove_dir(folder);
    }
    // Where one measurement has failed the others are worth a look.
    if !names.is_empty() {
        show(&names, &args.output, &results)?;
    } else if ran.is_ok() {
        let message = "nothing is left to measure: no variant's name contains what `--variant` says, or no place of \
                       the axis is one that `--at` says; without them all are run, and named";
        return Err(Failure::usage(message.to_owned()).into());
    }
    ran
}

/// `pepd-lab report`: reports what was run before.
///
/// # Errors
/// Where nothing was run, and when a file cannot be read or written.
pub fn report(args: &cli::Report) -> Result<()> {
    show(&args.names, &args.output, &stored(&args.output)?)
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
        for figure in &paper.computed {
            if names.is_empty() || names.contains(&figure.name) {
                writeln!(out, "{}", report::computed(figure))?;
            }
        }
    }
    let folder = output.folder.display();
    writeln!(out, "figures and report.html are in {folder}")?;
    Ok(())
}
