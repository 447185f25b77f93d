//! The legs by their names: what is sent over each by all connections together, how long its round
//! trips are while it is busy and at the least, and how that was over time.
//!
//! Each connection's looks at its sockets come in by [`LegMeter::observe`], and once a second
//! [`Legs::end_second`] makes of them what is told.

mod history;
mod meter;
mod round_trips;
mod second;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub use self::history::{MINUTES_PER_LEG, SECONDS_PER_LEG};
pub(crate) use self::meter::LegMeter;
pub use self::meter::{BUSY, LegSecondFacts};
pub(crate) use self::second::LegLook;
pub use self::snapshot::{
    Carried, HistoryStep, LegHistory, LegHistoryPoint, LegState, LoadedRtt, PathPoint, RateLimit,
};
use crate::measurements::Measurements;

/// All legs that had connections: no more than the configurations had since the start.
#[derive(Default)]
pub(crate) struct Legs(Mutex<BTreeMap<Arc<str>, Arc<LegMeter>>>);

impl fmt::Debug for Legs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Legs").finish_non_exhaustive()
    }
}

impl Legs {
    /// Gives the leg of this name, made if it is new.
    pub(crate) fn get(
        &self,
        name: &Arc<str>,
        measured: &Measurements,
        now: Instant,
    ) -> Arc<LegMeter> {
        let mut legs = self.lock();
        let leg = legs.entry(Arc::clone(name)).or_insert_with(|| {
            let loaded = measured.loaded_rtt(name);
            Arc::new(LegMeter::new(Arc::clone(name), loaded, now))
        });
        Arc::clone(leg)
    }

    /// Ends a second of all legs, at `time` in seconds since the Unix epoch; `facts` gives what is known of
    /// a leg beside what its sockets show.
    pub(crate) fn end_second(
        &self,
        now: Instant,
        time: f64,
        mut facts: impl FnMut(&str) -> LegSecondFacts,
    ) {
        for leg in self.all() {
            let facts = facts(leg.name());
            leg.end_second(now, time, facts);
        }
    }

    /// Returns what is seen of each, sorted by name.
    pub(crate) fn states(&self, now: Instant) -> Vec<LegState> {
        self.all().iter().map(|leg| leg.state(now)).collect()
    }

    /// Returns what was seen of one over time, after `since` in seconds since the Unix epoch; none if it
    /// had no connection yet.
    pub(crate) fn history(&self, name: &str, step: HistoryStep, since: f64) -> Option<LegHistory> {
        let leg = self.lock().get(name).cloned()?;
        Some(leg.history(step, since))
    }

    /// Returns what arrived over one lately, at most, in bytes a second; none if nothing did.
    pub(crate) fn most_delivered(&self, name: &str) -> Option<u64> {
        let leg = self.lock().get(name).cloned()?;
        leg.most_delivered()
    }

    fn all(&self) -> Vec<Arc<LegMeter>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Arc<LegMeter>>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
