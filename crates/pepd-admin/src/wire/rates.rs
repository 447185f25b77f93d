//! The rates that legs were found to have.

use pepd_telemetry::RateLimit;
use serde::{Deserialize, Serialize};

/// What is known of the path of a leg with `congestion = "find-rate"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FoundRate {
    /// The `[leg.NAME]`.
    pub leg: String,
    /// How far it is found.
    pub state: RateState,
    /// The rate at which all connections may send together just now, in bits of IP packets a second.
    pub rate: u64,
    /// What the path is taken to carry, in the same unit.
    pub capacity: u64,
    /// The share of packets that is lost on the path, from 0 to 1, at whatever rate they are sent.
    pub loss: f64,
    /// The time that packets wait before the narrowest place, in seconds.
    pub queue: f64,
    /// The least round trip of the last ten seconds in which there was one, in seconds.
    pub rtt: Option<f64>,
    /// What limited the rate for most of the last second; none while nothing is sent.
    #[serde(default)]
    pub limit: Option<RateLimit>,
    /// The connections whose own path behind the leg is narrower than their share, and which are kept to what
    /// it carries; 0 while nothing is sent.
    #[serde(default)]
    pub narrow: u64,
}

/// How far a leg's rate is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RateState {
    /// Nothing is sent.
    Idle,
    /// It is raised until the path carries no more.
    Looking,
    /// It is found, and followed.
    Found,
}

impl RateState {
    /// Returns its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Looking => "looking",
            Self::Found => "found",
        }
    }
}
