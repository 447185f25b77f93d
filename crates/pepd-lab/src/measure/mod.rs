//! Runs experiments on the running kernel, value by value.

mod case;
mod limit;
mod sampler;

use std::fs;
use std::path::Path as FilePath;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use nix::sys::utsname::uname;

use self::case::Case;
use crate::cli::Selection;
use crate::paper::{Experiment, Matrix, ProxyKind, Variant};
use crate::results::{Outcome, Record, Setting};

/// What to do with an experiment.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The daemon's binary.
    pub pepd: &'a FilePath,
    /// How much of it.
    pub selection: &'a Selection,
    /// Whether the clock counts instructions.
    pub virtual_time: bool,
}

/// How many measurements there were, of all experiments so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// All of them.
    pub measured: usize,
    /// Those that came to nothing.
    pub failed: usize,
}

/// Runs `experiment`. `progress` is told what comes next, and `keep` given what each measurement
/// came to, to be merged by [`Outcome::update`].
///
/// A measurement that fails (the path cannot be made, a proxy does not start or ends, nothing was
/// split where a proxy should have) is named and counted in `tally`, and the rest goes on.
///
/// # Errors
/// When a measurement fails before one has succeeded: then the machine is not up to it. When
/// nothing of it can run here, and when `keep` fails.
pub fn experiment(
    experiment: &Experiment,
    order: Order<'_>,
    tally: &mut Tally,
    progress: &mut dyn FnMut(&str),
    keep: &mut dyn FnMut(Outcome) -> Result<()>,
) -> Result<()> {
    let selection = order.selection;
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
    let (mut variants, left_out) = possible(experiment, order.pepd)?;
    if !selection.variant.is_empty() {
        let wanted = |name: &str| selection.variant.iter().any(|text| name.contains(text));
        variants.retain(|variant| wanted(&variant.name));
    }
    let setting = Setting {
        kernel: uname()?.release().to_string_lossy().into_owned(),
        virtual_time: order.virtual_time,
        quick: selection.quick,
    };
    let total = points.len() * variants.len() * usize::try_from(timing.repeats)?;
    let mut done = 0;
    for point in &points {
        // Of the whole list, so that a selection of points meets the same losses as all of them.
        let place = experiment
            .points
            .iter()
            .position(|other| other.x == point.x);
        let index = place.filter(|_| !experiment.same_losses);
        let index = index.unwrap_or_default();
        for repeat in 0..timing.repeats {
            // The same for all variants: they meet the same losses, as far as they send alike.
            let seed = 1000 * (u64::try_from(index)? + 1) + u64::from(repeat);
            for variant in &variants {
                done += 1;
                tally.measured += 1;
                let unit = &experiment.axis.unit;
                let name = &experiment.name;
                progress(&format!(
                    "{name} {done}/{total}: {}{unit}, {}, repeat {}",
                    point.x,
                    variant.name,
                    repeat + 1
                ));
                let case = Case {
                    experiment,
                    point,
                    variant,
                    timing,
                    repeat,
                    seed,
                    flows: selection.flows,
                };
                let ran = case.run(order.pepd, progress).with_context(|| {
                    format!("{name} at {}{unit}, {}, seed {seed}", point.x, variant.name)
                });
                let (records, trace) = match ran {
                    Err(error) if tally.measured > tally.failed + 1 => {
                        tally.failed += 1;
                        progress(&format!("    FAILED: {error:#}"));
                        continue;
                    }
                    ran => ran?,
                };
                for record in &records {
                    progress(&describe(record));
                }
                // Each at once: hours of them would be lost with the one that does not end.
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

/// The variants that this machine can run, and why not the others.
fn possible(experiment: &Experiment, pepd: &Path) -> Result<(Vec<Variant>, Vec<String>)> {
    let mut available = congestion_controls()?;
    let wanted = match experiment.matrix {
        Some(Matrix {}) => Matrix::variants(&available),
        None => experiment.variants.clone(),
    };
    // After the matrix, which is of the kernel's: pepd's own one takes a rate.
    if has_fixed_rate(pepd) {
        available.push("fixed-rate".to_owned());
    }
    let (mut variants, mut left_out) = (Vec::new(), Vec::new());
    for variant in wanted {
        let names = [Some(&variant.sender), variant.forward.as_ref()];
        let lacking = names
            .into_iter()
            .flatten()
            .find(|name| !available.contains(name));
        if let Some(name) = lacking {
            left_out.push(format!(
                "{}: neither this kernel nor this pepd has a congestion control `{name}`",
                variant.name
            ));
        } else if variant.proxy == ProxyKind::Haproxy && !has_haproxy() {
            left_out.push(format!("{}: haproxy is not installed", variant.name));
        } else {
            variants.push(variant);
        }
    }
    if variants.is_empty() {
        bail!("nothing of it can run here: {}", left_out.join("; "));
    }
    Ok((variants, left_out))
}

fn congestion_controls() -> Result<Vec<String>> {
    let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let text = fs::read_to_string(path).with_context(|| path.to_owned())?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// Whether the daemon was built with its own congestion control.
fn has_fixed_rate(pepd: &Path) -> bool {
    let output = Command::new(pepd).arg("--version").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("fixed-rate"))
}

fn has_haproxy() -> bool {
    Command::new("haproxy")
        .arg("-v")
        .output()
        .is_ok_and(|output| output.status.success())
}
