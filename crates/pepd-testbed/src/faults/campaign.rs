//! All faults of a scenario, or some of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

use super::call::Call;
use super::fault::Fault;
use super::scenario::{Ground, Outcome};
use super::tracer::Census;
use crate::traffic::Rng;

/// The calls a daemon makes in `Ground::run`, with how SYNs are treated there.
pub struct Campaign {
    binary: PathBuf,
    early: bool,
    census: Census,
}

/// What came of a campaign.
#[derive(Debug, Default)]
pub struct Findings {
    /// How many faults there were.
    pub runs: usize,
    /// The number of runs in which the daemon did not come to the call that was to fail.
    pub missed: usize,
    /// What the daemon did, and how often.
    pub outcomes: BTreeMap<Outcome, usize>,
    /// The faults after which something did not hold, and what.
    pub defects: Vec<(Fault, String)>,
}

impl Campaign {
    /// Runs the scenario without a fault, and counts the daemon's calls.
    ///
    /// # Errors
    /// When it fails without any fault.
    pub fn new(binary: &Path, early: bool) -> Result<Self> {
        let course = Ground::new(binary.to_owned(), early)?
            .run(None)
            .context("without any fault")?;
        Ok(Self {
            binary: binary.to_owned(),
            early,
            census: course.census,
        })
    }

    /// Returns how often each call was made in each part of the scenario.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, [usize; 4])> {
        self.census.iter().map(|(name, parts)| {
            let mut counts = [0; 4];
            for part in parts {
                counts[usize::from(*part)] += 1;
            }
            (*name, counts)
        })
    }

    /// Returns every fault: each call that was made, with each error that it may give.
    #[must_use]
    pub fn every_fault(&self) -> Vec<Fault> {
        let faults = self.census.iter().flat_map(|(name, parts)| {
            let call = Call::named(name);
            let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
            call.into_iter().flat_map(move |call| {
                let nth = 1..=count;
                nth.flat_map(move |nth| {
                    call.errors
                        .iter()
                        .map(move |&error| Fault { call, nth, error })
                })
            })
        });
        faults.collect()
    }

    /// Returns some of them: as many of rare calls as of frequent ones.
    #[must_use]
    pub fn some_faults(&self, number: usize, seed: u64) -> Vec<Fault> {
        let mut rng = Rng::new(seed);
        let mut below = |length: usize| {
            let last = u64::try_from(length.saturating_sub(1)).unwrap_or_default();
            usize::try_from(rng.between(0, last)).unwrap_or_default()
        };
        let fallible: Vec<_> = self
            .census
            .iter()
            .filter_map(|(name, parts)| Some((Call::named(name)?, parts.len())))
            .filter(|(call, _)| !call.errors.is_empty())
            .collect();
        let faults = (0..number).map(|_| {
            let (call, count) = fallible[below(fallible.len())];
            Fault {
                call,
                nth: u32::try_from(1 + below(count)).unwrap_or(1),
                error: call.errors[below(call.errors.len())],
            }
        });
        faults.collect()
    }

    /// Runs the scenario with each of the faults, in so many worlds side by side, and tells of each
    /// as it comes.
    ///
    /// # Errors
    /// Where a world cannot be made.
    pub fn run(
        &self,
        faults: Vec<Fault>,
        lanes: usize,
        tell: impl Fn(&Fault, &Result<Option<Outcome>>) + Sync,
    ) -> Result<Findings> {
        let faults = Mutex::new(faults.into_iter());
        let findings = Mutex::new(Findings::default());
        std::thread::scope(|scope| {
            let work = || -> Result<()> {
                let mut ground = Ground::new(self.binary.clone(), self.early)?;
                let next = || faults.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some(fault) = next() {
                    let course = ground.run(Some(fault));
                    let outcome = course.map(|course| course.fired.then_some(course.outcome));
                    tell(&fault, &outcome);
                    let mut findings = findings.lock().unwrap_or_else(PoisonError::into_inner);
                    findings.add(fault, outcome);
                }
                Ok(())
            };
            let lanes: Vec<_> = (0..lanes.max(1)).map(|_| scope.spawn(work)).collect();
            lanes.into_iter().try_for_each(|lane| {
                lane.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })?;
        Ok(findings
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner))
    }
}

impl Findings {
    fn add(&mut self, fault: Fault, outcome: Result<Option<Outcome>>) {
        self.runs += 1;
        match outcome {
            Ok(Some(outcome)) => *self.outcomes.entry(outcome).or_default() += 1,
            Ok(None) => self.missed += 1,
            Err(error) => self.defects.push((fault, format!("{error:#}"))),
        }
    }
}
