//! Runs experiments on the running kernel, value by value.

use std::fs;
use std::path::Path as FilePath;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::utsname::uname;
use pepd_testbed::link::Loss;

use crate::bulk::{Flows, PORT, wait_for};
use crate::cli::Selection;
use crate::keystrokes;
use crate::paper::{Experiment, Leg, Limit, Point, Printed, ProxyKind, Timing, Variant, Workload};
use crate::path::{HEADERS, MTU, Path};
use crate::proxy::Proxy;
use crate::results::{Metric, Outcome, PaperValue, Record, Sample, Setting, Trace};
use crate::sampler::Sampler;
use crate::stats::{fairness, quantile, real, real64};

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
        points = experiment
            .points
            .iter()
            .filter(|point| selection.at.contains(&point.x))
            .collect();
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
        traces: Vec::new(),
        left_out,
    };
    let total = points.len() * variants.len() * usize::try_from(timing.repeats)?;
    let mut done = 0;
    for point in &points {
        // Of the whole list, so that a selection of points meets the same losses as all of them.
        let place = experiment
            .points
            .iter()
            .position(|other| other.x == point.x);
        let index = place.unwrap_or_default();
        for repeat in 0..timing.repeats {
            // The same for all variants: they meet the same losses, as far as they send alike.
            let seed = 1000 * (u64::try_from(index)? + 1) + u64::from(repeat);
            for variant in &variants {
                done += 1;
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
                };
                let (records, trace) = case.run(order.pepd).with_context(|| {
                    format!("{name} at {}{unit}, {}, seed {seed}", point.x, variant.name)
                })?;
                for record in &records {
                    progress(&describe(record));
                }
                outcome.records.extend(records);
                outcome.traces.extend(trace.filter(|_| repeat == 0));
            }
        }
    }
    Ok(outcome)
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

/// Payload of a full packet, in bits.
const PACKET_BITS: f64 = 8.0 * 1448.0;
/// How much later outages are in each repeat.
const OUTAGE_SHIFT: Duration = Duration::from_millis(700);
/// How often a trace looks at the sockets.
const GLANCES: Duration = Duration::from_millis(50);

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
    fn run(&self, pepd: &FilePath) -> Result<(Vec<Record>, Option<Trace>)> {
        let mut legs = self.experiment.legs(self.point);
        // Where a sender is in its back-off when the link returns is chance: a repeat is another.
        for outage in &mut legs[1].outages {
            outage.start += OUTAGE_SHIFT * self.repeat;
        }
        let path = Path::open(&legs, self.seed)?;
        let mut proxy = Proxy::start(self.variant, self.point, &path.hb, pepd)?;
        let (values, samples) = match self.experiment.workload {
            Workload::Bulk { flows, packets } => (
                self.bulk(&path, self.point.flows.unwrap_or(flows), packets)?,
                None,
            ),
            Workload::Trace => self.trace(&path)?,
            Workload::Keystrokes { every, wait } => (self.keystrokes(&path, every, wait)?, None),
        };
        proxy.check(&path.hb)?;
        let [near, far] = path.report()?;
        let sent = far.a_to_b.sent.packets;
        let lost = far.a_to_b.lost.packets + far.a_to_b.cut.packets;
        let directions = [&near.a_to_b, &near.b_to_a, &far.a_to_b, &far.b_to_a];
        let lag = directions
            .map(|way| way.lag.p99.as_secs_f64())
            .into_iter()
            .fold(0.0, f64::max);
        let record = |(metric, value): (Metric, f64)| Record {
            x: self.point.x,
            variant: self.variant.name.clone(),
            repeat: self.repeat,
            seed: self.seed,
            metric,
            value,
            limit: self.limit(&legs, metric),
            paper: self.printed(metric),
            far_loss: if sent == 0 {
                0.0
            } else {
                real64(lost) / real64(sent)
            },
            link_lag: lag,
            host_requests: path.host_requests(),
            fell_behind: near.fell_behind() || far.fell_behind(),
        };
        let trace = samples.map(|samples| Trace {
            x: self.point.x,
            variant: self.variant.name.clone(),
            samples,
        });
        Ok((values.into_iter().map(record).collect(), trace))
    }

    fn bulk(&self, path: &Path, flows: usize, packets: bool) -> Result<Vec<(Metric, f64)>> {
        let Timing {
            warm_up, window, ..
        } = self.timing;
        let running = Flows::start(path, flows, &self.variant.sender)?;
        wait_for(running.epoch() + warm_up);
        path.restart()?;
        wait_for(running.epoch() + warm_up + window);
        let shares = running.stop().goodput(warm_up, window);
        let sum: f64 = shares.iter().sum();
        let mut values = vec![if packets {
            (Metric::Packets, sum / PACKET_BITS)
        } else {
            (Metric::Goodput, sum)
        }];
        if let Some(index) = fairness(&shares).filter(|_| flows > 1) {
            values.push((Metric::Fairness, index));
        }
        Ok(values)
    }

    fn keystrokes(
        &self,
        path: &Path,
        every: Duration,
        wait: Duration,
    ) -> Result<Vec<(Metric, f64)>> {
        let count = self.timing.window.as_nanos() / every.as_nanos();
        let trips = keystrokes::type_away(
            path,
            usize::try_from(count)?,
            every,
            wait,
            &self.variant.sender,
        )?;
        let quantile = |q| quantile(&trips, q).context("no keystroke came back");
        Ok(vec![
            (Metric::RoundTrip50, quantile(0.5)?),
            (Metric::RoundTrip99, quantile(0.99)?),
        ])
    }

    /// One flow, with what both legs' sockets are at.
    #[allow(
        clippy::type_complexity,
        reason = "the values, and what they come from"
    )]
    fn trace(&self, path: &Path) -> Result<(Vec<(Metric, f64)>, Option<Vec<Sample>>)> {
        let Timing {
            warm_up, window, ..
        } = self.timing;
        let running = Flows::start(path, 1, &self.variant.sender)?;
        let epoch = running.epoch();
        let sampler = |netns| Sampler::start(netns, PORT, epoch, GLANCES);
        let samplers = [sampler(&path.sender)?, sampler(&path.hb)?];
        wait_for(epoch + warm_up);
        path.restart()?;
        wait_for(epoch + warm_up + window);
        let [sender, hb] = samplers.map(Sampler::stop);
        let [sender, hb] = [sender?, hb?];
        let shares = running.stop().goodput(warm_up, window);
        // The paper's traces are of congestion avoidance too (section 19.2.2).
        let looks = sender
            .iter()
            .zip(&hb)
            .filter(|([_, sender], _)| sender.time >= warm_up);
        let samples = looks.map(|([_, sender], [from, to])| Sample {
            time: (sender.time - warm_up).as_secs_f64(),
            near_cwnd: f64::from(sender.cwnd),
            far_cwnd: f64::from(to.cwnd),
            buffer: f64::from(from.receive_queue + to.unsent) * 8.0 / PACKET_BITS,
        });
        let values = vec![(Metric::Packets, shares.iter().sum::<f64>() / PACKET_BITS)];
        Ok((values, Some(samples.collect())))
    }

    fn limit(&self, legs: &[Leg; 2], metric: Metric) -> Option<f64> {
        let payload = real(usize::from(MTU.bytes() - HEADERS));
        let share = payload / real(usize::from(MTU.bytes()));
        let rate = |leg: &Leg| real64(leg.rate.as_bits_per_second()) * (1.0 - loss(leg)) * share;
        let rates = legs.each_ref().map(rate);
        let rule = self.experiment.limit;
        let bits = match rule {
            Limit::Rate => rates[0].min(rates[1]),
            Limit::RenoUnderPoisson => {
                let bound = |leg: &Leg, rate: f64| rate.min(PACKET_BITS * reno_under_poisson(leg));
                bound(&legs[0], rates[0]).min(bound(&legs[1], rates[1]))
            }
            Limit::RateWithoutOutages => {
                let down = legs[1]
                    .outages
                    .iter()
                    .map(|outage| outage.length.as_secs_f64());
                let up = 1.0 - down.sum::<f64>() / self.timing.window.as_secs_f64();
                rates[0].min(rates[1] * up)
            }
        };
        match metric {
            Metric::Goodput => Some(bits),
            Metric::Packets => Some(bits / PACKET_BITS),
            Metric::RoundTrip50 | Metric::RoundTrip99 => {
                Some(legs.iter().map(|leg| leg.rtt.as_secs_f64()).sum())
            }
            Metric::Fairness => None,
        }
    }

    fn printed(&self, metric: Metric) -> Option<PaperValue> {
        let here = |printed: &&Printed| {
            printed.x == Some(self.point.x) && printed.variant.as_ref() == Some(&self.variant.name)
        };
        let printed = self.experiment.printed.iter().find(here)?;
        let fits = match metric {
            Metric::Goodput => printed.unit == "bit/s",
            Metric::Packets => printed.unit == "packets/s",
            Metric::RoundTrip50 | Metric::RoundTrip99 | Metric::Fairness => false,
        };
        fits.then(|| PaperValue {
            value: printed.value,
            source: printed.source.clone(),
        })
    }
}

/// Packets per second of Reno on `leg`; see [`Limit::RenoUnderPoisson`].
fn reno_under_poisson(leg: &Leg) -> f64 {
    match leg.loss {
        Loss::Poisson { per_second } => 2.0 / (per_second * leg.rtt.as_secs_f64().powi(2)),
        _ => f64::INFINITY,
    }
}

/// The mean share of packets that a leg loses.
fn loss(leg: &Leg) -> f64 {
    match leg.loss {
        Loss::Independent { probability } => probability,
        Loss::GilbertElliott {
            good_to_bad,
            bad_to_good,
            loss_in_good,
            loss_in_bad,
        } => {
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
        let lacking = wanted
            .into_iter()
            .flatten()
            .find(|name| !available.contains(name));
        if let Some(name) = lacking {
            left_out.push(format!(
                "{}: this kernel has no congestion control `{name}`",
                variant.name
            ));
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
    Command::new("haproxy")
        .arg("-v")
        .output()
        .is_ok_and(|output| output.status.success())
}
