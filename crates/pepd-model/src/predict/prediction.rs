//! What is to be expected.

use super::path::Path;
use crate::fluid::{Chain, Leg, Record, Shares, tail};
use crate::law::{Alone, Confidence};

/// How much is computed for an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// The losses of the leg that has most: the error of a mean falls with the root of them.
    pub losses: f64,
    /// Where the random numbers come from.
    pub seed: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            losses: 20_000.0,
            seed: 20_090_101,
        }
    }
}

/// What is to be expected of a path.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// What arrives, packets a second.
    pub throughput: f64,
    /// What would with infinite buffers, packets a second: what the slowest leg carries alone. With a cap that is
    /// less than the smaller of law and cap: half the time a window is below its mean.
    pub limit: f64,
    /// What would without a box, and what that is bounded by.
    pub unsplit: Alone,
    /// Each leg by itself.
    pub legs: Vec<Alone>,
    /// The phases of each box's buffer, as shares of the time.
    pub phases: Vec<Shares>,
    /// The first box's queue, packets.
    pub queue: Option<Quantiles>,
    /// How long what arrives was under way and waited at the first box, seconds (eq. 19.16).
    pub delay: Option<Quantiles>,
    /// What that box's buffer has left, packets: the antibuffer, of a finite one.
    pub antibuffer: Option<Quantiles>,
    /// What the first leg carries alone over what the second does: ρ of Lemma 19.7, of the square of which the
    /// paper's is with losses of packets. Without backpressure the queue would grow for ever from 1 on.
    pub rho: Option<f64>,
    /// Which of the paper's cases it is.
    pub class: Option<Class>,
    /// Hill's estimate of the queue's tail, from its largest fiftieth.
    pub hill: Option<f64>,
    /// The R statistic of the queue's second moment.
    pub largest_share: Option<f64>,
    /// How far all that is to be trusted: no further than the law of any leg, and of the path without a box.
    pub confidence: Confidence,
}

/// Which leg is the slower one (Baccelli et al., 19.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Slow sender, fast forwarder.
    SlowFast,
    /// Fast sender, slow forwarder.
    FastSlow,
    /// Neither is more than half as fast again as the other.
    Symmetric,
}

impl Class {
    /// Its name in the paper.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SlowFast => "SF",
            Self::FastSlow => "FS",
            Self::Symmetric => "symmetric",
        }
    }
}

/// What something is below for a share of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantiles {
    /// The mean.
    pub mean: f64,
    /// Half of the time.
    pub median: f64,
    /// 95 % of the time.
    pub p95: f64,
    /// 99 % of the time.
    pub p99: f64,
}

impl Quantiles {
    /// The same of what is so much of it, and more.
    fn mapped(self, to: impl Fn(f64) -> f64) -> Self {
        Self {
            mean: to(self.mean),
            median: to(self.median),
            p95: to(self.p95),
            p99: to(self.p99),
        }
    }
}

impl Path {
    /// Computes what is to be expected; none where some leg is bounded by nothing.
    #[must_use]
    pub fn predict(&self, effort: Effort) -> Option<Prediction> {
        let legs: Vec<_> = self.windowed().iter().map(crate::law::Leg::alone).collect();
        let whole = self.joined()?;
        if legs.iter().any(|leg| !leg.throughput.is_finite()) {
            return None;
        }
        let (record, limit) = self.run(effort, true);
        let throughput = limit.0;
        // A buffer limits what is under way, too: without it the legs may be faster.
        let unlimited = Path {
            buffer: f64::INFINITY,
            ..self.clone()
        };
        let endless = unlimited
            .legs
            .iter()
            .any(|leg| !leg.alone().throughput.is_finite());
        let mean = if endless {
            limit.1
        } else {
            unlimited.run(effort, false).1.1
        };
        let rho = (legs.len() == 2).then(|| legs[0].throughput / legs[1].throughput);
        let rho = rho.filter(|rho| rho.is_finite());
        let queue = (legs.len() > 1).then(|| quantiles(&record));
        let queue = queue.map(|it| it.mapped(|queue| queue.min(self.buffer)));
        let under_way: f64 = self.legs.iter().map(|leg| leg.rtt / 2.0).sum();
        let second = legs.get(1).map_or(f64::INFINITY, |leg| leg.throughput);
        let samples = record.samples(20_000);
        let unsplit = whole.alone();
        let trusts = legs.iter().map(|leg| leg.confidence);
        Some(Prediction {
            throughput,
            limit: mean,
            unsplit,
            phases: record.shares.iter().map(|it| it.of(record.time)).collect(),
            queue,
            delay: queue.map(|it| it.mapped(|queue| under_way + queue / second)),
            antibuffer: queue.filter(|_| self.buffer.is_finite()).map(|_| {
                // What is computed may be above it in the last digit.
                let left = |share| (self.buffer - record.quantile(1.0 - share)).max(0.0);
                Quantiles {
                    mean: (self.buffer - record.mean_queue(0)).max(0.0),
                    median: left(0.5),
                    p95: left(0.95),
                    p99: left(0.99),
                }
            }),
            rho,
            class: rho.map(|rho| match rho {
                ..=0.667 => Class::SlowFast,
                1.5.. => Class::FastSlow,
                _ => Class::Symmetric,
            }),
            hill: tail::hill(&samples, samples.len() / 50),
            largest_share: (!samples.is_empty()).then(|| tail::largest_share(&samples, 2.0)),
            confidence: trusts.fold(unsplit.confidence, Confidence::min),
            legs,
        })
    }

    /// Runs the fluid; gives its record, and the throughput and the limit, packets a second.
    ///
    /// Both are set right by what the same losses do to the slowest leg alone and without a cap, whose mean is
    /// known: so most of what chance does drops out.
    pub(super) fn run(&self, effort: Effort, keeps_queue: bool) -> (Record, (f64, f64)) {
        let legs = self.fluid();
        let time = horizon(&legs, effort);
        let limits: Vec<_> = legs.iter().map(|leg| alone(*leg, time, effort)).collect();
        let (limit, chance) = limits
            .iter()
            .copied()
            .min_by(|left, right| left.0.total_cmp(&right.0))
            .unwrap_or((0.0, 1.0));
        let buffers = vec![self.buffer; legs.len().saturating_sub(1)];
        let queues = starting_queues(&limits, self.buffer);
        let mut chain = Chain::new(&legs, &buffers, effort.seed).starting_with(&queues);
        chain.run(time / 10.0, &mut Record::new());
        let mut record = if keeps_queue {
            Record::of_queue(0)
        } else {
            Record::new()
        };
        chain.run(time, &mut record);
        let throughput = (record.throughput() * chance).min(limit);
        (record, (throughput, limit))
    }
}

/// What a leg carries alone with its cap, and by how much chance was off for it.
fn alone(leg: Leg, time: f64, effort: Effort) -> (f64, f64) {
    let Some(aimd) = leg.aimd.filter(|_| !leg.loss.is_none()) else {
        return (leg.cap, 1.0);
    };
    let mean = |leg: Leg| {
        let mut chain = Chain::new(&[leg], &[], effort.seed);
        chain.run(time / 10.0, &mut Record::new());
        let mut record = Record::new();
        chain.run(time, &mut record);
        record.throughput()
    };
    let free = mean(Leg {
        cap: f64::INFINITY,
        ..leg
    });
    let known = aimd.mean(leg.loss);
    if leg.cap.is_infinite() {
        return (known, known / free);
    }
    // A cap takes away most of what chance does, and all of it where it is reached always.
    let capped = mean(leg);
    let weight = (capped / leg.cap).clamp(0.0, 1.0).powi(4);
    let chance = 1.0 + (known / free - 1.0) * (1.0 - weight);
    ((capped * chance).min(leg.cap), chance)
}

/// How long to run: until the leg that loses most has lost so much, and each some hundred times.
fn horizon(legs: &[Leg], effort: Effort) -> f64 {
    let losing = legs.iter().filter(|leg| leg.aimd.is_some());
    let rates = losing.map(|leg| leg.loss.per_second + leg.loss.per_packet * leg.usual());
    let rates: Vec<f64> = rates.filter(|rate| *rate > 0.0).collect();
    let most = rates.iter().copied().fold(0.0, f64::max);
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    if most <= 0.0 {
        return 100.0;
    }
    (effort.losses / most).max((effort.losses / 40.0 / least).min(20.0 * effort.losses / most))
}

/// A buffer starts full where more comes than leaves, so that a large one need not be filled first.
fn starting_queues(limits: &[(f64, f64)], buffer: f64) -> Vec<f64> {
    let gap = |at: usize| {
        let coming = limits[..=at]
            .iter()
            .map(|it| it.0)
            .fold(f64::INFINITY, f64::min);
        let leaving = limits[at + 1..]
            .iter()
            .map(|it| it.0)
            .fold(f64::INFINITY, f64::min);
        if coming > leaving && buffer.is_finite() {
            buffer
        } else {
            0.0
        }
    };
    (0..limits.len().saturating_sub(1)).map(gap).collect()
}

fn quantiles(record: &Record) -> Quantiles {
    Quantiles {
        mean: record.mean_queue(0),
        median: record.quantile(0.5),
        p95: record.quantile(0.95),
        p99: record.quantile(0.99),
    }
}
