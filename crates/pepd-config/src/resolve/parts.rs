//! The parts of a configuration, before it is known which box it is for.

use super::node::NodeDraft;
use crate::model::{Admin, Campus, Capture, Config, Leg, Limits, Log, Measure, Modem, Moves, Rule};

/// The parts of a configuration, before it is known which box it is for.
pub(super) struct Parts<'t> {
    pub(super) node: NodeDraft<'t>,
    pub(super) capture: Capture,
    pub(super) limits: Limits,
    pub(super) campuses: Vec<Campus>,
    pub(super) legs: Vec<Leg>,
    pub(super) modems: Vec<Modem>,
    pub(super) rules: Vec<Rule>,
    pub(super) measure: Measure,
    pub(super) moves: Moves,
    pub(super) admin: Admin,
    pub(super) log: Log,
}

impl Parts<'_> {
    /// Returns the configuration of the box with this name, which has no peers yet.
    pub(super) fn config(&self, name: &str, campuses: Vec<Campus>) -> Config {
        Config {
            node: self.node.named(name),
            capture: self.capture.clone(),
            limits: self.limits,
            campuses,
            peers: Vec::new(),
            legs: self.legs.clone(),
            modems: self.modems.clone(),
            rules: self.rules.clone(),
            measure: self.measure,
            moves: self.moves.clone(),
            admin: self.admin.clone(),
            log: self.log,
        }
    }
}
