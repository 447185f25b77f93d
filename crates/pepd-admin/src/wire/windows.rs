//! What connections begin with, over legs with `initial_window = "auto"`.

use serde::{Deserialize, Serialize};

/// What connections to one network begin with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetworkWindow {
    /// The `[leg.NAME]`.
    pub leg: String,
    /// The network.
    pub network: String,
    /// The segments that are sent before anything is acknowledged.
    pub segments: u32,
    /// Why they are so many.
    pub why: WindowReason,
    /// The segments that a connection there has under way in full swing; 0 where that was not measured yet.
    pub under_way: f64,
    /// The share of what is sent first that was lost, of late or at a window that was too large.
    pub loss: f64,
    /// Seconds since anything was learned last.
    pub unused: f64,
}

/// Why a window has its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum WindowReason {
    /// Nothing is known that says otherwise: it is the kernel's.
    Kernel,
    /// It is half of what a connection there has under way.
    Rate,
    /// Half of that would be more, and it is tried step by step.
    Trial,
    /// Of more than this too much was lost.
    Loss,
}
