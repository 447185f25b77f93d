//! What user space says to a leg's control, and what the control has counted.

use std::time::Duration;
use std::{io, thread};

use pepd_sys::bpf::{Map, Ring};

use crate::load::Registered;
use crate::{CLASSES, Counted, Counts, EPOCHS, Error, Order};

/// The sections of the program that are maps of their own, and the map that wakes.
const ORDER: &str = ".data.order";
const COUNTS: &str = ".data.counts";
const WAKE: &str = "wake";

const WORD: usize = size_of::<u64>();

/// The control of a leg whose rate is found by user space. It works for as long as this process has it,
/// whatever privileges it gives up.
#[derive(Debug)]
pub struct Steering {
    order: Map,
    counts: Map,
    wake: Ring,
}

impl Steering {
    /// Takes hold of a program that is loaded.
    pub(crate) fn of(program: &Registered) -> io::Result<Self> {
        Ok(Self {
            order: program.map(ORDER)?,
            counts: program.map(COUNTS)?,
            wake: Ring::new(program.map(WAKE)?)?,
        })
    }

    /// Has the control do something else from now on.
    ///
    /// # Errors
    /// If the kernel refuses (`BPF_MAP_UPDATE_ELEM`, bpf(2)).
    pub fn set(&self, order: &Order) -> Result<(), Error> {
        let value = order.words().flat_map(u64::to_ne_bytes);
        let value: Vec<u8> = value.collect();
        self.order
            .set_value(&value)
            .map_err(|error| refused("steer a leg's control", &error))
    }

    /// Returns what the control has counted.
    ///
    /// # Errors
    /// If the kernel refuses (`BPF_MAP_LOOKUP_ELEM`, bpf(2)).
    pub fn counts(&self) -> Result<Counted, Error> {
        const STEP: &str = "read what a leg's control has counted";
        let value = self.counts.value();
        let value = value.map_err(|error| refused(STEP, &error))?;
        let (words, _) = value.as_chunks::<WORD>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let epochs = words.split_at_checked(EPOCHS * Counts::WORDS);
        let classes = epochs.and_then(|(_, rest)| <[u64; CLASSES]>::try_from(rest).ok());
        let Some(((epochs, _), by_class)) = epochs.zip(classes) else {
            let message = "it has another size than this program's".to_owned();
            return Err(Error::Refused {
                step: STEP,
                message,
            });
        };
        let (epochs, _) = epochs.as_chunks::<{ Counts::WORDS }>();
        Ok(Counted {
            epochs: epochs.iter().map(Counts::from_words).collect(),
            by_class,
        })
    }

    /// Waits until something is sent after an order to [nap](Order::nap); or for as long as that, or until a
    /// signal comes.
    pub fn wait(&self, longest: Duration) {
        // Whatever ends it, the next look at the counts tells whether something was sent.
        if self.wake.wait(longest).is_err() {
            // A signal; and whatever else it is, it shall not be tried again and again.
            thread::park_timeout(longest.min(Duration::from_millis(100)));
        }
    }
}

fn refused(step: &'static str, error: &io::Error) -> Error {
    Error::Refused {
        step,
        message: error.to_string(),
    }
}
