//! What is found again and again by one, and shown to others.

use std::sync::{Arc, Mutex, PoisonError};

/// The latest of something. All clones have the same.
#[derive(Debug, Clone, Default)]
pub struct Latest<T>(Arc<Mutex<T>>);

impl<T: Clone> Latest<T> {
    /// Puts another in its place.
    pub fn set(&self, value: T) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }

    /// Gives it.
    pub fn get(&self) -> T {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
