//! The locks and atomics of what several threads share and a model checker looks at: in pepd-loom,
//! which compiles those files once more, this module is loom's.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
pub(crate) use std::sync::{Mutex, MutexGuard};
