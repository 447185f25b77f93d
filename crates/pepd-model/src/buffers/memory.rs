//! The memory that all connections have, and the part of one buffer.

/// What all connections may hold, and hold, at one moment.
///
/// As long as half of it is free, a buffer may have what its path needs, up to half of what is free:
/// who holds much is held back before who holds little, and the last part is never given away (the
/// dynamic threshold of A. K. Choudhury and E. L. Hahne, IEEE/ACM Transactions on Networking 6(2),
/// 1998). A sample comes once a second, and what is held cannot grow faster meanwhile than the links
/// carry. When less than half is free, no buffer may grow by more until the next sample than its share
/// of what is free among those that are active, so that all of them together stay within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The most that they may hold, in bytes.
    pub most: u64,
    /// What they hold, and are counted with.
    pub held: u64,
    /// The connections in which something happens.
    pub active: u64,
    /// All that there are.
    pub connections: u64,
}

impl Memory {
    /// The buffers of a connection that grow at a time: the one that receives and the one that sends
    /// on, of one direction.
    const GROWING: u64 = 2;

    /// Of a new connection nobody knows when it will be active, and the most of those that are idle
    /// could be at once: it begins with a part of its share.
    const OF_A_FIRST_SHARE: u64 = 4;

    /// What is neither held nor counted with.
    pub const fn free(&self) -> u64 {
        self.most.saturating_sub(self.held)
    }

    /// Whether less than half is free.
    pub const fn is_short(&self) -> bool {
        self.free() < self.most / 2
    }

    /// The size that a buffer of a new connection may have until it is sampled first.
    pub fn first_part(&self) -> u64 {
        let shares = Self::GROWING * Self::OF_A_FIRST_SHARE * self.connections.max(1);
        self.free() / shares
    }

    /// The size that a buffer may have that holds `held` bytes.
    pub fn part(&self, held: u64) -> u64 {
        let fair = self.free() / 2;
        if self.is_short() {
            let share = self.free() / (Self::GROWING * self.active.max(1));
            fair.min(held.saturating_add(share))
        } else {
            fair
        }
    }
}
