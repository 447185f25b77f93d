//! The legs, and which part of a leg's history is asked for.

use pepd_telemetry::{HistoryStep, LegState};
use serde::{Deserialize, Serialize};

/// `GET /v1/legs`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LegList {
    /// The legs that had connections, by name.
    pub legs: Vec<LegState>,
}

/// A query for a part of a leg's history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LegHistoryQuery {
    /// The length of a step: seconds, unless it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<HistoryStep>,
    /// Points after this time only, in seconds since the Unix epoch: what has come since the last one that
    /// is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<f64>,
}
