//! What has moved, for whoever asks.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use pepd_admin::wire::{MoveCounts, NeighborMoves};

/// What has moved to and from each neighbor since the start. All clones have the same.
#[derive(Clone, Debug, Default)]
pub struct MoveFigures(Arc<Figures>);

#[derive(Debug, Default)]
struct Figures {
    counts: Mutex<MoveCounts>,
    /// The places of the neighbors that a process before this one has given connections to, which are still sent on.
    before: Mutex<BTreeSet<usize>>,
    /// The connections that are being given: they stand still, and are nobody's for the moment, or here again.
    under_way: AtomicU32,
}

impl MoveFigures {
    /// Begins with these neighbors.
    pub(super) fn begin<'a>(&self, names: impl Iterator<Item = &'a str>) {
        let neighbors = names.map(|name| NeighborMoves {
            neighbor: name.to_owned(),
            ..NeighborMoves::default()
        });
        self.lock().neighbors = neighbors.collect();
    }

    /// Changes what is known of a neighbor.
    pub(super) fn of(&self, name: &str, change: impl FnOnce(&mut NeighborMoves)) {
        let mut counts = self.lock();
        if let Some(of) = counts.neighbors.iter_mut().find(|it| it.neighbor == name) {
            change(of);
        }
    }

    /// Notes how many connections are being given.
    pub(super) fn set_under_way(&self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.0.under_way.store(count, Relaxed);
    }

    /// Returns how many are, which may all stay.
    pub fn under_way(&self) -> u32 {
        self.0.under_way.load(Relaxed)
    }

    /// Notes that a process before this one has given connections to the neighbors at these places.
    pub(super) fn gave_before(&self, places: BTreeSet<usize>) {
        *self.before() = places;
    }

    /// Gives the name of a neighbor that connections have moved to, from this process or from one before it.
    pub fn has_given_to(&self) -> Option<String> {
        let (counts, before) = (self.lock(), self.before());
        let mut places = counts.neighbors.iter().enumerate();
        let given = places.find(|(place, it)| it.given > 0 || before.contains(place));
        given.map(|(_, it)| it.neighbor.clone())
    }

    /// Gives the name of the neighbor at this place.
    pub fn name(&self, place: usize) -> Option<String> {
        let counts = self.lock();
        counts.neighbors.get(place).map(|it| it.neighbor.clone())
    }

    /// Counts somebody who was refused.
    pub(super) fn refused(&self) {
        self.lock().refused += 1;
    }

    /// Gives what is known.
    pub fn get(&self) -> MoveCounts {
        self.lock().clone()
    }

    fn before(&self) -> std::sync::MutexGuard<'_, BTreeSet<usize>> {
        self.0.before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, MoveCounts> {
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
