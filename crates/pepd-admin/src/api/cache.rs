//! A view that is asked only now and then, however many clients there are.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::{Exposition, expose};
use crate::view::View;
use crate::wire::{FlowHistory, FlowSnapshot, HistoryStep, LegHistory, Readiness, Status};

/// A [`View`] behind a cache of its last answers. Asking it costs the workers a lock each, so a
/// thousand clients who ask at the same time share one answer.
pub struct CachedView {
    view: Arc<dyn View>,
    max_age: Duration,
    status: Slot<Arc<Status>>,
    flows: Slot<Arc<Vec<FlowSnapshot>>>,
    /// The metrics as they are written, so that the figures of one answer are of one moment.
    openmetrics: Slot<Result<Bytes, fmt::Error>>,
    metrics: Slot<Result<Bytes, fmt::Error>>,
    lists: Arc<Semaphore>,
}

/// The last answer, and when it was given.
type Slot<T> = Mutex<Option<(Instant, T)>>;

/// Lists of flows in memory at once: each may be some 15 MB.
const LISTS_AT_ONCE: usize = 4;

impl CachedView {
    /// The age that an answer may have: shorter than the second in which flows are sampled.
    pub const MAX_AGE: Duration = Duration::from_millis(250);

    /// Caches the answers of `view` for `max_age`.
    pub fn new(view: Arc<dyn View>, max_age: Duration) -> Self {
        Self {
            view,
            max_age,
            status: Mutex::default(),
            flows: Mutex::default(),
            openmetrics: Mutex::default(),
            metrics: Mutex::default(),
            lists: Arc::new(Semaphore::new(LISTS_AT_ONCE)),
        }
    }

    /// Returns [`View::status`], no older than the cache allows.
    pub fn status(&self) -> Arc<Status> {
        self.cached(&self.status, || Arc::new(self.view.status()))
    }

    /// Returns [`View::readiness`], which is cheap.
    pub fn readiness(&self) -> Readiness {
        self.view.readiness()
    }

    /// Returns [`View::flows`], no older than the cache allows.
    pub fn flows(&self) -> Arc<Vec<FlowSnapshot>> {
        self.cached(&self.flows, || Arc::new(self.view.flows()))
    }

    /// Forgets the answers: something was done, and whoever asks next is to see it.
    pub(super) fn forget(&self) {
        *lock(&self.status) = None;
        *lock(&self.flows) = None;
        *lock(&self.openmetrics) = None;
        *lock(&self.metrics) = None;
    }

    /// Returns the metrics, as [`expose`] writes them.
    ///
    /// # Errors
    /// Those of [`expose`].
    pub fn metrics(&self, exposition: Exposition) -> Result<Bytes, fmt::Error> {
        let slot = match exposition {
            Exposition::OpenMetrics => &self.openmetrics,
            Exposition::Text => &self.metrics,
        };
        self.cached(slot, || expose(&self.view, exposition).map(Bytes::from))
    }

    /// Returns [`View::flow`], which is cheap.
    pub fn flow(&self, id: u64) -> Option<FlowSnapshot> {
        self.view.flow(id)
    }

    /// Returns [`View::history`], which is cheap.
    pub fn history(&self, id: u64) -> Option<FlowHistory> {
        self.view.history(id)
    }

    /// Returns [`View::leg_history`], which is cheap where it is asked for what is new.
    pub fn leg_history(&self, leg: &str, step: HistoryStep, since: f64) -> Option<LegHistory> {
        self.view.leg_history(leg, step, since)
    }

    /// Calls [`View::end_second`].
    pub fn end_second(&self) {
        self.view.end_second();
    }

    /// Waits for the permit to put a list of flows together, until it has been fetched.
    pub(super) async fn list_permit(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.lists).acquire_owned().await.ok()
    }

    fn cached<T: Clone>(&self, slot: &Slot<T>, ask: impl FnOnce() -> T) -> T {
        let now = Instant::now();
        let mut slot = lock(slot);
        match &*slot {
            Some((when, value)) if now.saturating_duration_since(*when) < self.max_age => {
                value.clone()
            }
            _ => {
                let value = ask();
                *slot = Some((now, value.clone()));
                value
            }
        }
    }
}

/// Locks the mutex: a panic while it is held leaves the slot as it was.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
