//! The last connections of a kind, and how many of one client count.
//!
//! Whoever connects says what splitting is worth, and can say what is not so: by waiting before it acknowledges. One
//! client that connects more often than all others must not be all that is looked at. So where there is no room for
//! more, the oldest of the client that has most goes; and of what is there, no client has more of a say than a
//! quarter more than an equal share. With one client that is the last ones, and all of them.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use crate::figures::Arms;

/// Who begins connections: an address, over IPv6 a network of 64 bits, of which a host takes what addresses it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Client(u64);

impl Client {
    pub(crate) fn of(address: SocketAddr) -> Self {
        match address.ip() {
            // No network over IPv6 has the number: ::/32 is nobody's.
            IpAddr::V4(address) => Self(u32::from(address).into()),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
            }
        }
    }
}

/// The last connections of a kind, in the order in which they have ended.
#[derive(Clone, Debug)]
pub(crate) struct Sample<T> {
    entries: VecDeque<(Client, T)>,
    /// How many each client has, which is one at least.
    counts: BTreeMap<Client, usize>,
}

impl<T> Default for Sample<T> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            counts: BTreeMap::new(),
        }
    }
}

impl<T> Sample<T> {
    /// Adds one; where that is one more than there is room for, the oldest of the client that has most goes, of
    /// several such clients the oldest of all theirs.
    pub(crate) fn add(&mut self, client: Client, value: T, room: usize) {
        self.entries.push_back((client, value));
        *self.counts.entry(client).or_default() += 1;
        if self.entries.len() <= room {
            return;
        }
        let most = self.counts.values().max();
        let is_of_most = |(client, _): &(Client, T)| self.counts.get(client) == most;
        if let Some(oldest) = self.entries.iter().position(is_of_most) {
            self.remove(oldest);
        }
    }

    /// Lets go the first ones, as long as this is true of them.
    pub(crate) fn forget(&mut self, is_old: impl Fn(&T) -> bool) {
        while self.entries.front().is_some_and(|(_, value)| is_old(value)) {
            self.remove(0);
        }
    }

    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Gives all, the oldest first, with whose they are.
    pub(crate) fn entries(&self) -> impl DoubleEndedIterator<Item = (Client, &T)> {
        self.entries.iter().map(|(client, value)| (*client, value))
    }

    fn clients(&self) -> impl Iterator<Item = Client> {
        self.counts.keys().copied()
    }

    fn remove(&mut self, place: usize) {
        let Some((client, _)) = self.entries.remove(place) else {
            return;
        };
        if let Some(count) = self.counts.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&client);
            }
        }
    }

    /// Gives the last ones of each client, no more of any than counts, the oldest first.
    fn counted(&self, is_of_several: bool) -> Vec<(Client, &T)> {
        let most = self.most_of_one(is_of_several);
        let mut taken: BTreeMap<Client, usize> = BTreeMap::new();
        let newest_first = self.entries.iter().rev().filter(|(client, _)| {
            let of_client = taken.entry(*client).or_default();
            *of_client += 1;
            *of_client <= most
        });
        let mut counted: Vec<_> = newest_first.map(|(of, value)| (*of, value)).collect();
        counted.reverse();
        counted
    }

    /// Returns how many of one client count, so that none is more than a quarter more than an equal share of what does. An equal
    /// share would have all wait for the one that connects least.
    fn most_of_one(&self, is_of_several: bool) -> usize {
        // Who is alone here only because of the others none has ended yet has no more than who is one of two.
        let clients = self.counts.len().max(1 + usize::from(is_of_several));
        let (mut most, mut counted) = (0, 0);
        loop {
            let have_more = self.counts.values().filter(|count| **count > most).count();
            counted += have_more;
            if have_more == 0 || 4 * (most + 1) * clients > 5 * counted {
                return most;
            }
            most += 1;
        }
    }
}

impl<T> Arms<Sample<T>> {
    /// Gives what counts of each kind.
    pub(crate) fn counted(&self) -> Arms<Vec<(Client, &T)>> {
        let is_of_several = !self.is_of_one();
        Arms {
            split: self.split.counted(is_of_several),
            unsplit: self.unsplit.counted(is_of_several),
        }
    }

    /// Gives all of each kind.
    pub(crate) fn all(&self) -> Arms<Vec<(Client, &T)>> {
        Arms {
            split: self.split.entries().collect(),
            unsplit: self.unsplit.entries().collect(),
        }
    }

    /// Returns whether all are one client's.
    pub(crate) fn is_of_one(&self) -> bool {
        self.only_client().is_some()
    }

    /// Returns whose all are, if they are one client's.
    pub(crate) fn only_client(&self) -> Option<Client> {
        let mut clients = self.split.clients().chain(self.unsplit.clients());
        let first = clients.next()?;
        clients.all(|client| client == first).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Adds one of each of these clients, each with its place in the row.
    fn sample(clients: &[u64], room: usize) -> Sample<usize> {
        let mut sample = Sample::default();
        for (place, client) in clients.iter().enumerate() {
            sample.add(Client(*client), place, room);
        }
        sample
    }

    fn values(sample: &Sample<usize>) -> Vec<usize> {
        sample.entries().map(|(_, place)| *place).collect()
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let [one, same, other, v4, other_v4] = [
            "[2001:db8::1]:1",
            "[2001:db8::ffff:1]:2",
            "[2001:db8:0:1::1]:1",
            "10.1.0.2:1",
            "10.1.0.3:1",
        ]
        .map(|address| Client::of(address.parse().unwrap()));
        assert_eq!(one, same);
        assert!(one != other && v4 != other_v4 && v4 != one);
    }

    #[test]
    fn of_one_client_the_last_ones_are_kept_and_all_count() {
        let sample = sample(&[7; 50], 20);
        assert_eq!(values(&sample), (30..50).collect::<Vec<_>>());
        assert_eq!(sample.counted(false).len(), 20);
    }

    #[test]
    fn whoever_connects_most_makes_room() {
        // One comes ten times, then two others by turns, and then the first again.
        let row = [&[1; 10][..], &[2, 3, 2, 3], &[1; 20]].concat();
        let sample = sample(&row, 10);
        let of = |client| sample.counts.get(&Client(client)).copied();
        assert_eq!([of(1), of(2), of(3)], [Some(6), Some(2), Some(2)]);
        // Its last ones.
        assert_eq!(values(&sample)[4..], [28, 29, 30, 31, 32, 33]);
        // Of which no more count than a quarter more than a third of what does.
        assert_eq!(sample.counted(true).len(), 6);
    }

    #[test]
    fn who_is_alone_of_one_kind_only_does_not_count_there() {
        let arms = Arms {
            split: sample(&[1; 30], 100),
            unsplit: sample(&[1, 1, 2, 1, 3, 3, 2], 100),
        };
        let counted = arms.counted();
        assert_eq!((counted.split.len(), counted.unsplit.len()), (0, 6));
        assert!(!arms.is_of_one());
    }

    proptest! {
        /// What anybody has is a fair share, and whoever has less than that has all that there is of it.
        #[test]
        fn everybody_has_a_fair_share(
            row in prop::collection::vec(0u64..12, 0..300),
            room in 1usize..100,
        ) {
            let sample = sample(&row, room);
            prop_assert_eq!(sample.len(), row.len().min(room));
            let came = |client: u64| row.iter().filter(|it| **it == client).count();
            let most = sample.counts.values().max().copied().unwrap_or(0);
            for client in 0..12 {
                let has = sample.counts.get(&Client(client)).copied().unwrap_or(0);
                prop_assert!(has >= came(client).min(most.saturating_sub(1)), "{client}: {has} of {most}");
            }
            let counted = sample.counted(false);
            let clients = sample.counts.len();
            for client in 0..12 {
                let of_one = counted.iter().filter(|(of, _)| *of == Client(client)).count();
                prop_assert!(4 * of_one * clients <= 5 * counted.len());
            }
            prop_assert!(counted.iter().map(|(_, place)| **place).is_sorted());
            prop_assert!(counted.len() >= clients);
        }
    }
}
