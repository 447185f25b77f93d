//! What the daemon measures.

use pepd_packet::PerMyriad;

/// `[measure]`: what the daemon measures beside what it sees of split connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measure {
    /// The share of the connections that would be split which is routed instead, and watched, to see what
    /// splitting is worth; `None` is none.
    pub unsplit: Option<PerMyriad>,
}
