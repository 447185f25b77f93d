//! What is asked of a connection's task by others.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use tokio::sync::mpsc::Sender;

use super::frozen::{Frozen, Stays};
use crate::slots::found::FoundConnection;

/// An order to freeze a connection, and who is to be told what has come of it. When it is dropped that is
/// told, too.
#[derive(Debug)]
pub(crate) struct FreezeOrder {
    pub(crate) answer: Sender<Result<Frozen, Stays>>,
    /// What has it go on when it is thawed.
    pub(crate) go_on: GoOn,
}

/// What has a worker go on with a connection.
#[derive(Clone)]
pub(crate) struct GoOn(Arc<dyn Fn(FoundConnection) + Send + Sync>);

impl GoOn {
    pub(crate) fn new(go_on: impl Fn(FoundConnection) + Send + Sync + 'static) -> Self {
        Self(Arc::new(go_on))
    }

    pub(super) fn go_on(&self, connection: FoundConnection) {
        (self.0)(connection);
    }
}

impl fmt::Debug for GoOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GoOn")
    }
}

/// Whether a connection is to be frozen: shared by its task and by whoever asks for that.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The connection's id.
    id: u64,
    /// Whether its task is known, which never changes.
    is_known: AtomicBool,
    is_wanted: AtomicBool,
    asked: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    task: Option<Waker>,
    order: Option<FreezeOrder>,
}

impl Asked {
    /// Begins with the connection of this id, of which nothing is asked.
    pub(crate) fn nothing(id: u64) -> Self {
        Self {
            id,
            is_known: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
            asked: Mutex::default(),
        }
    }

    /// Returns the connection's id.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Asks for it. Whoever has asked before is told that nothing has come of it.
    pub(crate) fn freeze(&self, order: FreezeOrder) {
        let mut state = self.lock();
        state.order = Some(order);
        self.is_wanted.store(true, Release);
        if let Some(task) = &state.task {
            task.wake_by_ref();
        }
    }

    /// Returns whether something is asked, and takes note of whose task is to be woken when it is. Once that
    /// is known it costs two looks.
    pub(crate) fn is_wanted(&self, task: &Context<'_>) -> bool {
        if !self.is_known.load(Relaxed) {
            self.lock().task = Some(task.waker().clone());
            self.is_known.store(true, Relaxed);
        }
        self.is_wanted.load(Acquire)
    }

    /// Takes what is asked.
    pub(crate) fn take(&self) -> Option<FreezeOrder> {
        self.is_wanted.store(false, Relaxed);
        self.lock().order.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held leaves whole values.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
