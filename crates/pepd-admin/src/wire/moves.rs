//! Connections that move to other boxes, and come from them.

use std::net::SocketAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Which connections are to move, and where to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MoveQuery {
    /// The `[[neighbor]]`.
    pub to: String,
    /// Those between two campuses, `a:b`, or with an end in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub campus: Option<String>,
    /// Those whose client is one of these addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub source: Option<IpNet>,
    /// Those with these ids, with commas between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<String>,
    /// Whether nothing is to move: it is told what would.
    #[serde(default)]
    pub dry_run: bool,
}

/// Where connections go when the daemon drains.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DrainQuery {
    /// The `[[neighbor]]`; without one they finish here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// `POST /v1/move`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MoveReport {
    /// The `[[neighbor]]`.
    pub to: String,
    /// Whether nothing has moved: those under `moved` would.
    pub dry_run: bool,
    /// The connections that were meant.
    pub meant: u64,
    /// Those that have moved.
    pub moved: Vec<MovedConnection>,
    /// Those that are served here as before.
    pub stayed: Vec<StayedConnection>,
    /// Those that no box may serve any more: the other one was lost after it had been told to, or could not.
    pub lost: Vec<MovedConnection>,
    /// Those that were not tried: there are more than one request moves.
    pub left: u64,
    /// Of the ids that were named, those of no connection that is here.
    #[serde(default)]
    pub unknown: Vec<u64>,
}

/// A connection that has moved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MovedConnection {
    /// The id that it had here.
    pub id: u64,
    /// Its client.
    pub client: SocketAddr,
    /// Its server.
    pub server: SocketAddr,
    /// The seconds for which it stood still.
    pub pause: f64,
}

/// A connection that stays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StayedConnection {
    /// Its id.
    pub id: u64,
    /// Its client.
    pub client: SocketAddr,
    /// Its server.
    pub server: SocketAddr,
    /// Why.
    pub why: String,
}

/// What has moved since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MoveCounts {
    /// To and from each `[[neighbor]]`.
    pub neighbors: Vec<NeighborMoves>,
    /// Who would hand connections over or ask about them, and was refused: without the key, with what was said
    /// before, or while too many others did.
    pub refused: u64,
    /// The packets that came here for connections that have moved, and were sent on, as of some seconds ago.
    pub sent_on: u64,
}

/// What has moved to and from one neighbor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NeighborMoves {
    /// The `[[neighbor]]`.
    pub neighbor: String,
    /// Connections that have moved there.
    pub given: u64,
    /// Connections that have come from there.
    pub taken: u64,
    /// Connections that were lost on the way there.
    pub lost: u64,
    /// The longest time that any stood still on its way there, in seconds.
    pub longest_pause: f64,
}
