//! What is known of the host that a configuration is read for.

use std::ops::RangeInclusive;

/// The facts about this host that a configuration has to fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// The ports that the kernel gives to outgoing connections: `net.ipv4.ip_local_port_range`.
    pub ephemeral_ports: RangeInclusive<u16>,
    /// The box of a fleet that this is, if somebody has said so. The file of a single box must be
    /// of this one.
    pub node: Option<String>,
    /// The host's name: which box of a fleet it is, where neither `node` nor the file says.
    pub host: Option<String>,
}

/// The boxes of a fleet that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// The box that the context names.
    This,
    /// Every box, in the order of the file.
    Every,
}
