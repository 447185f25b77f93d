//! What congestion control is chosen for a leg.

use serde::{Deserialize, Serialize};

/// What the new connections of a leg with `congestion = "auto"` have as their congestion control, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChosenControl {
    /// The `[leg.NAME]`.
    pub leg: String,
    /// `cubic`, `bbr` or `find-rate`.
    pub congestion: String,
    /// What it is chosen from.
    pub of: Vec<String>,
    /// The time since which that is so, in seconds since the Unix epoch.
    pub since: f64,
    /// Whether it is on trial: it is left again if it delivers no more than what was there before.
    pub trial: bool,
    /// How often it has changed.
    pub changes: u64,
    /// Why: `new` (nothing is known yet), `known` (it was so before pepd was started anew), `clean` (hardly
    /// anything is lost), `queue` (losses come with a queue), `no_queue` (they come without one), `others` (the link is shared), `no_better` (what was tried
    /// delivers no more), or `gone` (what was chosen cannot be had any more).
    pub reason: String,
    /// The same in words, with its figures.
    pub why: String,
}
