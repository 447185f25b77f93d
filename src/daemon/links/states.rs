//! What is known of the links, for whoever asks.

use std::sync::{Arc, Mutex, PoisonError};

use pepd_admin::wire::{FlowSnapshot, LinkReport, LinkState};

/// What is known of each link, for whoever asks; it follows a reload.
#[derive(Debug, Clone, Default)]
pub struct LinkStates(Arc<Mutex<Vec<LinkState>>>);

impl LinkStates {
    /// Says of both legs of each connection whether their links are there.
    pub fn report_on(&self, flows: &mut [FlowSnapshot]) {
        let links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for flow in flows {
            for leg in [&mut flow.client_leg, &mut flow.upstream_leg] {
                let link = links.iter().find(|link| link.leg == leg.profile);
                leg.link = link.map_or(LinkReport::Up, |link| link.state);
            }
        }
    }

    /// Takes what is known now.
    pub(super) fn set(&self, states: Vec<LinkState>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = states;
    }

    /// Gives what is known of the links of which something tells, or has told, in the order of their
    /// legs' names.
    pub fn get(&self) -> Vec<LinkState> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
