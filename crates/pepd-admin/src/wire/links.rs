//! The links under the legs, and whether they are there.

use pepd_telemetry::LinkReport;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// The link under one leg.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LinkState {
    /// The `[leg.NAME]`.
    pub leg: String,
    /// Whether it is there.
    pub state: LinkReport,
    /// What tells by the configuration: `interface NAME`, `peer NAME`, `dlep NAME`, or `pepd link` alone.
    pub source: String,
    /// What has told of the last change; none before the first.
    #[serde(default)]
    pub by: Option<String>,
    /// When it is taken for up if nothing else is heard, in seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_at: Option<f64>,
    /// Whether it is said to be up and has to be until then, because it flaps.
    #[serde(default)]
    pub flaps: bool,
    /// The beginning of this state, in seconds since the Unix epoch; none before the first change.
    pub since: Option<f64>,
    /// Changes of the state since the start.
    pub changes: u64,
    /// New connections that wait until it is there.
    #[serde(default)]
    pub waiting: u64,
    /// The modem that tells, where one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modem: Option<ModemState>,
    /// The last times for which it was gone, the oldest first.
    #[serde(default)]
    pub outages: Vec<Outage>,
}

/// What a modem says by DLEP (RFC 8175).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModemState {
    /// Where there is a session with it; none while there is none.
    pub session: Option<String>,
    /// Sessions since the start.
    pub sessions: u64,
    /// The rate at which packets go out over the link at present, in bits a second.
    pub transmit_rate: Option<u64>,
    /// The rate at which they come in, in bits a second.
    pub receive_rate: Option<u64>,
    /// The time that a packet takes over the link, in seconds.
    pub latency: Option<f64>,
}

/// A time for which a link was gone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Outage {
    /// Its beginning, in seconds since the Unix epoch.
    pub begun: f64,
    /// Its end, in the same way; none while it lasts.
    pub ended: Option<f64>,
}

/// What is held of connections that stay end to end while links are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Held {
    /// Connections of which something is held.
    pub connections: u64,
    /// ACKs that wait, the parts of one counted like them.
    pub acks: u64,
    /// Packets that are kept.
    pub packets: u64,
    /// The bytes of these.
    pub bytes: u64,
    /// ACKs that have waited since the start.
    pub acks_total: u64,
    /// Parts of ACKs that were made.
    pub parts_total: u64,
    /// Packets that have been kept.
    pub packets_total: u64,
    /// Packets that were not kept because their receiver, or what is kept, has the same.
    pub repeated_total: u64,
    /// Packets that were not held because there was no room.
    pub beyond_total: u64,
}

/// Which link something is said of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LinkQuery {
    /// That under this leg.
    pub leg: String,
    /// The seconds after which it will be there again, from 0.001 to 86,400; only of one that is going down.
    #[serde(
        rename = "for",
        default,
        deserialize_with = "seconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub seconds: Option<f64>,
}

/// Reads seconds of a query, where everything is text.
fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    let seconds = String::deserialize(from)?.parse();
    seconds
        .map(Some)
        .map_err(|_| D::Error::custom("seconds are expected, without a unit, such as 10"))
}
