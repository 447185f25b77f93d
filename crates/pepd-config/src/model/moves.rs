//! The boxes that live connections move to, and come from.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

/// `[move]` and `[[neighbor]]`: live connections that move to other boxes, and come from them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moves {
    /// The address at which other boxes hand connections over; `None` takes none.
    pub listen: Option<SocketAddr>,
    /// The other boxes, in the order of the file.
    pub neighbors: Vec<Neighbor>,
}

impl Moves {
    /// Returns whether connections may come from other boxes.
    #[must_use]
    pub fn may_take(&self) -> bool {
        self.listen.is_some() && !self.neighbors.is_empty()
    }
}

/// `[[neighbor]]`: another box on a network of this one's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbor {
    /// Its own name, as its `[node]` has it.
    pub name: String,
    /// The address at which it takes connections.
    pub address: SocketAddr,
    /// Its address on a network of this box's, to which what still comes here for connections that have moved
    /// is sent on; `None` where none over IPv4 move.
    pub v4: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub v6: Option<Ipv6Addr>,
    /// The file with the key that both boxes have.
    pub key: PathBuf,
}
