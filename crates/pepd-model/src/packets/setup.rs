//! What is simulated.

use crate::law::Leg;

/// What is simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The legs, from the sender to the receiver: one at least, and none by bbr, which has no law.
    pub legs: Vec<Leg>,
    /// What is between each two; where one is missing, a box without limits.
    pub gaps: Vec<Gap>,
    /// Whether a window grows only while it is used, as Linux has it (RFC 7661). The paper's grow with each
    /// acknowledgement.
    pub validates: bool,
    /// Whether receivers delay acknowledgements: one for two packets, or after 40 ms.
    pub delays: bool,
    /// What may wait before a link, packets.
    pub queue: u32,
    /// Where the random numbers come from.
    pub seed: u64,
}

/// What a box between two legs holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// Its buffer, packets.
    pub buffer: u64,
    /// What counts against it.
    pub held: Held,
    /// What may be in the box beside that, handed over to the next leg's sender and not sent yet, packets
    /// (`TCP_NOTSENT_LOWAT`).
    pub unsent: u64,
}

/// What counts against a box's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Held {
    /// What is unread and what is under way: a kernel's receive window, from the byte that was read last.
    #[default]
    UnderWay,
    /// What has arrived: what comes while the buffer is full is let in, and acknowledged, when there is room.
    Arrived,
    /// What has arrived when an acknowledgement is sent: it advertises what is left, counted from the
    /// byte that it acknowledges, and nothing tells of room that comes later, but for a window that was closed.
    Advertised,
}

impl Held {
    /// All of them, with what they are called in tables.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::UnderWay, "under way"),
        (Self::Arrived, "arrived"),
        (Self::Advertised, "advertised"),
    ];
}

impl Gap {
    /// A box without limits.
    pub const OPEN: Self = Self {
        buffer: u64::MAX,
        held: Held::Arrived,
        unsent: 0,
    };

    /// A box with a buffer of so many packets.
    #[must_use]
    pub const fn new(buffer: u64, held: Held) -> Self {
        Self {
            buffer,
            held,
            unsent: 0,
        }
    }
}

impl Setup {
    /// Legs as Linux sends over them, with boxes between them.
    #[must_use]
    pub fn new(legs: &[Leg], gaps: &[Gap], seed: u64) -> Self {
        Self {
            legs: legs.to_vec(),
            gaps: gaps.to_vec(),
            validates: true,
            delays: false,
            queue: 1000,
            seed,
        }
    }
}
