//! What splitting is worth, as measured.

use serde::{Deserialize, Serialize};

/// What splitting is worth: connections that are split, beside some that are routed, chosen at random.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Worth {
    /// The share of connections that is routed for this, from 0 to 1.
    pub unsplit: f64,
    /// The connections of each kind without which nothing is compared.
    pub fewest: u64,
    /// The campus pairs of which a connection that was watched has ended.
    pub pairs: Vec<PairWorth>,
}

/// What splitting is worth from one campus to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PairWorth {
    /// The campus of the clients.
    pub client_campus: String,
    /// The campus of the servers.
    pub server_campus: String,
    /// What is compared.
    pub compared: Vec<Compared>,
    /// What becomes of new connections where that depends on what splitting is worth; none where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<WorthChoice>,
}

/// What becomes of new connections between two campuses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorthChoice {
    /// Whether most are split; else most are routed.
    pub splits: bool,
    /// Whether it is being found out what splitting is worth, for which half of them are measured.
    pub explores: bool,
    /// How often it has changed whether most are split.
    pub changes: u64,
}

/// Connections that were split beside some that were not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Compared {
    /// `first_byte`: from the client's SYN to the server's first byte. `up_to_10kB`, `up_to_100kB`, `up_to_1MB`:
    /// from the SYN until the client had acknowledged all, of so many bytes from the server. `longer`: the
    /// goodput of what is more.
    pub quantity: String,
    /// Those that were split.
    pub split: Measured,
    /// Those that were routed.
    pub unsplit: Measured,
    /// How they compare; none as long as there are too few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<GainInterval>,
}

/// Connections of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Measured {
    /// How many are compared, of the last 200 of the last day: of no client more than a fair share.
    pub connections: u64,
    /// Their median, in seconds, of `longer` in bits a second; none without connections.
    pub median: Option<f64>,
}

/// How many times as fast a connection is that is split: above 1 it pays.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GainInterval {
    /// The median over all pairs of one that was split and one that was not.
    pub factor: f64,
    /// The lower end of an interval that holds the true factor in 95 of 100 cases.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl GainInterval {
    /// Returns whether it can be said that splitting makes a difference.
    pub fn is_other_than_one(&self) -> bool {
        self.low > 1.0 || self.high < 1.0
    }
}
