//! Runs experiments on the running kernel, value by value.

use std::fs;
use std::path::Path as FilePath;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::utsname::uname;

use crate::cli::Selection;
use crate::bulk::{Flows, wait_for};
use crate::paper::{Experiment, Leg, Limit, Point, Printed, ProxyKind, Timing, Variant, Workload};
use crate::path::{HEADERS, MTU, Path};
use crate::proxy::Proxy;
use crate::results::{Metric, Outcome, PaperValue, Record, Setting};
use crate::stats::{fairness, real, real64};

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

/// Runs `experiment`. `progress` is told what comes next.
///
/// # Errors
/// When the path cannot be made, a proxy does not start, or nothing was split where a proxy
/// should have.
pub fn experiment(
    experiment: &Experiment,
    order: Order<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<Outcome> {
    let selection = order.selection;
    let (mut timing, mut points) = experiment.plan(selection.quick);
    timing.repeats = selection.repeats.unwrap_or(timing.repeats);
    if !selection.at.is_empty() {
        points = experiment.points.iter().filter(|point| selection.at.contains(&point.x)).collect();
    }
    let (mut variants, left_out) = possible(experiment)?;
    if let Some(text) = &selection.variant {
        variants.retain(|variant| variant.name.contains(text));
    }
    let mut outcome = Outcome {
        setting: Setting {
            kernel: uname()?.release().to_string_lossy().into_owned(),
            virtual_time: order.virtual_time,
            quick: selection.quick,
        },
        records: Vec::new(),
        left_out,
    };
    let total = points.len() * variants.len() * usize::try_from(timing.repeats)?;
    let mut done = 0;
    for (index, point) in points.iter().enumerate() {
        for repeat in 0..timing.repeats {
            // The same for all variants: they meet the same losses, as far as they send alike.
            let seed = 1000 * (u64::try_from(index)? + 1) + u64::from(repeat);
            for variant in &variants {
                done += 1;
                let unit = &experiment.axis.unit;
                let name = &experiment.name;
                progress(&format!(
                    "{name} {done}/{total}: {}{unit}, {}, repeat {}",
                    point.x, variant.name, repeat + 1
                ));
                let case = Case { experiment, point, variant, timing, repeat, seed };
                let records = case.run(order.pepd).with_context(|| {
                    format!("{name} at {}{unit}, {}, seed {seed}", point.x, variant.name)
                })?;
                for record in &records {
                    progress(&describe(record));
                }
                outcome.records.extend(records);
            }
        }
    }
    Ok(outcome)
}

fn describe(record: &Record) -> String {
    let share = record.limit.map(|limit| format!(", {:.0} % of the limit", 100.0 * record.value / limit));
    let value = record.value / record.metric.scale();
    let late = if record.fell_behind { ", THE LINK FELL BEHIND" } else { "" };
    format!("    {} {value:.3}{}{late}", record.metric.label(), share.unwrap_or_default())
}

/// One repeat of one variant at one point.
struct Case<'a> {
    experiment: &'a Experiment,
    point: &'a Point,
    variant: &'a Variant,
    timing: Timing,
    repeat: u32,
    seed: u64,
}

impl Case<'_> {
    fn run(&self, pepd: &FilePath) -> Result<Vec<Record>> {
        let legs = self.experiment.legs(self.point);
        let path = Path::open(&legs, self.seed)?;
        let proxy = Proxy::start(self.variant, &path.hb, pepd)?;
        let values = match self.experiment.workload {
            Workload::Bulk { flows } => self.bulk(&path, flows)?,
        };
        let splits = self.variant.proxy != ProxyKind::None;
        ensure!(
            proxy.has_split(&path.hb)? == splits,
            "connections were {}split", if splits { "not " } else { "" }
        );
        let [near, far] = path.report()?;
        let sent = far.a_to_b.sent.packets;
        let lost = far.a_to_b.lost.packets + far.a_to_b.cut.packets;
        let directions = [&near.a_to_b, &near.b_to_a, &far.a_to_b, &far.b_to_a];
        let lag = directions.map(|way| way.lag.p99.as_secs_f64()).into_iter().fold(0.0, f64::max);
        let record = |(metric, value): (Metric, f64)| Record {
            x: self.point.x,
            variant: self.variant.name.clone(),
            repeat: self.repeat,
            seed: self.seed,
            metric,
            value,
            limit: self.limit(&legs, metric),
            paper: self.printed(metric),
            far_loss: if sent == 0 { 0.0 } else { real64(lost) / real64(sent) },
            link_lag: lag,
            fell_behind: near.fell_behind() || far.fell_behind(),
        };
        Ok(values.into_iter().map(record).collect())
    }

    fn bulk(&self, path: &Path, flows: usize) -> Result<Vec<(Metric, f64)>> {
        let Timing { warm_up, window, .. } = self.timing;
        let running = Flows::start(path, flows, &self.variant.sender)?;
        wait_for(running.epoch() + warm_up);
        path.restart()?;
        wait_for(running.epoch() + warm_up + window);
        let shares = running.stop().goodput(warm_up, window);
        let mut values = vec![(Metric::Goodput, shares.iter().sum())];
        if let Some(index) = fairness(&shares).filter(|_| flows > 1) {
            values.push((Metric::Fairness, index));
        }
        Ok(values)
    }

    fn limit(&self, legs: &[Leg; 2], metric: Metric) -> Option<f64> {
        let share = real(usize::from(MTU.bytes() - HEADERS)) / real(usize::from(MTU.bytes()));
        let rate = |leg: &Leg| real64(leg.rate.as_bits_per_second()) * (1.0 - loss(leg)) * share;
        match (self.experiment.limit, metric) {
            (Limit::Rate, Metric::Goodput) => Some(rate(&legs[0]).min(rate(&legs[1]))),
            _ => None,
        }
    }

    fn printed(&self, metric: Metric) -> Option<PaperValue> {
        let here = |printed: &&Printed| {
            printed.x == Some(self.point.x) && printed.variant.as_ref() == Some(&self.variant.name)
        };
        let printed = self.experiment.printed.iter().find(here)?;
        (metric == Metric::Goodput).then(|| PaperValue {
            value: printed.value,
            source: printed.source.clone(),
        })
    }
}

/// The mean share of packets that a leg loses.
fn loss(leg: &Leg) -> f64 {
    use pepd_testbed::link::Loss;
    match leg.loss {
        Loss::Independent { probability } => probability,
        Loss::GilbertElliott { good_to_bad, bad_to_good, loss_in_good, loss_in_bad } => {
            let bad = good_to_bad / (good_to_bad + bad_to_good);
            bad * loss_in_bad + (1.0 - bad) * loss_in_good
        }
        // A few per second are no part of the rate.
        Loss::None | Loss::Poisson { .. } => 0.0,
    }
}

/// The variants that this machine can run, and why not the others.
fn possible(experiment: &Experiment) -> Result<(Vec<Variant>, Vec<String>)> {
    let available = congestion_controls()?;
    let (mut variants, mut left_out) = (Vec::new(), Vec::new());
    for variant in &experiment.variants {
        let wanted = [Some(&variant.sender), variant.forward.as_ref()];
        let lacking = wanted.into_iter().flatten().find(|name| !available.contains(name));
        if let Some(name) = lacking {
            left_out.push(format!("{}: this kernel has no congestion control `{name}`", variant.name));
        } else if variant.proxy == ProxyKind::Haproxy && !has_haproxy() {
            left_out.push(format!("{}: haproxy is not installed", variant.name));
        } else {
            variants.push(variant.clone());
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

fn has_haproxy() -> bool {
    Command::new("haproxy").arg("-v").output().is_ok_and(|output| output.status.success())
}
