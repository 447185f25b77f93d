//! Runs experiments on the running kernel, value by value.

mod begun;
mod case;
mod limit;
mod sampler;
mod variants;

use std::path::Path;

use anyhow::{Context as _, Result};
use nix::sys::utsname::uname;

use self::case::Case;
use self::variants::possible;
use crate::cli::Selection;
use crate::paper::{Experiment, Point, Timing, Variant};
use crate::results::{Outcome, Record, Setting};

/// The way in which experiments are run.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The daemon's binary.
    pub pepd: &'a Path,
    /// The measurements of an experiment that are made, and how long they take.
    pub selection: &'a Selection,
    /// Whether the clock is that of a guest which counts instructions.
    pub virtual_time: bool,
}

/// Counts the measurements of all experiments so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// The measurements begun.
    pub measured: usize,
    /// The measurements that failed.
    pub failed: usize,
}

/// Runs `experiment`. `progress` is told what comes next, and `keep` is given the result of each
/// measurement, to be merged by [`Outcome::update`].
///
/// A measurement that fails (the path cannot be made, a proxy does not start or ends, nothing was
/// split where a proxy should have) is named and counted in `tally`, and the rest goes on.
///
/// # Errors
/// When a measurement fails before one has succeeded: then the machine is not up to it. When
/// nothing of it can run here, and when `keep` fails.
pub fn experiment(
    experiment: &Experiment,
    options: Options<'_>,
    tally: &mut Tally,
    progress: &mut dyn FnMut(&str),
    keep: &mut dyn FnMut(Outcome) -> Result<()>,
) -> Result<()> {
    let selection = options.selection;
    let (timing, points) = plan(experiment, selection);
    let (variants, left_out) = variants(experiment, options)?;
    let setting = setting(options)?;
    let total = points.len() * variants.len() * usize::try_from(timing.repeats)?;
    let mut done = 0;
    for point in points {
        for repeat in 0..timing.repeats {
            let seed = seed(experiment, point, repeat)?;
            for variant in &variants {
                done += 1;
                tally.measured += 1;
                let case = Case {
                    experiment,
                    point,
                    variant,
                    timing,
                    repeat,
                    seed,
                    flows: selection.flows,
                };
                let name = &experiment.name;
                let place = format!("{}{}", point.x, experiment.axis.unit);
                progress(&format!(
                    "{name} {done}/{total}: {place}, {}, repeat {}",
                    variant.name,
                    repeat + 1
                ));
                let ran = case
                    .run(options.pepd, progress)
                    .with_context(|| format!("{name} at {place}, {}, seed {seed}", variant.name));
                let (records, trace) = match ran {
                    Err(error) if tally.measured > tally.failed + 1 => {
                        tally.failed += 1;
                        progress(&format!("    FAILED: {error:#}"));
                        continue;
                    }
                    ran => ran?,
                };
                let told = records.iter().map(describe);
                told.for_each(|line| progress(&line));
                // Each at once: hours of them would be lost with one that does not end.
                keep(Outcome {
                    setting: setting.clone(),
                    records,
                    traces: trace.into_iter().filter(|_| repeat == 0).collect(),
                    left_out: left_out.clone(),
                })?;
            }
        }
    }
    Ok(())
}

/// Returns where and how the measurements run.
fn setting(options: Options<'_>) -> Result<Setting> {
    Ok(Setting {
        kernel: uname()?.release().to_string_lossy().into_owned(),
        virtual_time: options.virtual_time,
        quick: options.selection.quick,
    })
}

/// Returns the timing and the points of `experiment` that `selection` asks for.
fn plan<'a>(experiment: &'a Experiment, selection: &Selection) -> (Timing, Vec<&'a Point>) {
    let (mut timing, mut points) = experiment.plan(selection.quick);
    timing.repeats = selection.repeats.unwrap_or(timing.repeats);
    timing.warm_up = selection.warm_up.unwrap_or(timing.warm_up);
    timing.window = selection.window.unwrap_or(timing.window);
    if !selection.at.is_empty() {
        points = experiment
            .points
            .iter()
            .filter(|point| selection.at.contains(&point.x))
            .collect();
    }
    (timing, points)
}

/// Returns the variants that are asked for and can run here, and why others cannot.
fn variants(experiment: &Experiment, options: Options<'_>) -> Result<(Vec<Variant>, Vec<String>)> {
    let (mut variants, left_out) = possible(experiment)?;
    let wanted = &options.selection.variant;
    if !wanted.is_empty() {
        variants.retain(|variant| wanted.iter().any(|text| variant.name.contains(text)));
    }
    Ok((variants, left_out))
}

/// Returns what the losses of one repeat at one point are drawn from. It is the same for all
/// variants: they meet the same losses, as far as they send alike.
fn seed(experiment: &Experiment, point: &Point, repeat: u32) -> Result<u64> {
    // Of the whole list, so that a selection of points meets the same losses as all of them.
    let place = experiment
        .points
        .iter()
        .position(|other| other.x == point.x);
    let index = place.filter(|_| !experiment.same_losses);
    let index = index.unwrap_or_default();
    Ok(1000 * (u64::try_from(index)? + 1) + u64::from(repeat))
}

/// Returns a value as it is told while the experiment goes on.
fn describe(record: &Record) -> String {
    let share = record
        .limit
        .map(|limit| format!(", {:.0} % of the limit", 100.0 * record.value / limit));
    let share = share.filter(|_| record.metric.more_is_better());
    let value = record.value / record.metric.scale();
    let late = if record.fell_behind {
        ", THE LINK FELL BEHIND"
    } else {
        ""
    };
    format!(
        "    {} {value:.3}{}{late}",
        record.metric.label(),
        share.unwrap_or_default()
    )
}
