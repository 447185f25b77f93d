//! The papers' experiments: their parameters and the numbers they printed, one file per paper.

mod leg;
mod matrix;
mod workload;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::link::{Loss, Outage};
use serde::{Deserialize, Deserializer, de::Error as _};

pub use leg::Leg;
pub use matrix::Matrix;
pub use workload::{Browsing, Watching, Workload};

/// The files, with the names that messages call them by.
const FILES: [(&str, &str); 5] = [
    (
        "jain-ott-2006.toml",
        include_str!("../data/jain-ott-2006.toml"),
    ),
    (
        "baccelli-2009.toml",
        include_str!("../data/baccelli-2009.toml"),
    ),
    ("farkas-2012.toml", include_str!("../data/farkas-2012.toml")),
    ("joshi.toml", include_str!("../data/joshi.toml")),
    ("bhutani.toml", include_str!("../data/bhutani.toml")),
];

/// A paper and what is repeated of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Paper {
    /// Who wrote it.
    pub authors: String,
    /// What it is called.
    pub title: String,
    /// When it came out, where it says so.
    pub year: Option<u16>,
    /// What is repeated of it.
    #[serde(rename = "experiment")]
    pub experiments: Vec<Experiment>,
}

/// One figure or table.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Experiment {
    /// What the command line calls it.
    pub name: String,
    /// Which figure, table or section of the paper it repeats.
    pub source: String,
    /// What is shown, in a line.
    pub title: String,
    /// How this differs from the paper, and whatever else a reader must know.
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
    /// What the hosts do.
    pub workload: Workload,
    /// What the best possible result follows from.
    #[serde(default)]
    pub limit: Limit,
    /// What differs from point to point.
    pub axis: Axis,
    /// The settings it is run at.
    #[serde(rename = "point")]
    pub points: Vec<Point>,
    /// What is between the hosts.
    #[serde(rename = "variant", default)]
    pub variants: Vec<Variant>,
    /// Instead of variants: every congestion control, on each leg.
    pub matrix: Option<Matrix>,
    /// Whether all points meet the same losses, not only all variants at a point. That is fair
    /// where losses are a process in time, and shows a point's effect with fewer repeats.
    #[serde(default)]
    pub same_losses: bool,
    /// How long and how often.
    pub timing: Timing,
    /// The same for a first look.
    pub quick: Quick,
    /// What the paper printed.
    #[serde(default)]
    pub printed: Vec<Printed>,
}

/// Where connections can be split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Boxes {
    /// Between the legs.
    #[default]
    One,
    /// At the outer ends of the legs, too, joined by tunnels.
    Three,
}

/// What the best possible result follows from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The slower leg's rate × (1 − p) × the payload's share of a packet.
    #[default]
    Rate,
    /// As [`Limit::Rate`], but no more than Reno can under losses of a rate of their own: 2/(λR²)
    /// packets per second on each leg (additive increase 1/R² per second, halved at each event
    /// of a Poisson process with λ events per second; Baccelli et al., section 19.4.2).
    RenoUnderPoisson,
    /// As [`Limit::Rate`], but no more than a window of 65535 bytes per round trip on each leg.
    RateAndWindow,
    /// As [`Limit::Rate`], for the time that the link is up.
    RateWithoutOutages,
}

/// What differs from point to point.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Axis {
    /// What it is.
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

/// One setting.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Point {
    /// Where it is on the axis.
    pub x: f64,
    /// Replaces the far leg's losses: independent, with this probability.
    pub far_loss: Option<f64>,
    /// Replaces the workload's number of flows, or how many run beside web pages and videos.
    pub flows: Option<usize>,
    /// The proxy's buffer, in packets of the MTU: what the near leg's receiver holds, and what
    /// may wait unsent on the far leg.
    pub buffer: Option<u32>,
    /// Replaces the far leg's outages.
    pub outages: Option<Vec<Outage>>,
    /// What the point is called, if not by its number.
    pub name: Option<String>,
}

/// What is between the hosts, and how they send.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Variant {
    /// What reports call it.
    pub name: String,
    /// What splits the connections.
    #[serde(default)]
    pub proxy: ProxyKind,
    /// The sending host's congestion control.
    pub sender: String,
    /// The proxy's, towards the receiver; the sender's if it is not given.
    pub forward: Option<String>,
    /// Whether pepd's legs retransmit at a steady pace (its key `thin`).
    #[serde(default)]
    pub thin: bool,
    /// How many segments pepd's far leg begins with: the route's `initcwnd`.
    pub initial_window: Option<u32>,
    /// What the near leg may have on its way beside the point's `buffer`, in packets of the MTU.
    #[serde(default)]
    pub allowance: u32,
}

/// What splits the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyKind {
    /// Nothing: the box in the middle routes.
    #[default]
    None,
    /// pepd.
    Pepd,
    /// HAProxy, transparent.
    Haproxy,
}

/// How long and how often.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Timing {
    /// How long the flows run before the measurement.
    #[serde(deserialize_with = "span")]
    pub warm_up: Duration,
    /// How long the measurement takes.
    #[serde(deserialize_with = "span")]
    pub window: Duration,
    /// How often it is repeated, each time with other losses.
    pub repeats: u32,
}

/// The `--quick` form.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Quick {
    /// How long and how often.
    pub timing: Timing,
    /// At which of the points, by their `x`.
    pub points: Vec<f64>,
}

/// A number that the paper printed.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Printed {
    /// What it says.
    pub what: String,
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// Where in the paper it stands.
    pub source: String,
    /// The point that it belongs to; without it, to the whole experiment.
    pub x: Option<f64>,
    /// The variant that it is set beside; without it, every one.
    pub variant: Option<String>,
    /// For a ratio of two variants, the one that it is relative to.
    pub over: Option<String>,
}

impl Experiment {
    /// The legs at `point`.
    #[must_use]
    pub fn legs(&self, point: &Point) -> [Leg; 2] {
        let [near, mut far] = [self.near.clone(), self.far.clone()];
        if let Some(probability) = point.far_loss {
            far.loss = Loss::independent(probability);
        }
        if let Some(outages) = &point.outages {
            far.outages.clone_from(outages);
        }
        [near, far]
    }

    /// Timing and points, of the quick form or the whole.
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

    fn check(&self) -> Result<()> {
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
        for point in &self.points {
            for leg in self.legs(point) {
                leg.forward().check()?;
            }
        }
        Ok(())
    }
}

/// All papers.
///
/// # Errors
/// A mistake in a file: which, where and what. A test makes sure that there is none.
pub fn all() -> Result<Vec<Paper>> {
    FILES
        .iter()
        .map(|(name, text)| parse(text).with_context(|| (*name).to_owned()))
        .collect()
}

fn parse(text: &str) -> Result<Paper> {
    let paper: Paper = toml::from_str(text)?;
    for experiment in &paper.experiments {
        experiment
            .check()
            .with_context(|| experiment.name.clone())?;
    }
    Ok(paper)
}

/// A time as people write it: `200ms`.
pub(crate) fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text).map_err(D::Error::custom)
}

/// A size as people write it: `64KiB`.
fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let size: bytesize::ByteSize = text.parse().map_err(D::Error::custom)?;
    Ok(Some(size.as_u64()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_file_is_right_and_every_number_has_a_source() {
        // `all` checks what the types cannot.
        let papers = all().unwrap();
        let names: Vec<_> = papers.iter().flat_map(|paper| &paper.experiments).collect();
        let unique: BTreeSet<_> = names.iter().map(|experiment| &experiment.name).collect();
        assert_eq!(unique.len(), names.len(), "{unique:?}");
    }

    #[test]
    fn an_unknown_key_is_refused() {
        for (_, text) in FILES {
            let wrong = text.replacen("title =", "titel = \"x\"\ntitle =", 1);
            assert!(parse(&wrong).unwrap_err().to_string().contains("titel"));
            let wrong = text.replacen("rtt =", "rtd = \"1s\"\nrtt =", 1);
            assert!(toml::from_str::<Paper>(&wrong).is_err());
        }
    }

    #[test]
    fn a_number_without_a_source_is_refused() {
        for (name, text) in FILES {
            let mut lines: Vec<&str> = text.lines().collect();
            let Some(printed) = lines
                .iter()
                .position(|line| line.contains("experiment.printed"))
            else {
                continue;
            };
            let source = (printed..lines.len()).find(|&at| lines[at].starts_with("source"));
            lines.remove(source.unwrap());
            assert!(parse(&lines.join("\n")).is_err(), "{name}");
        }
    }
}
