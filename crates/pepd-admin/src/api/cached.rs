//! A view that is asked now and then only, however often it is looked at.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::{Exposition, expose};
use crate::{Status, View};
use pepd_telemetry::{FlowHistory, FlowSnapshot};

/// A [`View`] behind a memory of what it said last. Looking costs the workers a lock each, so
/// a thousand clients who look at the same time share one look.
pub struct Cached {
    view: Arc<dyn View>,
    fresh: Duration,
    status: Memory<Arc<Status>>,
    flows: Memory<Arc<Vec<FlowSnapshot>>>,
    /// As they are written, so that the figures of one answer are of one moment.
    openmetrics: Memory<Result<Bytes, fmt::Error>>,
    metrics: Memory<Result<Bytes, fmt::Error>>,
    turns: Arc<Semaphore>,
}

/// What was last said, and when.
type Memory<T> = Mutex<Option<(Instant, T)>>;

/// Lists of flows in memory at once: each may be some 15 MB.
const TURNS: usize = 4;

impl Cached {
    /// How old an answer may be. Shorter than the second in which flows are sampled.
    pub const FRESH: Duration = Duration::from_millis(250);

    /// Remembers what `view` says for `fresh`.
    pub fn new(view: Arc<dyn View>, fresh: Duration) -> Self {
        Self {
            view,
            fresh,
            status: Mutex::default(),
            flows: Mutex::default(),
            openmetrics: Mutex::default(),
            metrics: Mutex::default(),
            turns: Arc::new(Semaphore::new(TURNS)),
        }
    }

    /// [`View::status`]
    pub fn status(&self) -> Arc<Status> {
        self.remembered(&self.status, || Arc::new(self.view.status()))
    }

    /// [`View::flows`]
    pub fn flows(&self) -> Arc<Vec<FlowSnapshot>> {
        self.remembered(&self.flows, || Arc::new(self.view.flows()))
    }

    /// The metrics, as [`expose`] writes them.
    ///
    /// # Errors
    /// Those of [`expose`].
    pub fn metrics(&self, exposition: Exposition) -> Result<Bytes, fmt::Error> {
        let memory = match exposition {
            Exposition::OpenMetrics => &self.openmetrics,
            Exposition::Text => &self.metrics,
        };
        self.remembered(memory, || expose(&self.view, exposition).map(Bytes::from))
    }

    /// [`View::flow`], which is cheap.
    pub fn flow(&self, id: u64) -> Option<FlowSnapshot> {
        self.view.flow(id)
    }

    /// [`View::history`], which is cheap.
    pub fn history(&self, id: u64) -> Option<FlowHistory> {
        self.view.history(id)
    }

    /// A turn to put a list of flows together, until it has been fetched.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.turns).acquire_owned().await.ok()
    }

    fn remembered<T: Clone>(&self, memory: &Memory<T>, look: impl FnOnce() -> T) -> T {
        let now = Instant::now();
        let mut memory = lock(memory);
        match &*memory {
            Some((when, value)) if now.saturating_duration_since(*when) < self.fresh => {
                value.clone()
            }
            _ => {
                let value = look();
                *memory = Some((now, value.clone()));
                value
            }
        }
    }
}

/// A panic while it is held leaves the memory as it was.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
