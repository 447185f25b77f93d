//! What the daemon tells about itself as a whole.

use pepd_telemetry::{CountedFailure, LegState, PairSnapshot};
use serde::{Deserialize, Serialize};

use super::buffers::AutoBuffers;
use super::chosen::ChosenControl;
use super::confinement::Confinement;
use super::links::{Held, LinkState};
use super::moves::MoveCounts;
use super::peers::{GuardDrops, PeerState};
use super::rates::FoundRate;
use super::ready::Readiness;
use super::survival::Survival;
use super::windows::NetworkWindow;
use super::worth::Worth;

/// The version of every value that the API gives.
pub const API_VERSION: u32 = 1;

/// The daemon as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Status {
    /// [`API_VERSION`].
    pub api: u32,
    /// The daemon's version.
    pub version: String,
    /// `[node] name`.
    pub node: String,
    /// The state it is in.
    pub state: DaemonState,
    /// The time at which it started, in seconds since the Unix epoch.
    pub started: f64,
    /// Seconds since then.
    pub uptime: f64,
    /// Worker threads.
    pub workers: usize,
    /// Whether connections are best led here; none from a daemon that does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Readiness>,
    /// What has become of the reload that was asked for last; none before the first.
    #[serde(default)]
    pub reload: Option<LastReload>,
    /// What is the matter with the kernel state (it cannot be looked at, or not be put back), as of
    /// some seconds ago; none if nothing is.
    #[serde(default)]
    pub trouble: Option<String>,
    /// What the daemon may still do; none from a daemon that does not say.
    #[serde(default)]
    pub confinement: Option<Confinement>,
    /// What its processes before this one have died of; none from a daemon that does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survival: Option<Survival>,
    /// Use of each resource that is limited.
    pub limits: Vec<LimitUse>,
    /// Everything counted since the start, by name.
    pub counters: Vec<CountedReason>,
    /// SYNs between campuses that the kernel routed, by reason, as of some seconds ago. The daemon
    /// has not seen them, and a client that repeats its SYN counts again. The names are those of
    /// the counters in the nft table.
    #[serde(default)]
    pub routed: Vec<CountedReason>,
    /// Connections that ended with an error, by leg and errno. Their sums are the counters
    /// `client_failed` and `upstream_failed`, but for clients that left before there was an
    /// upstream leg: these are in `client_failed` alone.
    #[serde(default)]
    pub failures: Vec<CountedFailure>,
    /// The campuses, as configured.
    pub campuses: Vec<CampusSnapshot>,
    /// The campus pairs that had connections.
    pub pairs: Vec<PairSnapshot>,
    /// The helper boxes that this one has tunnels to.
    pub peers: Vec<PeerState>,
    /// The packets that the guards of the tunnels to them have dropped, as of some seconds ago.
    #[serde(default)]
    pub guards: Vec<GuardDrops>,
    /// The links under the legs, as far as something tells of them.
    #[serde(default)]
    pub links: Vec<LinkState>,
    /// The legs that had connections.
    #[serde(default)]
    pub legs: Vec<LegState>,
    /// The rates that were found for the legs that ask for that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<FoundRate>,
    /// The congestion controls that are chosen, for the legs that ask for that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chosen: Vec<ChosenControl>,
    /// The buffers of the legs with `buffer = "auto"`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buffers: Vec<AutoBuffers>,
    /// What connections begin with, over the legs with `initial_window = "auto"`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<NetworkWindow>,
    /// What is held of connections that stay end to end; none where no rule asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// What splitting is worth; none where it is not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worth: Option<Worth>,
    /// What has moved to other boxes, and come from them; none where the configuration has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moves: Option<MoveCounts>,
    /// What stands in the way of connections, or would, by what was found on the host.
    #[serde(default)]
    pub alarms: Vec<Alarm>,
    /// Advice that follows from the figures, most important first.
    pub advice: Vec<String>,
}

/// A reload of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LastReload {
    /// How far it has come.
    pub state: ReloadState,
    /// The time since which that is so, in seconds since the Unix epoch.
    pub since: f64,
    /// The reason why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How far a reload has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ReloadState {
    /// It is under way: what was in force before is.
    Underway,
    /// What the file says is in force.
    Done,
    /// What was in force before still is.
    Refused,
}

/// The state of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DaemonState {
    /// New connections are split.
    Splitting,
    /// A limit is reached: new connections are routed, unsplit, for now.
    Full,
    /// SYNs to many destinations come that nobody will answer for: new connections are routed,
    /// unsplit, for a second at a time.
    Flooded,
    /// Split connections do not come through this host: new connections are routed, unsplit, until
    /// what stands in the way is gone. [`Status::alarms`] says what it is.
    Blocked,
    /// Split connections did not come through: new ones are split to see whether they do now, and
    /// the next one that comes through ends the doubt.
    Trial,
    /// It ends: new connections are routed, those that there are may finish.
    Draining,
}

impl DaemonState {
    /// All states, in the order in which a daemon may pass them.
    pub const ALL: [Self; 6] = [
        Self::Splitting,
        Self::Full,
        Self::Flooded,
        Self::Blocked,
        Self::Trial,
        Self::Draining,
    ];

    /// Gives its name, as in JSON and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Splitting => "splitting",
            Self::Full => "full",
            Self::Flooded => "flooded",
            Self::Blocked => "blocked",
            Self::Trial => "trial",
            Self::Draining => "draining",
        }
    }
}

/// Something limited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitUse {
    /// The resource: `connections`, `pending`, `descriptors`, `pipes`, `memory` (in bytes).
    pub name: String,
    /// The number in use.
    pub used: u64,
    /// The most there may be.
    pub limit: u64,
}

/// Something that stands in the way of connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Alarm {
    /// What kind of thing it is: one of [`Alarm::CAUSES`].
    pub cause: String,
    /// What is the matter.
    pub what: String,
    /// What to do about it.
    pub cure: String,
}

impl Alarm {
    /// The causes that there are.
    pub const CAUSES: [&str; 8] = [
        "input",
        "output",
        "routing",
        "source_validation",
        "backlog",
        "conntrack",
        "forwarding",
        "unknown",
    ];
}

/// A count of something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CountedReason {
    /// The counter's name: connections by outcome, bypasses, refusals and drops by reason.
    pub name: String,
    /// The number of times since the start.
    pub count: u64,
    /// The meaning in words.
    pub meaning: String,
}

/// One campus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CampusSnapshot {
    /// `[[campus]] name`.
    pub name: String,
    /// Its addresses.
    pub prefixes: Vec<String>,
    /// `local`, `routing`, or the peer's name.
    pub via: String,
    /// The `[leg.NAME]` towards it.
    pub leg: String,
}
