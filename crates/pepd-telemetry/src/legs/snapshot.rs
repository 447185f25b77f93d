//! What is told of legs, as it is on the wire.

use serde::{Deserialize, Serialize};

/// A leg, as all its connections together have shown it. It is about what this box *sends* over the leg:
/// of what it receives, its sockets tell no round trips and no losses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LegState {
    /// The `[leg.NAME]`.
    pub leg: String,
    /// Bits of payload a second over the last ten seconds, what was sent again included.
    pub sent: f64,
    /// The share of the bytes sent in the last five minutes that were sent again, from 0 to 1; none where
    /// nothing was sent.
    pub resent: Option<f64>,
    /// Bytes of payload sent since the start, and those of them that were sent again.
    pub sent_bytes: u64,
    /// See `sent_bytes`.
    pub resent_bytes: u64,
    /// The seconds since the start in which it was busy: a connection had more to send than the leg took
    /// for most of the second, or more than three quarters of what it is known to carry were sent. Seconds in
    /// which its link was gone are none, nor the first ones after that.
    pub busy_seconds: f64,
    /// The least round trip of a connection in the last five minutes, in seconds: that of the idle leg.
    pub least_rtt: Option<f64>,
    /// The round trips of its busy seconds in the last five minutes; none where it was not busy.
    pub loaded_rtt: Option<LoadedRtt>,
    /// What it carried in these seconds; none where nothing new was sent in them.
    #[serde(default)]
    pub carried: Option<Carried>,
}

/// What a leg carried in its busy seconds of the last five minutes: what was sent, without what was sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Carried {
    /// The median of these seconds, in bits of payload a second.
    pub median: f64,
    /// The bytes of all of them.
    pub bytes: u64,
}

/// The round trips of a leg while it is busy: a sample for each second and connection that sent something
/// in it, whether that one had much to send or not. In seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoadedRtt {
    /// Half of them are longer.
    pub median: f64,
    /// One in twenty is longer.
    pub p95: f64,
    /// The median of how much longer they were than the least of the same connection: what load adds,
    /// wherever the connection goes.
    pub added: f64,
    /// The samples.
    pub samples: u64,
}

/// What limits the rate of a leg with `congestion = "find-rate"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RateLimit {
    /// Nothing that is known yet: it is raised to see whether the path carries more.
    #[default]
    Looking,
    /// The connections have less to send.
    Applications,
    /// The configured `rate`.
    Ceiling,
    /// The link is full: there is a queue before it.
    Link,
    /// The link is full, and others have their part of it.
    Others,
    /// What is too much is dropped at once: a policer, or a very short buffer.
    Drops,
}

impl RateLimit {
    /// All of them, in the order in which they are told.
    pub const ALL: [Self; 6] = [
        Self::Looking,
        Self::Applications,
        Self::Ceiling,
        Self::Link,
        Self::Others,
        Self::Drops,
    ];

    /// Gives its name, as in JSON and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Looking => "looking",
            Self::Applications => "applications",
            Self::Ceiling => "ceiling",
            Self::Link => "link",
            Self::Others => "others",
            Self::Drops => "drops",
        }
    }
}

/// A step of a leg's history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum HistoryStep {
    /// A second; ten minutes are kept.
    #[default]
    Second,
    /// A minute; a day is kept.
    Minute,
}

/// The last minutes, or the last day, of a leg.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LegHistory {
    /// The `[leg.NAME]`.
    pub leg: String,
    /// The length of a step.
    pub step: HistoryStep,
    /// A point for each step in which something was sent, the oldest first.
    pub points: Vec<LegHistoryPoint>,
}

/// One second of a leg, or one minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LegHistoryPoint {
    /// Its end, in seconds since the Unix epoch.
    pub time: f64,
    /// Bits of payload a second, what was sent again included.
    pub sent: f64,
    /// The share of it that was sent again, from 0 to 1.
    pub resent: f64,
    /// The part of it in which the leg was busy, from 0 to 1.
    pub busy: f64,
    /// The median of the connections' round trips, in seconds; the mean of the seconds' in a minute.
    pub rtt: Option<f64>,
    /// The round trip that one in twenty exceeds; the longest of the seconds' in a minute.
    pub slow_rtt: Option<f64>,
    /// The least round trip of the last five minutes.
    pub least_rtt: Option<f64>,
    /// What was known of the path; none without `congestion = "find-rate"`, and while it is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathPoint>,
}

/// What was known of a leg's path in a second, or a minute: means over the time. Rates are bits of IP
/// packets a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PathPoint {
    /// The rate at which all connections might send together.
    pub rate: f64,
    /// What the path was taken to carry.
    pub capacity: f64,
    /// The share of packets that was lost on the path, from 0 to 1.
    pub loss: f64,
    /// The time that packets waited before the narrowest place, in seconds.
    pub queue: f64,
    /// What limited the rate for most of the time.
    pub limit: RateLimit,
}
