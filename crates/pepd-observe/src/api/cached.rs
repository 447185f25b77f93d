//! A view that is asked now and then only, however often it is looked at.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{FlowHistory, FlowSnapshot, Status, View};

/// A [`View`] behind a memory of what it said last. Looking costs the workers a lock each, so
/// a thousand clients who look at the same time share one look.
pub struct Cached {
    view: Arc<dyn View>,
    fresh: Duration,
    status: Mutex<Option<(Instant, Arc<Status>)>>,
    flows: Mutex<Option<(Instant, Arc<Vec<FlowSnapshot>>)>>,
    turns: Arc<Semaphore>,
}

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
            status: Mutex::new(None),
            flows: Mutex::new(None),
            turns: Arc::new(Semaphore::new(TURNS)),
        }
    }

    /// [`View::status`]
    pub fn status(&self) -> Arc<Status> {
        self.remembered(&self.status, || self.view.status())
    }

    /// [`View::flows`]
    pub fn flows(&self) -> Arc<Vec<FlowSnapshot>> {
        self.remembered(&self.flows, || self.view.flows())
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

    fn remembered<T>(
        &self,
        memory: &Mutex<Option<(Instant, Arc<T>)>>,
        look: impl FnOnce() -> T,
    ) -> Arc<T> {
        let now = Instant::now();
        let mut memory = lock(memory);
        match &*memory {
            Some((when, value)) if now.saturating_duration_since(*when) < self.fresh => {
                Arc::clone(value)
            }
            _ => {
                let value = Arc::new(look());
                *memory = Some((now, Arc::clone(&value)));
                value
            }
        }
    }
}

/// A panic while it is held leaves the memory as it was.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
