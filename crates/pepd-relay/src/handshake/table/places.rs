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

/// The places of a table: so many, of which one source may have half, and one destination three
/// quarters: who floods one leaves room for the others.
#[derive(Debug)]
pub(super) struct Places {
    capacity: usize,
    /// The flows with a place, the oldest first.
    ages: BTreeMap<Ticket, Holder>,
    /// The same by source.
    sources: Tickets,
    /// The same by destination.
    destinations: Tickets,
}

/// The flows of each address, the oldest first.
type Tickets = HashMap<IpAddr, BTreeSet<Ticket>>;

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
            destinations: HashMap::new(),
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
        for (address, tickets) in self.by_address(flow) {
            tickets.entry(address).or_default().insert(ticket);
        }
    }

    pub(super) fn leave(&mut self, ticket: Ticket) {
        let Some(Holder { flow, .. }) = self.ages.remove(&ticket) else {
            return;
        };
        for (address, all) in self.by_address(flow) {
            if let Some(tickets) = all.get_mut(&address) {
                tickets.remove(&ticket);
                if tickets.is_empty() {
                    all.remove(&address);
                }
            }
        }
    }

    fn by_address(&mut self, flow: FourTuple) -> [(IpAddr, &mut Tickets); 2] {
        [
            (flow.client.ip(), &mut self.sources),
            (flow.server.ip(), &mut self.destinations),
        ]
    }

    /// Returns whether there is a place for one more flow like this, or one whose holder has had its
    /// time.
    pub(super) fn has_one_for(&self, flow: FourTuple, now: Instant) -> bool {
        self.holder_in_the_way(flow, 0)
            .is_none_or(|(_, holder)| now.saturating_duration_since(holder.since) >= PLACE_TIME)
    }

    /// Takes the place of the oldest of those that are too many, with the newest, which is `flow`.
    pub(super) fn take_excess(&mut self, flow: FourTuple) -> Option<FourTuple> {
        let (ticket, holder) = self.holder_in_the_way(flow, 1)?;
        self.leave(ticket);
        Some(holder.flow)
    }

    /// Returns whoever would have to go first for one more like `flow`, where it has `newest` of
    /// the places already.
    fn holder_in_the_way(&self, flow: FourTuple, newest: usize) -> Option<(Ticket, Holder)> {
        let share = |part: usize| part.max(1) + newest;
        let of_source = share(self.capacity / 2);
        let of_destination = share((self.capacity * 3).div_ceil(4));
        let oldest = |all: &Tickets, address: IpAddr, share: usize| {
            let tickets = all.get(&address)?;
            (tickets.len() >= share).then(|| tickets.first().copied())?
        };
        let ticket = oldest(&self.sources, flow.client.ip(), of_source)
            .or_else(|| oldest(&self.destinations, flow.server.ip(), of_destination))
            .or_else(|| {
                let is_full = self.ages.len() >= share(self.capacity);
                is_full.then(|| self.ages.keys().next().copied())?
            })?;
        Some((ticket, *self.ages.get(&ticket)?))
    }

    /// Returns whether nobody has a place, by any order.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.ages.is_empty() && self.sources.is_empty() && self.destinations.is_empty()
    }

    /// Returns whether all orders name the same flows.
    #[cfg(test)]
    pub(super) fn is_consistent(&self) -> bool {
        let names_all = |all: &Tickets| {
            all.values().map(BTreeSet::len).sum::<usize>() == self.ages.len()
                && all.values().all(|tickets| !tickets.is_empty())
        };
        let has = |all: &Tickets, address: IpAddr, ticket| {
            all.get(&address).is_some_and(|of| of.contains(ticket))
        };
        names_all(&self.sources)
            && names_all(&self.destinations)
            && self.ages.iter().all(|(ticket, Holder { flow, .. })| {
                has(&self.sources, flow.client.ip(), ticket)
                    && has(&self.destinations, flow.server.ip(), ticket)
            })
    }
}
