//! What is known of the destinations beyond a modem's radio.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use crate::item::DataItem;
use crate::mac::MacAddress;

/// The destinations of a session that are kept. A modem that has more hears that nobody is interested
/// in those.
pub const MOST: usize = 1024;

/// How fast a link is, as far as its modem has said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// The rate at which the router's packets go over it at present, in bits a second (section 13.15).
    pub transmit: Option<u64>,
    /// The rate at which packets come to the router at present, in bits a second (section 13.14).
    pub receive: Option<u64>,
    /// The time that a packet takes, in microseconds (section 13.16).
    pub latency: Option<u64>,
}

/// The link, as its router should see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// A destination that counts is up.
    pub is_up: bool,
    /// Of the destinations that count, the slowest and the farthest; nothing while none is up.
    pub metrics: Metrics,
}

/// What becomes of a destination that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is kept.
    Kept,
    /// It is not one that counts.
    Uninteresting,
    /// There are [`MOST`] of them.
    TooMany,
}

/// The destinations of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Destinations {
    /// What holds for those of which nothing else has been said.
    session: Metrics,
    up: BTreeMap<MacAddress, Metrics>,
    /// The only one that counts, if it is not any.
    only: Option<MacAddress>,
    /// Some have been refused, and may be spoken of nevertheless.
    any_refused: bool,
}

impl Metrics {
    /// Takes over what these items say.
    pub(super) fn update(&mut self, items: &[DataItem]) {
        for item in items {
            match item {
                // A modem that cannot say says nothing, or zero.
                DataItem::CurrentRateTransmit(rate) => self.transmit = Some(*rate).filter(is_some),
                DataItem::CurrentRateReceive(rate) => self.receive = Some(*rate).filter(is_some),
                DataItem::Latency(latency) => self.latency = Some(*latency),
                _ => {}
            }
        }
    }

    /// Returns the latency.
    pub fn latency(&self) -> Option<Duration> {
        self.latency.map(Duration::from_micros)
    }

    /// Returns what is worse of both.
    fn worse(self, other: Self) -> Self {
        let less = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        Self {
            transmit: less(self.transmit, other.transmit),
            receive: less(self.receive, other.receive),
            latency: self.latency.max(other.latency),
        }
    }
}

fn is_some(rate: &u64) -> bool {
    *rate > 0
}

impl Destinations {
    pub(super) fn new(session: Metrics, only: Option<MacAddress>) -> Self {
        Self {
            session,
            up: BTreeMap::new(),
            only,
            any_refused: false,
        }
    }

    /// Takes a destination that is up. One that is already is updated.
    pub(super) fn up(&mut self, address: MacAddress, items: &[DataItem]) -> Taken {
        if self.only.is_some_and(|only| only != address) {
            self.any_refused = true;
            return Taken::Uninteresting;
        }
        let is_full = self.up.len() >= MOST;
        match self.up.entry(address) {
            Entry::Vacant(_) if is_full => {
                self.any_refused = true;
                Taken::TooMany
            }
            Entry::Vacant(entry) => {
                entry.insert(self.session).update(items);
                Taken::Kept
            }
            Entry::Occupied(mut entry) => {
                entry.get_mut().update(items);
                Taken::Kept
            }
        }
    }

    /// Takes what is new of a destination; false if it has never been announced.
    pub(super) fn update(&mut self, address: MacAddress, items: &[DataItem]) -> bool {
        match self.up.get_mut(&address) {
            Some(metrics) => metrics.update(items),
            None => return self.any_refused,
        }
        true
    }

    /// Takes a destination that is no longer up; false if it has never been announced.
    pub(super) fn down(&mut self, address: MacAddress) -> bool {
        self.up.remove(&address).is_some() || self.any_refused
    }

    /// Takes what holds for all destinations from now on (section 12.7).
    pub(super) fn update_all(&mut self, items: &[DataItem]) {
        self.session.update(items);
        for metrics in self.up.values_mut() {
            metrics.update(items);
        }
    }

    pub(super) fn link(&self) -> Link {
        let worst = self.up.values().copied().reduce(Metrics::worse);
        Link {
            is_up: worst.is_some(),
            metrics: worst.unwrap_or_default(),
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.up.len()
    }
}
