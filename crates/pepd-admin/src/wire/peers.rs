//! The helper boxes that this one has tunnels to, and whether they answer.

use serde::{Deserialize, Serialize};

/// One peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PeerState {
    /// `[[peer]] name`.
    pub name: String,
    /// Whether it answers.
    pub liveness: Liveness,
    /// The beginning of this state, in seconds since the Unix epoch; none before the first answer
    /// or silence.
    pub since: Option<f64>,
    /// The last probe's round-trip time through the tunnel, seconds.
    pub rtt: Option<f64>,
    /// Probes sent since the start.
    pub probes: u64,
    /// Probes that were not answered.
    pub lost: u64,
    /// Whether the tunnel's own address is not on this host now, as on a box that stands by for the one
    /// that has it: then nothing is known of the peer.
    #[serde(default)]
    pub elsewhere: bool,
}

/// The packets that the guard of one tunnel has dropped since the tunnel was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardDrops {
    /// `[[peer]] name`; none for IP in IP to this box that came from no peer, which the kernel
    /// refuses.
    pub peer: Option<String>,
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// ICMP errors from outside the tunnel, dropped as well, that said that the peer cannot be reached, which
    /// anybody can make up.
    #[serde(default)]
    pub unreachable: u64,
}

/// Whether a peer answers the probes through its tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Liveness {
    /// Not known: the first probes are under way.
    Unknown,
    /// It answers.
    Answering,
    /// Several probes in a row had no answer.
    Silent,
    /// Probing is switched off.
    Unprobed,
}
