//! Who has a place in the table, and who has to go for the next one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use pepd_packet::{FourTuple, Source, SourcePrefix};

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
    source_prefix: SourcePrefix,
    /// The flows with a place, the oldest first.
    ages: BTreeMap<Ticket, Holder>,
    /// The same by source.
    sources: HashMap<Source, BTreeSet<Ticket>>,
}

/// A flow that has a place.
#[derive(Clone, Copy, Debug)]
struct Holder {
    flow: FourTuple,
    source: Source,
    since: Instant,
}

impl Places {
    pub(super) fn new(capacity: usize, source_prefix: SourcePrefix) -> Self {
        Self {
            capacity,
            source_prefix,
            ages: BTreeMap::new(),
            sources: HashMap::new(),
        }
    }

    /// Takes another capacity; whoever has a place keeps it until somebody new comes, and the source
    /// that it was counted for.
    pub(super) fn set_capacity(&mut self, capacity: usize, source_prefix: SourcePrefix) {
        self.capacity = capacity;
        self.source_prefix = source_prefix;
    }

    /// Returns how many have one.
    pub(super) fn len(&self) -> usize {
        self.ages.len()
    }

    pub(super) fn enter(&mut self, flow: FourTuple, ticket: Ticket, since: Instant) {
        let source = self.source_prefix.source_of(flow.client.ip());
        let holder = Holder {
            flow,
            source,
            since,
        };
        self.ages.insert(ticket, holder);
        self.sources.entry(source).or_default().insert(ticket);
    }

    pub(super) fn leave(&mut self, ticket: Ticket) {
        let Some(Holder { source, .. }) = self.ages.remove(&ticket) else {
            return;
        };
        if let Some(tickets) = self.sources.get_mut(&source) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.sources.remove(&source);
            }
        }
    }

    /// Returns whether there is a place for one more from the source of `client`, or one whose holder
    /// has had its time.
    pub(super) fn has_one_for(&self, client: IpAddr, now: Instant) -> bool {
        self.holder_in_the_way(client, 0)
            .is_none_or(|(_, holder)| now.saturating_duration_since(holder.since) >= PLACE_TIME)
    }

    /// Takes the place of the oldest of those that are too many, with the newest from the source of
    /// `client`.
    pub(super) fn take_excess(&mut self, client: IpAddr) -> Option<FourTuple> {
        let (ticket, holder) = self.holder_in_the_way(client, 1)?;
        self.leave(ticket);
        Some(holder.flow)
    }

    /// Returns whoever would have to go first for one more from the source of `client`, where it has
    /// `newest` of them already.
    fn holder_in_the_way(&self, client: IpAddr, newest: usize) -> Option<(Ticket, Holder)> {
        let share = (self.capacity / 2).max(1) + newest;
        let source = self.source_prefix.source_of(client);
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
                let source = self.sources.get(&holder.source);
                source.is_some_and(|tickets| tickets.contains(ticket))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_one_network_have_half_of_the_places() {
        let now = Instant::now();
        let mut places = Places::new(8, SourcePrefix::NETWORK);
        let client = |address: &str| address.parse::<IpAddr>().unwrap();
        for host in 1..=4 {
            let network = client(&format!("2001:db8:1:2::{host}"));
            assert!(places.has_one_for(network, now));
            let flow = FourTuple {
                client: (network, 1000).into(),
                server: (client("2001:db8:9::1"), 80).into(),
            };
            places.enter(flow, Ticket(host), now);
        }
        assert!(!places.has_one_for(client("2001:db8:1:2:a:b:c:d"), now));
        assert!(places.has_one_for(client("2001:db8:1:3::1"), now));
        // Whoever has a place is counted as it was when it came.
        places.set_capacity(8, SourcePrefix::ADDRESS);
        assert!(places.has_one_for(client("2001:db8:1:2:a:b:c:d"), now));
        (1..=4).for_each(|host| places.leave(Ticket(host)));
        assert!(places.is_empty());
    }
}
