//! What the daemon's processes before this one have died of.

use serde::{Deserialize, Serialize};

/// The deaths of the daemon's processes, each of which was followed by another process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Survival {
    /// How many there were, by what they died of.
    pub deaths: Vec<Deaths>,
    /// The process that a service manager knows, which has made this one.
    #[serde(default)]
    pub keeper: u32,
    /// The layout of what an upgrade hands over; a program of another one cannot take over.
    #[serde(default)]
    pub layout: u64,
    /// How the last one was followed; none where this process is the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Takeover>,
}

/// How many processes have died of one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Deaths {
    /// `crash`, `killed`, `hang` or `exit`; `upgrade`, and `upgrade_failed`: the other program did not
    /// come up, and the one before goes on.
    pub cause: String,
    /// How many.
    pub count: u64,
}

/// How this process has gone on with the connections of the one before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Takeover {
    /// What the other died of, by name.
    #[serde(default)]
    pub cause: String,
    /// What the other died of, in words.
    pub why: String,
    /// When this one went on, in seconds since the Unix epoch.
    pub time: f64,
    /// Seconds from the other's death to then.
    pub pause: f64,
    /// The connections that go on.
    pub connections: u64,
    /// Those that were reset, because they could not.
    pub lost: u64,
}

impl Survival {
    /// Returns how many processes have died.
    pub fn count(&self) -> u64 {
        self.deaths.iter().map(|deaths| deaths.count).sum()
    }
}
