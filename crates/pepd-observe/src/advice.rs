//! What the figures say about what could be better.

use crate::{FlowSnapshot, PairSnapshot};

/// What is configured of a leg, as far as advice is about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegFacts {
    /// `[leg.NAME]`.
    pub name: String,
    /// Its congestion control, where one is configured.
    pub congestion: Option<String>,
    /// Bytes that each direction may hold, where configured.
    pub buffer: Option<u64>,
    /// The pacing ceiling in bits per second, where configured.
    pub rate: Option<u64>,
}

/// Sentences for an operator, the most important first; none where the figures support none.
pub fn advise(_pairs: &[PairSnapshot], _flows: &[FlowSnapshot], _legs: &[LegFacts]) -> Vec<String> {
    Vec::new()
}
