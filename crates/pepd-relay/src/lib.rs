//! pepd's data path: listeners, legs, the relay, limits and drain.
//!
//! The relay is told what to do in types of its own ([`Settings`]), and knows neither the
//! configuration file nor the kernel's tables. What it needs of the capture is that SYNs from
//! the campuses of a leg are sent to that leg's [`ListenerAddress`], and that return packets of
//! transparent sockets are delivered on this host. What it tells the capture, through
//! [`Admission`], is when to send no more.
//!
//! The order of a start is [`probe`], [`Prepared::new`] (the listeners are open), then the
//! capture, then [`Relay::start`]; of a reload [`Relay::prepare`], the capture,
//! [`Relay::reload`].

#![forbid(unsafe_code)]

mod admission;
mod direction;
mod listener;
mod options;
mod pool;
mod probe;
mod relay;
mod serve;
mod settings;
mod socket;
mod upstream;
mod worker;

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use pepd_observe::Counters;

pub use admission::{Admission, Pressure};
pub use listener::ListenError;
use listener::Listener;
pub use options::{Difference, Unset};
pub use probe::{ProbeError, probe};
pub use settings::{Campus, Dscp, Keepalive, Leg, Limits, ListenerAddress, Settings};
use worker::{Shared, Worker};

/// Settings whose listeners are open: nothing can fail any more when they come into force.
#[derive(Debug)]
pub struct Prepared {
    settings: Settings,
    generation: u8,
    /// A set for each worker, or `None` where those of the running generation serve on.
    listeners: Option<Vec<Vec<Listener>>>,
    addresses: Vec<ListenerAddress>,
}

impl Prepared {
    /// Opens the listeners of a first generation.
    pub fn new(settings: Settings, workers: NonZeroUsize) -> Result<Self, ListenError> {
        Self::open(settings, workers, 0)
    }

    fn open(
        settings: Settings,
        workers: NonZeroUsize,
        generation: u8,
    ) -> Result<Self, ListenError> {
        let addresses = listener::addresses(&settings, generation)?;
        let listeners = Some(listener::open_all(&settings, workers, generation)?);
        Ok(Self {
            settings,
            generation,
            listeners,
            addresses,
        })
    }

    /// Where the capture has to send the SYNs of each leg's campuses, in the order of
    /// [`Settings::legs`].
    pub fn addresses(&self) -> &[ListenerAddress] {
        &self.addresses
    }
}

/// A running relay.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    generation: u8,
}

impl Relay {
    /// Starts a worker for each set of listeners. `pipes` is how many pipes, of two descriptors
    /// each, all of them together may have.
    pub fn start(prepared: Prepared, pipes: usize, counters: Arc<Counters>) -> io::Result<Self> {
        let Prepared {
            settings,
            generation,
            listeners,
            ..
        } = prepared;
        let shared = Arc::new(Shared {
            admission: Arc::new(Admission::new(settings.limits)),
            settings: ArcSwap::from_pointee(settings),
            counters,
            unnamed_leg: Leg::kernel_defaults("(none)"),
        });
        let listeners = listeners.unwrap_or_default();
        let share = pipes / listeners.len().max(1);
        let workers = listeners
            .into_iter()
            .enumerate()
            .map(|(index, set)| Worker::start(index, Arc::clone(&shared), set, share))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            shared,
            workers,
            generation,
        })
    }

    /// Opens what other settings need, without touching what runs.
    pub fn prepare(&self, settings: Settings) -> Result<Prepared, ListenError> {
        let running = self.shared.settings.load();
        if running.legs == settings.legs && running.port == settings.port {
            let addresses = listener::addresses(&settings, self.generation)?;
            return Ok(Prepared {
                settings,
                generation: self.generation,
                listeners: None,
                addresses,
            });
        }
        let workers = NonZeroUsize::new(self.workers.len()).unwrap_or(NonZeroUsize::MIN);
        Prepared::open(settings, workers, self.generation.wrapping_add(1))
    }

    /// Brings other settings into force for new connections. Those that there are keep theirs.
    pub fn reload(&mut self, prepared: Prepared) {
        let Prepared {
            settings,
            generation,
            listeners,
            ..
        } = prepared;
        self.shared.admission.set_limits(settings.limits);
        self.shared.settings.store(Arc::new(settings));
        self.generation = generation;
        for (worker, set) in self.workers.iter().zip(listeners.into_iter().flatten()) {
            worker.listen(set);
        }
    }

    /// The connections against their limits.
    pub fn admission(&self) -> &Admission {
        &self.shared.admission
    }

    /// Whether every worker has shown a sign of life within `time`.
    pub fn responsive(&self, time: Duration) -> bool {
        self.workers.iter().all(|worker| worker.responsive(time))
    }

    /// Ends all workers; connections that are not finished are reset on both legs.
    pub fn stop(self) {
        self.workers.into_iter().for_each(Worker::stop);
    }
}

/// Where the capture of a first generation has to send the SYNs of each leg's campuses, in the
/// order of [`Settings::legs`]; opens nothing.
pub fn listener_addresses(settings: &Settings) -> Result<Vec<ListenerAddress>, ListenError> {
    listener::addresses(settings, 0)
}
