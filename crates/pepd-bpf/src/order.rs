//! What is said to a leg's control, and what it says: the types of the program
//! (`src/bpf/leg_rate.bpf.c`) in its order, all of them 64 bits wide.

/// The most epochs that are open at once (`OPEN` in the program).
pub const EPOCHS: usize = 64;

/// What a leg's control is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// What all connections may send together, in bytes of IP packets a second; 0 for the rate of their
    /// sockets.
    pub rate: u64,
    /// The number of the first of the last epochs in a row in which there should be no queue.
    pub empty: u64,
    /// How many these are.
    pub empties: u64,
    /// By how much a round trip may be longer than the least of its connection then, in µs: the least one is sure after that.
    pub slack: u64,
    /// The longest least round trip of a connection that is near, in µs: what others' acknowledgements say is not counted.
    pub near: u64,
    /// What that was before.
    pub near_before: u64,
    /// The number of the first epoch that it is not that any more.
    pub near_since: u64,
    /// Another number each time that nobody listens until something is sent; 0 while somebody does.
    pub nap: u64,
    /// When epochs began, in µs of the monotonic clock, by their numbers modulo [`EPOCHS`].
    pub began: [u64; EPOCHS],
    /// The number of the epoch that goes on.
    pub number: u64,
}

impl Default for Order {
    fn default() -> Self {
        Self {
            rate: 0,
            empty: 0,
            empties: 0,
            slack: 0,
            near: u64::MAX,
            near_before: u64::MAX,
            near_since: 0,
            nap: 0,
            began: [0; EPOCHS],
            number: 0,
        }
    }
}

impl Order {
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        let near = [self.near, self.near_before, self.near_since];
        [self.rate, self.empty, self.empties, self.slack]
            .into_iter()
            .chain(near)
            .chain([self.nap])
            .chain(self.began)
            .chain([self.number])
    }
}

/// The classes of connections by their least round trips (`CLASSES` in the program).
pub const CLASSES: usize = 16;

/// What a leg's control has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// By the last bits of the epochs' numbers, modulo [`EPOCHS`].
    pub epochs: Vec<Counts>,
    /// The bytes of IP packets that were sent by connections of each class: those of the first have a least round trip of less
    /// than 1024 µs, those of each other one up to twice as long a one as those before. The sums go on.
    pub by_class: [u64; CLASSES],
}

/// What was counted of an epoch. The sums go on from one epoch to the next that has the same place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of IP packets that were sent.
    pub sent: u64,
    /// Those of them that connections sent which are not near. What follows is of the others.
    pub far: u64,
    /// The bytes that were acknowledged.
    pub delivered: u64,
    /// The times since the epoch began at which they were, in µs, of each byte.
    pub delays: u64,
    /// The connections that had more to send than they were let, when that was last seen.
    pub flows: u64,
    /// Those that were kept to what their own path carries, which is less than their share.
    pub capped: u64,
    /// The number of the epoch that what follows is of, all in µs. A queueing delay is a round trip beyond
    /// the least of its connection.
    pub number: u64,
    /// Whether these delays are of connections whose least round trip is sure.
    pub is_sure: bool,
    /// The least queueing delay.
    pub least_queue: u64,
    /// That of the first packet to be acknowledged.
    pub first_queue: u64,
    /// That of the last one.
    pub last_queue: u64,
    /// The longest round trip.
    pub longest_rtt: u64,
    /// The shortest one.
    pub least_rtt: u64,
    /// By how much one was shorter than the least of its connection before, at most.
    pub revealed: u64,
    /// The longest least round trip of a connection that sent something, in µs.
    pub farthest: u64,
    /// The last 32 bits of the number of the epoch that this is of.
    pub farthest_of: u64,
}

impl Counts {
    pub(crate) const WORDS: usize = 14;

    pub(crate) fn from_words(words: &[u64; Self::WORDS]) -> Self {
        let [
            sent,
            far,
            delivered,
            delays,
            flows,
            capped,
            mark,
            least_queue,
            first_queue,
            last_queue,
            longest_rtt,
            least_rtt,
            revealed,
            farthest,
        ] = *words;
        Self {
            sent,
            far,
            delivered,
            delays,
            flows,
            capped,
            number: mark / 2,
            is_sure: mark % 2 == 1,
            least_queue,
            first_queue,
            last_queue,
            longest_rtt,
            least_rtt,
            revealed,
            farthest: farthest & u64::from(u32::MAX),
            farthest_of: farthest >> 32,
        }
    }
}
