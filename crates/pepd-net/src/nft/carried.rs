//! What one table hands on to the next.

use std::collections::BTreeMap;

use super::names::DynamicSet;
use crate::prefix::Family;

/// The state that a table passes on to the one that takes its place, so that a reload neither
/// closes the gate nor starts the counters again.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Counter to (packets, bytes).
    pub(crate) counters: BTreeMap<String, (u64, u64)>,
    /// Dynamic set to its elements, in nft syntax.
    pub(crate) elements: BTreeMap<String, Vec<String>>,
    /// The families that have a table of their own, which goes unless the next plan has one too.
    pub(crate) families: Vec<Family>,
}

impl Carried {
    /// Keeps what is true whichever daemon has made the table: the clients repeat their SYNs.
    pub(crate) fn of_any_daemon(mut self) -> Carried {
        self.counters.clear();
        self.elements
            .retain(|set, _| set == DynamicSet::RoutedSyns.name());
        self
    }

    /// Gives the elements of a set; none if the earlier table had none.
    pub(crate) fn elements_of(&self, set: DynamicSet) -> &[String] {
        self.elements.get(set.name()).map_or(&[][..], Vec::as_slice)
    }
}
