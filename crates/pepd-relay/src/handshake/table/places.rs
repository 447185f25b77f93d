//! Who has a place in the table, and who has to go for the next one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
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

/// The places of a table: so many, of which one source may have half, and one destination three
/// quarters: who floods one leaves room for the others.
#[derive(Debug)]
pub(super) struct Places {
    capacity: usize,
    source_prefix: SourcePrefix,
    /// The flows with a place, the oldest first.
    ages: BTreeMap<Ticket, Holder>,
    /// The same by source.
    sources: Tickets<Source>,
    /// The same by destination.
    destinations: Tickets<IpAddr>,
}

/// The flows of each source or destination, the oldest first.
type Tickets<K> = HashMap<K, BTreeSet<Ticket>>;

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
            destinations: HashMap::new(),
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
        let of_destination = self.destinations.entry(flow.server.ip());
        of_destination.or_default().insert(ticket);
    }

    pub(super) fn leave(&mut self, ticket: Ticket) {
        let Some(Holder { flow, source, .. }) = self.ages.remove(&ticket) else {
            return;
        };
        take_out(&mut self.sources, &source, ticket);
        take_out(&mut self.destinations, &flow.server.ip(), ticket);
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
        let source = self.source_prefix.source_of(flow.client.ip());
        let ticket = oldest_beyond(&self.sources, &source, of_source)
            .or_else(|| oldest_beyond(&self.destinations, &flow.server.ip(), of_destination))
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
        names_all(&self.sources, self.ages.len())
            && names_all(&self.destinations, self.ages.len())
            && self.ages.iter().all(|(ticket, holder)| {
                let destination = holder.flow.server.ip();
                has(&self.sources, &holder.source, *ticket)
                    && has(&self.destinations, &destination, *ticket)
            })
    }
}

/// Takes a flow out of those of `key`.
fn take_out<K: Hash + Eq>(all: &mut Tickets<K>, key: &K, ticket: Ticket) {
    if let Some(tickets) = all.get_mut(key) {
        tickets.remove(&ticket);
        if tickets.is_empty() {
            all.remove(key);
        }
    }
}

/// Returns the oldest of those of `key`, where they are `share` or more.
fn oldest_beyond<K: Hash + Eq>(all: &Tickets<K>, key: &K, share: usize) -> Option<Ticket> {
    let tickets = all.get(key).filter(|tickets| tickets.len() >= share)?;
    tickets.first().copied()
}

/// Returns whether as many are named as there are, and nobody is named who has none.
#[cfg(test)]
fn names_all<K>(all: &Tickets<K>, flows: usize) -> bool {
    all.values().map(BTreeSet::len).sum::<usize>() == flows
        && all.values().all(|tickets| !tickets.is_empty())
}

/// Returns whether `key` has this one.
#[cfg(test)]
fn has<K: Hash + Eq>(all: &Tickets<K>, key: &K, ticket: Ticket) -> bool {
    all.get(key)
        .is_some_and(|tickets| tickets.contains(&ticket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_one_network_have_half_of_the_places() {
        let now = Instant::now();
        let mut places = Places::new(8, SourcePrefix::NETWORK);
        let client = |address: &str| address.parse::<IpAddr>().unwrap();
        let flow = |client_address: &str| FourTuple {
            client: (client(client_address), 1000).into(),
            server: (client("2001:db8:9::1"), 80).into(),
        };
        for host in 1..=4 {
            let flow = flow(&format!("2001:db8:1:2::{host}"));
            assert!(places.has_one_for(flow, now));
            places.enter(flow, Ticket(host), now);
        }
        assert!(!places.has_one_for(flow("2001:db8:1:2:a:b:c:d"), now));
        assert!(places.has_one_for(flow("2001:db8:1:3::1"), now));
        // Whoever has a place is counted as it was when it came.
        places.set_capacity(8, SourcePrefix::ADDRESS);
        assert!(places.has_one_for(flow("2001:db8:1:2:a:b:c:d"), now));
        (1..=4).for_each(|host| places.leave(Ticket(host)));
        assert!(places.is_empty());
    }
}
