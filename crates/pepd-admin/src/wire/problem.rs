//! Why something that was asked is not answered.

use serde::{Deserialize, Serialize};

/// A request that is refused: what went wrong, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[error("{what}; {cure}")]
pub struct Problem {
    /// A sentence on what went wrong.
    pub what: String,
    /// A sentence on what would be right.
    pub cure: String,
    #[serde(skip)]
    pub(crate) status: u16,
}

/// The body of every answer that is not 2xx.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    /// The problem.
    pub error: Problem,
}
