//! What is known of a connection before its first byte.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::HandshakeMode;

/// The facts about a connection that are known when both its legs are there.
#[derive(Debug)]
pub struct FlowInfo {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The original destination.
    pub server: SocketAddr,
    /// The campus that the client is in.
    pub client_campus: Arc<str>,
    /// The campus that the server is in.
    pub server_campus: Arc<str>,
    /// The `[leg.NAME]` of the client leg.
    pub client_profile: Arc<str>,
    /// The `[leg.NAME]` of the upstream leg.
    pub upstream_profile: Arc<str>,
    /// The way in which it was established.
    pub handshake: HandshakeMode,
    /// The time at which it was accepted.
    pub accepted: Instant,
    /// How it has come from another box, if it has.
    pub came: Option<Arrival>,
}

/// How a connection has come from another box.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The other box.
    pub from: Arc<str>,
    /// The time for which it stood still.
    pub pause: Duration,
    /// The time since which it is served here.
    pub at: Instant,
}
