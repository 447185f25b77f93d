//! The short answers: parts of the status by themselves, and the index.

use serde::{Deserialize, Serialize};

use super::peers::PeerState;
use super::status::{CountedReason, LimitUse};

/// `GET /v1/peers`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PeerList {
    /// The helper boxes that this one has tunnels to.
    pub peers: Vec<PeerState>,
}

/// `GET /v1/limits`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitList {
    /// Use of each resource that is limited.
    pub limits: Vec<LimitUse>,
}

/// `GET /v1/counters`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CounterList {
    /// Everything counted since the start.
    pub counters: Vec<CountedReason>,
}

/// `GET /v1`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Index {
    /// [`API_VERSION`](super::API_VERSION).
    pub api: u32,
    /// The addresses that answer GET.
    pub get: Vec<String>,
    /// The addresses that take POST, where control requests are taken.
    pub post: Vec<String>,
}

/// `POST /v1/reload`, `POST /v1/drain`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Done {
    /// A sentence on what was done.
    pub done: String,
    /// What whoever asked should know beside: warnings, and what has not changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}
