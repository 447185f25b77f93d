//! The addresses of a connection.

use std::net::SocketAddr;

/// The addresses and ports of a connection's two ends (RFC 9293, section 3.3.1), as its client
/// has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FourTuple {
    /// The end that opens the connection.
    pub client: SocketAddr,
    /// The end that the client asks for.
    pub server: SocketAddr,
}

impl FourTuple {
    /// Returns the same connection as its other end would open it.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            client: self.server,
            server: self.client,
        }
    }
}
