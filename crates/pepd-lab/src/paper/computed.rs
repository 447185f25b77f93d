//! Figures that follow from formulas alone: nothing is measured.

use std::time::Duration;

use pepd_model::hold_acks::paper::{self, Choice, Estimator, Step};
use serde::Deserialize;

use super::units::duration;

/// A figure about the schedule by which ACKs are released while a link is gone (G. Bhutani, section V).
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Computed {
    /// The name on the command line.
    pub name: String,
    /// The figure of the paper that it repeats.
    pub source: String,
    /// The title: what is shown, in a line.
    pub title: String,
    /// The differences from the paper, and whatever else a reader must know.
    #[serde(default)]
    pub notes: Vec<String>,
    /// How many ACKs are held: N.
    pub acks: usize,
    /// For how long the link is gone: T.
    #[serde(deserialize_with = "duration")]
    pub outage: Duration,
    /// The sender's smoothed round trip at the beginning: μ₀.
    #[serde(deserialize_with = "duration")]
    pub mean: Duration,
    /// Its mean deviation: σ₀.
    #[serde(deserialize_with = "duration")]
    pub deviation: Duration,
    /// What is shown.
    pub shows: Shows,
}

/// What is shown of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shows {
    /// The timeout in the end, over how many ACKs wait as long as they can.
    FinalTimeout,
    /// The time between each ACK and the one before.
    Distances,
    /// The timeout after each ACK.
    Timeouts,
}

/// A line of a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What it is of.
    pub name: String,
    /// Its points, from the left to the right.
    pub points: Vec<(f64, f64)>,
}

impl Computed {
    /// Returns the title and the part of the paper that it repeats.
    #[must_use]
    pub fn caption(&self) -> String {
        format!("{} ({})", self.title, self.source)
    }

    /// Returns what the two axes show.
    #[must_use]
    pub fn axes(&self) -> [&'static str; 2] {
        match self.shows {
            Shows::FinalTimeout => [
                "ACKs that wait as long as they can",
                "timeout in the end, s",
            ],
            Shows::Distances => ["ACK", "time since the one before, s"],
            Shows::Timeouts => ["ACK", "timeout after it, s"],
        }
    }

    /// Computes its lines.
    #[must_use]
    pub fn curves(&self) -> Vec<Curve> {
        let start = Estimator {
            mean: self.mean.as_secs_f64(),
            deviation: self.deviation.as_secs_f64(),
        };
        let (acks, outage) = (self.acks, self.outage.as_secs_f64());
        let value: fn(&Step) -> f64 = match self.shows {
            Shows::FinalTimeout => return over_choices(&paper::choices(start, acks, outage)),
            Shows::Distances => |step| step.wait,
            Shows::Timeouts => |step| step.rto,
        };
        let found = [
            ("the paper's search", paper::printed(start, acks, outage)),
            ("no timeout", paper::best(start, acks, outage)),
        ];
        let curve = |(who, choice): (&str, Option<Choice>)| {
            let choice = choice?;
            let steps = paper::steps(start, acks, choice);
            let points = steps.iter().enumerate();
            Some(Curve {
                name: format!("{who}, n = {}", choice.waiting),
                points: points
                    .map(|(n, step)| (place(n + 1), value(step)))
                    .collect(),
            })
        };
        found.into_iter().filter_map(curve).collect()
    }
}

/// All of them, and those for which the sender waits.
fn over_choices(choices: &[Choice]) -> Vec<Curve> {
    let curve = |name: &str, wanted: fn(&&Choice) -> bool| Curve {
        name: name.to_owned(),
        points: choices
            .iter()
            .filter(wanted)
            .map(|choice| (place(choice.waiting), choice.final_rto))
            .collect(),
    };
    vec![
        curve("every n", |_| true),
        curve("no timeout", |choice| choice.is_feasible),
    ]
}

#[allow(clippy::cast_precision_loss, reason = "a few thousand at most")]
fn place(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::super::all;
    use super::*;

    fn figure(name: &str) -> Computed {
        let papers = all().unwrap();
        let mut computed = papers.into_iter().flat_map(|paper| paper.computed);
        computed.find(|figure| figure.name == name).unwrap()
    }

    #[test]
    fn the_search_that_is_printed_stops_too_early() {
        let curves = figure("bhutani-fig2").curves();
        let [every, kept] = &curves[..] else {
            panic!("{curves:?}");
        };
        let least = |curve: &Curve| {
            let points = curve.points.iter().copied();
            points
                .min_by(|left, right| left.1.total_cmp(&right.1))
                .unwrap()
        };
        assert_eq!(every.points[0].0, 0.0);
        assert_eq!(kept.points[0].0, 6.0);
        assert_eq!(least(kept).0, 9.0);
    }

    #[test]
    fn what_is_released_fills_the_outage() {
        for (name, seconds) in [("bhutani-fig5", 500.0), ("bhutani-fig7", 250.0)] {
            let curves = figure(name).curves();
            assert_eq!(curves.len(), 2, "{name}");
            for Curve { name, points } in curves {
                let sum: f64 = points.iter().map(|point| point.1).sum();
                assert_eq!(points.len(), 20);
                assert!((sum - seconds).abs() < 1e-6, "{name}: {sum}");
            }
        }
    }
}
