//! The memory that all connections have, and the part of one buffer.

/// What all connections may hold, and are counted with, at one moment.
///
/// A buffer may have up to half of what is free: who has much is held back before who has little, and
/// the last part is never given away (the dynamic threshold of A. K. Choudhury and E. L. Hahne,
/// IEEE/ACM Transactions on Networking 6(2), 1998).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The most that they may hold, in bytes.
    pub most: u64,
    /// What they are counted with.
    pub used: u64,
    /// Whether it is a limit that is kept, and so buffers count with their sizes; else only what they
    /// hold counts, and it is known once a second.
    pub promised: bool,
}

impl Memory {
    /// A new connection's buffers, of which there are four, have so small a part of what is free until
    /// it is sampled first: many come in the same second.
    const OF_A_FIRST: u64 = 64;

    /// The part of what is free that a new connection may cost that the kernel is left to.
    const OF_THE_KERNEL: u64 = 8;

    /// What is not counted with.
    pub const fn free(&self) -> u64 {
        self.most.saturating_sub(self.used)
    }

    /// Whether less than half is free.
    pub const fn is_short(&self) -> bool {
        self.free() < self.most / 2
    }

    /// Returns whether a new connection's four buffers, which cost so much at most, may be left to the
    /// kernel.
    pub const fn leaves_to_the_kernel(&self, cost: u64) -> bool {
        if self.promised {
            cost <= self.free() / Self::OF_THE_KERNEL
        } else {
            !self.is_short()
        }
    }

    /// The size that a buffer of a new connection may have until it is sampled first.
    pub const fn first_part(&self) -> u64 {
        self.free() / Self::OF_A_FIRST
    }

    /// The size that a buffer may have that is counted with `own` bytes: half of what is then left free,
    /// which is a third of what is free without it.
    pub const fn part(&self, own: u64) -> u64 {
        self.free().saturating_add(own) / 3
    }
}
