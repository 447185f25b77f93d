//! One experiment of a paper: its parameters and the numbers that were printed.

use std::time::Duration;

use anyhow::{Result, ensure};
use pepd_testbed::link::{Loss, Outage, Rate};
use serde::Deserialize;

use super::leg::Leg;
use super::matrix::Matrix;
use super::units::{duration, size};
use super::variant::{ProxyKind, Variant};
use super::workload::Workload;

/// One figure or table of a paper, as it is repeated.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Experiment {
    /// The name on the command line.
    pub name: String,
    /// The figure, table or section of the paper that it repeats.
    pub source: String,
    /// The title: what is shown, in a line.
    pub title: String,
    /// The differences from the paper, and whatever else a reader must know.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The leg next to the sender.
    pub near: Leg,
    /// The leg next to the receiver.
    pub far: Leg,
    /// How many helper boxes there are.
    #[serde(default)]
    pub boxes: Boxes,
    /// Whether hosts and boxes do without window scaling, as in 2006.
    #[serde(default)]
    pub no_window_scaling: bool,
    /// The hosts' receive windows, in bytes; the kernel's own without it.
    #[serde(default, deserialize_with = "size")]
    pub host_window: Option<u64>,
    /// The workload of the hosts.
    pub workload: Workload,
    /// The limit that the best possible result follows from.
    #[serde(default)]
    pub limit: Limit,
    /// The parameter that differs from point to point.
    pub axis: Axis,
    /// The settings it is run at.
    #[serde(rename = "point")]
    pub points: Vec<Point>,
    /// The variants between the hosts.
    #[serde(rename = "variant", default)]
    pub variants: Vec<Variant>,
    /// Instead of variants: every congestion control, on each leg.
    pub matrix: Option<Matrix>,
    /// Whether what the far leg's queue does is told of bulk flows, and how soon they have the limit.
    #[serde(default)]
    pub queue: bool,
    /// Whether all points meet the same losses, not only all variants at a point. That is fair
    /// where losses are a process in time, and shows a point's effect with fewer repeats.
    #[serde(default)]
    pub same_losses: bool,
    /// The timing of its measurements.
    pub timing: Timing,
    /// The timing with `--quick`.
    pub quick: Quick,
    /// The numbers that the paper printed.
    #[serde(default)]
    pub printed: Vec<Printed>,
}

/// The places where connections can be split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Boxes {
    /// Between the legs.
    #[default]
    One,
    /// There are boxes at the outer ends of the legs, too, joined by tunnels.
    Three,
}

/// The limit that the best possible result follows from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The slower leg's rate × (1 − p) × the payload's share of a packet.
    #[default]
    Rate,
    /// The limit is [`Limit::Rate`], but no more than Reno can under losses of a rate of their own:
    /// 2/(λR²) packets per second on each leg (additive increase 1/R² per second, halved at each
    /// event of a Poisson process with λ events per second; Baccelli et al., section 19.4.2).
    RenoUnderPoisson,
    /// The limit is [`Limit::Rate`], but no more than a window of 65535 bytes per round trip on
    /// each leg.
    RateAndWindow,
    /// The limit is [`Limit::Rate`], and each leg's for the time that it is up.
    RateWithoutOutages,
}

/// The parameter that differs from point to point.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Axis {
    /// The name of the parameter.
    pub label: String,
    /// Its unit; empty if it has none.
    #[serde(default)]
    pub unit: String,
    /// Whether it is drawn logarithmically.
    #[serde(default)]
    pub log: bool,
    /// Whether the result is drawn logarithmically.
    #[serde(default)]
    pub log_result: bool,
}

/// One point on the axis: a setting at which the experiment is run.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Point {
    /// The place on the axis.
    pub x: f64,
    /// Replaces the far leg.
    pub far: Option<Leg>,
    /// What drops behind the far leg whatever comes at more than its rate.
    pub policer: Option<Policer>,
    /// The congestion control of a connection of somebody else's over the far leg, which is not split.
    pub foreign: Option<String>,
    /// Replaces the far leg's losses: independent, with this probability.
    pub far_loss: Option<f64>,
    /// Replaces the workload's number of flows, or how many run beside web pages and videos.
    pub flows: Option<usize>,
    /// The proxy's buffer, in packets of the MTU: what the near leg's receiver holds, and what
    /// may wait unsent on the far leg.
    pub buffer: Option<u32>,
    /// Replaces the far leg's outages.
    pub outages: Option<Vec<Outage>>,
    /// Replaces the hosts' receive windows, in bytes.
    #[serde(default, deserialize_with = "size")]
    pub host_window: Option<u64>,
    /// What the point is called, if not by its number.
    pub name: Option<String>,
}

/// What drops whatever comes at more than a rate, at once: there is no queue.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Policer {
    /// The rate.
    pub rate: Rate,
    /// The bytes that it lets through at once.
    pub burst: u64,
}

/// The timing of an experiment's measurements.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Timing {
    /// The time that the flows run before the measurement.
    #[serde(deserialize_with = "duration")]
    pub warm_up: Duration,
    /// The time that the measurement takes.
    #[serde(deserialize_with = "duration")]
    pub window: Duration,
    /// The number of times that it is repeated, each time with other losses.
    pub repeats: u32,
}

/// The `--quick` form.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Quick {
    /// The timing of its measurements.
    pub timing: Timing,
    /// The points that are measured, by their `x`.
    pub points: Vec<f64>,
}

/// A number that the paper printed.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Printed {
    /// What the number says.
    pub what: String,
    /// The number.
    pub value: f64,
    /// The unit of the number.
    pub unit: String,
    /// The place in the paper.
    pub source: String,
    /// The point that it belongs to; without it, to the whole experiment.
    pub x: Option<f64>,
    /// The variant that it is set beside; without it, every one.
    pub variant: Option<String>,
    /// The variant that it is relative to, for a ratio of two.
    pub over: Option<String>,
}

impl Axis {
    /// Returns the label and, after a comma, the unit.
    #[must_use]
    pub fn with_unit(&self) -> String {
        if self.unit.is_empty() {
            self.label.clone()
        } else {
            format!("{}, {}", self.label, self.unit)
        }
    }
}

impl Experiment {
    /// Returns the title and the part of the paper that it repeats.
    #[must_use]
    pub fn caption(&self) -> String {
        format!("{} ({})", self.title, self.source)
    }

    /// Returns the legs at `point`.
    #[must_use]
    pub fn legs(&self, point: &Point) -> [Leg; 2] {
        let far = point.far.as_ref().unwrap_or(&self.far);
        let [near, mut far] = [self.near.clone(), far.clone()];
        if let Some(probability) = point.far_loss {
            far.loss = Loss::independent(probability);
        }
        if let Some(outages) = &point.outages {
            far.outages.clone_from(outages);
        }
        [near, far]
    }

    /// Returns timing and points, of the quick form or the whole.
    #[must_use]
    pub fn plan(&self, quick: bool) -> (Timing, Vec<&Point>) {
        if quick {
            let points = self.points.iter();
            let points = points.filter(|point| self.quick.points.contains(&point.x));
            (self.quick.timing, points.collect())
        } else {
            (self.timing, self.points.iter().collect())
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        ensure!(!self.source.is_empty(), "no source");
        ensure!(!self.points.is_empty(), "no point");
        ensure!(
            self.variants.is_empty() == self.matrix.is_some(),
            "either variants or a matrix"
        );
        for x in &self.quick.points {
            ensure!(
                self.points.iter().any(|point| point.x == *x),
                "quick: no point {x}"
            );
        }
        for printed in &self.printed {
            ensure!(
                !printed.source.is_empty(),
                "`{}` has no source",
                printed.what
            );
            let known = |name: &String| self.variants.iter().any(|v| v.name == *name);
            ensure!(
                printed.variant.as_ref().is_none_or(known),
                "`{}` is about an unknown variant",
                printed.what
            );
            let there = |x: f64| self.points.iter().any(|point| point.x == x);
            ensure!(
                printed.x.is_none_or(there),
                "`{}` is about an unknown point",
                printed.what
            );
        }
        for variant in &self.variants {
            let can_be_told = variant.proxy == ProxyKind::Pepd && self.boxes == Boxes::One;
            ensure!(
                can_be_told || !variant.told,
                "`{}`: only pepd is told of outages, and only where it is one box",
                variant.name
            );
            ensure!(
                variant.told || variant.hold_acks.is_none(),
                "`{}`: ACKs are held only by who is told of outages",
                variant.name
            );
        }
        for point in &self.points {
            for leg in self.legs(point) {
                leg.forward().check()?;
            }
        }
        Ok(())
    }
}
