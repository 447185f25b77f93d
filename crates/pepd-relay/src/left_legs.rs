//! Upstream legs that another process has opened, and whose clients have not come yet.
//!
//! Their destinations have answered, and their clients' SYNs have gone on to the listener; what became
//! of those SYNs has died with that process. A client that comes claims its leg here.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pepd_packet::FourTuple;

use crate::sync::AtomicBool;

/// The legs, by the connections that they are of.
#[derive(Debug)]
pub(crate) struct LeftLegs {
    legs: Mutex<HashMap<FourTuple, OwnedFd>>,
    /// Whether there is any, so that an accept takes no lock once there is none.
    is_any: AtomicBool,
    /// When those that are left are closed.
    until: Instant,
}

impl LeftLegs {
    /// Keeps them for clients that come until then.
    pub(crate) fn new(legs: HashMap<FourTuple, OwnedFd>, until: Instant) -> Self {
        Self {
            is_any: AtomicBool::new(!legs.is_empty()),
            legs: Mutex::new(legs),
            until,
        }
    }

    /// Takes the leg of a client that has come.
    pub(crate) fn claim(&self, flow: FourTuple) -> Option<OwnedFd> {
        if !self.is_any.load(Relaxed) {
            return None;
        }
        self.with(|legs| legs.remove(&flow))
    }

    /// Closes those whose clients have not come in time.
    pub(crate) fn expire(&self, now: Instant) {
        if now >= self.until && self.is_any.load(Relaxed) {
            self.with(|legs| drop(std::mem::take(legs)));
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut HashMap<FourTuple, OwnedFd>) -> T) -> T {
        // A panic while the lock is held leaves at worst a leg that is closed.
        let mut legs = self.legs.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut legs);
        self.is_any.store(!legs.is_empty(), Relaxed);
        result
    }
}
