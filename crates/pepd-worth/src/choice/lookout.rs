//! Notices that the path has become another, by the transfers that go the way of most.

use std::time::Instant;

use super::PATIENCE;
use super::counted::Transfer;
use crate::figures::Quantity;
use crate::gain::{FEWEST, differ};
use crate::sample::{Client, Sample};

/// The last connections that are compared with those before them.
pub(super) const RECENT: usize = 8;

/// Those before them.
const REFERENCE: usize = 64;

/// By what factor the times are others then, at least.
pub(super) const OTHER: f64 = 1.5;

/// The clients that are looked after: with more of them, too, one connection of each is what counts.
const CLIENTS: usize = 10;

/// What is known of the transfers that go the way of most.
#[derive(Clone, Debug, Default)]
pub(super) struct Lookout {
    /// The last times, of each size.
    last: [Sample<f64>; Quantity::ALL.len()],
    /// Of which size the last of them were of which too few had been before to compare them with, in a row, and whose.
    unknown: Option<(Quantity, Vec<Client>)>,
    /// Who was measured last, and when, each once.
    clients: Vec<(Client, Instant)>,
}

impl Lookout {
    /// Notes whose a connection is that was measured.
    pub(super) fn meet(&mut self, client: Client, now: Instant) {
        self.clients.retain(|(of, _)| *of != client);
        if self.clients.len() >= CLIENTS {
            self.clients.remove(0);
        }
        self.clients.push((client, now));
    }

    /// Begins with what was measured of those.
    pub(super) fn begin(&mut self, measured: &Sample<Transfer>) {
        self.last = Default::default();
        self.unknown = None;
        for (client, transfer) in measured.entries() {
            if let Some(last) = self.last.get_mut(transfer.quantity as usize) {
                last.add(client, transfer.time, REFERENCE);
            }
        }
    }

    /// Notes how long one took; returns whether the last of them took another time than those before, or have a size of
    /// which little is known.
    pub(super) fn is_other_path(
        &mut self,
        client: Client,
        transfer: &Transfer,
        now: Instant,
    ) -> bool {
        let share = self.share(now);
        let Some(last) = self.last.get_mut(transfer.quantity as usize) else {
            return false;
        };
        last.add(client, transfer.time, REFERENCE + RECENT);
        if last.len() >= FEWEST + RECENT {
            self.unknown = None;
            let (before, recent) = parts(last, share);
            return recent.len() == RECENT
                && before.len() >= FEWEST
                && differ(&recent, &before, OTHER);
        }
        let row = match &mut self.unknown {
            Some((quantity, row)) if *quantity == transfer.quantity => row,
            other => &mut other.insert((transfer.quantity, Vec::new())).1,
        };
        if row.len() < RECENT && row.iter().filter(|of| **of == client).count() < share {
            row.push(client);
        }
        row.len() == RECENT
    }

    /// Returns how many of [`RECENT`] one client may be: a quarter more than an equal share of it.
    fn share(&self, now: Instant) -> usize {
        let is_here = |at: Instant| now.saturating_duration_since(at) < PATIENCE;
        let clients = self.clients.iter().filter(|(_, at)| is_here(*at)).count();
        (5 * RECENT / (4 * clients.max(1))).clamp(1, RECENT)
    }
}

/// Gives those before the last ones, and the last ones, no more than so many of a client.
fn parts(last: &Sample<f64>, share: usize) -> (Vec<f64>, Vec<f64>) {
    let mut whose = Vec::new();
    let (mut before, mut recent) = (Vec::new(), Vec::new());
    for (client, time) in last.entries().rev() {
        if recent.len() == RECENT {
            before.push(*time);
        } else if whose.iter().filter(|of| **of == client).count() < share {
            whose.push(client);
            recent.push(*time);
        }
    }
    (before, recent)
}
