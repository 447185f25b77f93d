//! How much is held, and how much may be.

/// The most that is held. What is beyond goes on as if nothing held it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections.
    pub flows: usize,
    /// Packets of all of them: ACKs and others.
    pub packets: usize,
    /// Bytes that are kept of all of them.
    pub bytes: usize,
    /// Bytes that are kept of one: as much as its receiver has room for. The scale of its window is
    /// known only to who has seen its SYN, and so this is one for all.
    pub bytes_of_one: usize,
    /// Whether an ACK may be made several, which takes somebody who can send them.
    pub makes_parts: bool,
}

/// What is held now, and what has been until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Connections of which something is held.
    pub flows: usize,
    /// ACKs that are held, their parts counted like them.
    pub acks: usize,
    /// Packets that are kept.
    pub packets: usize,
    /// Their bytes.
    pub bytes: usize,
    /// ACKs that have been held.
    pub acks_total: u64,
    /// Parts of ACKs that have been made.
    pub parts_total: u64,
    /// Packets that have been kept.
    pub packets_total: u64,
    /// Packets that were not kept because their receiver, or what is kept, has the same.
    pub repeated_total: u64,
    /// Packets that were not held because of a limit.
    pub beyond_total: u64,
}

/// The oldest connections that are looked at for one of which nothing is held.
pub(crate) const LOOKED_AT: usize = 8;

/// What a packet takes besides options and data, in bytes.
pub(crate) const HEADERS: usize = 60;
