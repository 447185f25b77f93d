//! Connections that go to another box, or come from one, by way of [`SplitSnapshot`].
//!
//! The one box [freezes](Mover::freeze) a connection: between two of its steps its worker takes it out of its
//! sockets, and it is a [`Frozen`] one, which goes on here when that is dropped, or is closed without a word.
//! The other box [restores](Mover::restore) it: it is a [`Silent`] one, which closes without a word when that is
//! dropped, or goes on there. Both go on as connections do whose process has died
//! (`connection/take_over.rs`).
//!
//! Its packets are to be dropped at both boxes from before it is frozen until it goes on at one of them; that
//! is for others to see to, and so is where they go then.
//!
//! If the process dies meanwhile, what is frozen goes on, and what has been [given](Frozen::give) closes
//! without a word. What has come from another box counts its bytes from there on, and may have had a FIN that
//! its socket does not know: its notes say so (`slots/layout.rs`).

pub(crate) mod asked;
mod frozen;
mod silent;

use std::sync::Arc;
use std::time::Duration;

use pepd_packet::FourTuple;
use pepd_packet::snapshot::SplitSnapshot;
use tokio::sync::mpsc::channel;
use tokio::time::timeout;

pub(crate) use self::frozen::freeze;
pub use self::frozen::{Frozen, Stays};
pub use self::silent::{NotRestored, Silent};
use crate::shared::Shared;
use crate::worker::Hand;

/// The time in which a connection is to be frozen: one that is ending does not hear that it is to be.
const MOST_TIME: Duration = Duration::from_secs(2);

/// What takes a relay's connections out of it, and brings others in, for any thread.
#[derive(Clone, Debug)]
pub struct Mover {
    shared: Arc<Shared>,
    workers: Vec<Hand>,
}

impl Mover {
    pub(crate) fn new(shared: Arc<Shared>, workers: Vec<Hand>) -> Self {
        Self { shared, workers }
    }

    /// Takes a connection out of its sockets, by its id in the table of flows. Its packets are to be dropped
    /// from before this on; where it stays they are not any more, and one that mends a loss may be asked again
    /// then. To be awaited in a runtime that has a clock.
    ///
    /// # Errors
    /// Where that cannot be done: then it goes on.
    pub async fn freeze(&self, id: u64) -> Result<Frozen, Stays> {
        let (answer, mut answered) = channel(1);
        for worker in &self.workers {
            worker.freeze(id, answer.clone());
        }
        drop(answer);
        match timeout(MOST_TIME, answered.recv()).await {
            Ok(answer) => answer.unwrap_or(Err(Stays::Ended)),
            Err(_) => Err(Stays::Busy),
        }
    }

    /// Puts a connection of another box into sockets that are silent until [`Silent::activate`]. `with` is the
    /// move with which it comes, not 0, and `place` its own in that.
    ///
    /// # Errors
    /// Where that cannot be done: there is no trace of it then.
    pub fn restore(
        &self,
        snapshot: &SplitSnapshot,
        with: [u64; 2],
        place: u16,
    ) -> Result<Silent, NotRestored> {
        let id = self.shared.flows.new_id();
        let next = usize::try_from(id).unwrap_or_default() % self.workers.len().max(1);
        let worker = self.workers.get(next).ok_or(NotRestored::NoWorker)?;
        silent::restore(&self.shared, id, (snapshot, with, place), worker.go_on())
    }

    /// Returns whether both ends of a connection are in campuses.
    #[must_use]
    pub fn is_between_campuses(&self, flow: &FourTuple) -> bool {
        let settings = self.shared.settings.load();
        let ends = [flow.client.ip(), flow.server.ip()];
        ends.into_iter()
            .all(|end| settings.leg_towards(end).is_some())
    }

    /// Returns the moves with which connections have come that are here, with the place that each has in it.
    #[must_use]
    pub fn moves(&self) -> Vec<([u64; 2], u16)> {
        self.shared.slots.moves()
    }
}
