//! Who has a place in the table, and who has to go for the next one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use pepd_packet::FourTuple;

use crate::handshake::event::Ticket;

/// The time for which a flow keeps its place where there is none for another: as long as its client
/// waits for an answer before it repeats its SYN (RFC 6298, section 2.1). Until then its
/// destination's answer may be on the way, and is not the answer to the client's SYN, if that is
/// routed: the client resets it, and is connected a second later. For the one that finds no place
/// no SYN has been sent yet.
pub(super) const PLACE_TIME: Duration = Duration::from_secs(1);

/// The places of a table: so many, of which one source may have half.
#[derive(Debug)]
pub(super) struct Places {
    capacity: usize,
    /// The flows with a place, the oldest first.
    ages: BTreeMap<Ticket, Holder>,
    /// The same by source.
    sources: HashMap<IpAddr, BTreeSet<Ticket>>,
}

/// A flow that has a place.
#[derive(Clone, Copy, Debug)]
struct Holder {
    flow: FourTuple,
    since: Instant,
}

impl Places {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            ages: BTreeMap::new(),
            sources: HashMap::new(),
        }
    }

    /// Takes another capacity; whoever has a place keeps it until somebody new comes.
    pub(super) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// Returns how many have one.
    pub(super) fn len(&self) -> usize {
        self.ages.len()
    }

    pub(super) fn enter(&mut self, flow: FourTuple, ticket: Ticket, since: Instant) {
        self.ages.insert(ticket, Holder { flow, since });
        let source = self.sources.entry(flow.client.ip()).or_default();
        source.insert(ticket);
    }

    pub(super) fn leave(&mut self, ticket: Ticket) {
        let Some(Holder { flow, .. }) = self.ages.remove(&ticket) else {
            return;
        };
        let source = flow.client.ip();
        if let Some(tickets) = self.sources.get_mut(&source) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.sources.remove(&source);
            }
        }
    }

    /// Returns whether there is a place for one more from `source`, or one whose holder has had its
    /// time.
    pub(super) fn has_one_for(&self, source: IpAddr, now: Instant) -> bool {
        self.holder_in_the_way(source, 0)
            .is_none_or(|(_, holder)| now.saturating_duration_since(holder.since) >= PLACE_TIME)
    }

    /// Takes the place of the oldest of those that are too many, with the newest from `source`.
    pub(super) fn take_excess(&mut self, source: IpAddr) -> Option<FourTuple> {
        let (ticket, holder) = self.holder_in_the_way(source, 1)?;
        self.leave(ticket);
        Some(holder.flow)
    }

    /// Returns whoever would have to go first for one more from `source`, where it has `newest` of
    /// them already.
    fn holder_in_the_way(&self, source: IpAddr, newest: usize) -> Option<(Ticket, Holder)> {
        let share = (self.capacity / 2).max(1) + newest;
        let tickets = self.sources.get(&source);
        match tickets.filter(|tickets| tickets.len() >= share) {
            Some(tickets) => tickets
                .first()
                .and_then(|ticket| Some((*ticket, *self.ages.get(ticket)?))),
            None if self.ages.len() >= self.capacity.max(1) + newest => {
                let oldest = self.ages.first_key_value();
                oldest.map(|(ticket, holder)| (*ticket, *holder))
            }
            None => None,
        }
    }

    /// Returns whether nobody has a place, by either order.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.ages.is_empty() && self.sources.is_empty()
    }

    /// Returns whether both orders name the same flows.
    #[cfg(test)]
    pub(super) fn is_consistent(&self) -> bool {
        let by_source: usize = self.sources.values().map(BTreeSet::len).sum();
        by_source == self.ages.len()
            && self.sources.values().all(|tickets| !tickets.is_empty())
            && self.ages.iter().all(|(ticket, holder)| {
                let source = self.sources.get(&holder.flow.client.ip());
                source.is_some_and(|tickets| tickets.contains(ticket))
            })
    }
}
