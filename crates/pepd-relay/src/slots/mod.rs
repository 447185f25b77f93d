//! Notes about live connections, in memory that outlives this process: whoever goes on with them
//! after a crash finds there what the kernel does not know.
//!
//! `layout` says which word means what, [`slot`] is one connection's notes while it lives, and
//! [`found`] what they say when the process has died.

mod address;
pub(crate) mod found;
mod layout;
#[cfg(test)]
mod released;
pub(crate) mod slot;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::layout::{
    FIRST_SLOT, GENERATION, HANDS, KEY, PER_HAND, SLOT_WORDS, STATE, USED, WORKERS,
};
use crate::fast_open::Key;

/// What a relay was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Former {
    /// The generation of the listeners in force.
    pub(crate) generation: u8,
    pub(crate) key: Key,
}

/// The places for notes, one for each connection.
#[derive(Debug)]
pub struct Slots {
    words: &'static [AtomicU64],
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    /// Those that were used and are free again.
    again: Vec<u32>,
    /// Those from here on have never been used.
    untouched: u32,
}

impl Slots {
    /// Changes with each change of what a word means, or where it is.
    pub const VERSION: u32 = 1;

    /// Returns the words that the notes of so many connections take.
    pub const fn words_for(connections: usize) -> usize {
        FIRST_SLOT + connections.saturating_mul(SLOT_WORDS)
    }

    /// Takes over the words, with the notes that are in them. Those that were used and are free are
    /// used again.
    pub fn new(words: &'static [AtomicU64]) -> Arc<Self> {
        let slots = Self {
            words,
            free: Mutex::default(),
        };
        let used = slots.used();
        let is_free = |index: &u32| {
            slots
                .word(*index, STATE)
                .is_some_and(|it| it.load(Relaxed) == 0)
        };
        let mut again: Vec<u32> = (0..used).filter(is_free).collect();
        // The lowest are used first, so that the memory that is touched stays small.
        again.reverse();
        *slots.free() = Free {
            again,
            untouched: used,
        };
        Arc::new(slots)
    }

    /// Makes notes that nobody will find.
    pub fn unshared(connections: usize) -> Arc<Self> {
        let words = (0..Self::words_for(connections)).map(|_| AtomicU64::new(0));
        Self::new(Vec::leak(words.collect()))
    }

    /// Notes what the relay is as a whole, before it serves the first connection.
    pub(crate) fn note_relay(&self, workers: usize, generation: u8, key: &Key) {
        let (low, high) = key.bytes().split_at(8);
        for (word, half) in (KEY..).zip([low, high]) {
            let half = half.try_into().map_or(0, u64::from_le_bytes);
            self.words[word].store(half, Relaxed);
        }
        self.note_generation(generation);
        self.words[WORKERS].store(workers as u64, Release);
    }

    /// Notes which generation of the listeners is in force.
    pub(crate) fn note_generation(&self, generation: u8) {
        self.words[GENERATION].store(generation.into(), Release);
    }

    /// Returns what the relay was that took the notes; none where there has been none.
    pub(crate) fn former(&self) -> Option<Former> {
        let word = |word: usize| self.words.get(word).map_or(0, |it| it.load(Acquire));
        if word(WORKERS) == 0 {
            return None;
        }
        let mut key = [0; 16];
        let (low, high) = key.split_at_mut(8);
        low.copy_from_slice(&word(KEY).to_le_bytes());
        high.copy_from_slice(&word(KEY + 1).to_le_bytes());
        Some(Former {
            generation: u8::try_from(word(GENERATION)).unwrap_or(0),
            key: Key::known(key),
        })
    }

    /// Notes which connection `worker` has in hand, or that it has none. Who dies with one in hand may
    /// have died of it.
    pub(crate) fn take_in_hand(&self, worker: usize, slot: Option<u32>) {
        if let Some(hand) = self.words.get((1 + worker % HANDS) * PER_HAND) {
            hand.store(slot.map_or(0, |slot| u64::from(slot) + 1), Relaxed);
        }
    }

    /// Returns one that is free; none where there are more connections than slots.
    fn next_free(&self) -> Option<u32> {
        let mut free = self.free();
        if let Some(index) = free.again.pop() {
            return Some(index);
        }
        let index = free.untouched;
        self.word(index, SLOT_WORDS - 1)?;
        free.untouched += 1;
        self.words[USED].store(free.untouched.into(), Relaxed);
        Some(index)
    }

    /// Returns how many have ever been used: the first ones.
    fn used(&self) -> u32 {
        let most = self.words.len().saturating_sub(FIRST_SLOT) / SLOT_WORDS;
        let used = self.words.get(USED).map_or(0, |used| used.load(Relaxed));
        u32::try_from(used.min(most as u64)).unwrap_or(u32::MAX)
    }

    fn word(&self, index: u32, word: usize) -> Option<&'static AtomicU64> {
        self.words
            .get(FIRST_SLOT + index as usize * SLOT_WORDS + word)
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        // A panic while the lock is held leaves at worst a slot that is not used again.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
