//! What is known of the links, for whoever asks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use pepd_admin::wire::{FlowSnapshot, LinkReport, LinkState};
use pepd_relay::Observer;

use super::link::seconds;

/// The seconds for which advice looks at what waits.
const ADVISED: f64 = 10.0;

/// The seconds after an outage in which a connection may take it for a round trip (docs/outages.md).
const SETTLES: f64 = 3.0;

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

    /// Gives the legs whose links were gone in the time for which what waits is advised on.
    pub fn away(&self) -> Vec<String> {
        let now = seconds(SystemTime::now());
        let links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let away = links.iter().filter(|link| was_away(link, ADVISED, now));
        away.map(|link| link.leg.clone()).collect()
    }

    /// Returns whether the link of a leg was gone in the last second, or so shortly before it that its connections
    /// may still show that as their round trip.
    pub fn was_gone(&self, leg: &str) -> bool {
        let now = seconds(SystemTime::now());
        let links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let link = links.iter().find(|link| link.leg == leg);
        link.is_some_and(|link| was_away(link, 1.0 + SETTLES, now))
    }

    /// Gives the same as [`Self::get`], and how many wait for each.
    pub fn seen_by(&self, observer: &Observer) -> Vec<LinkState> {
        let mut links = self.get();
        for link in &mut links {
            link.waiting = observer.newcomers(&link.leg);
        }
        links
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

fn was_away(link: &LinkState, within: f64, now: f64) -> bool {
    // One that came back in the future did so before the clock was set.
    let came_back = |since: f64| (0.0..within).contains(&(now - since));
    link.state != LinkReport::Up || link.since.is_some_and(came_back)
}

#[cfg(test)]
mod tests {
    use pepd_admin::fixture;

    use super::*;

    #[test]
    fn a_link_that_came_back_is_away_for_a_while() {
        let mut link = fixture::status(1).links.remove(0);
        let mut away = |state, since| {
            (link.state, link.since) = (state, since);
            was_away(&link, 3.0, 1000.0)
        };
        assert!(away(LinkReport::Gone, Some(1.0)) && away(LinkReport::GoingDown, None));
        assert!(away(LinkReport::Up, Some(998.0)));
        assert!(!away(LinkReport::Up, Some(996.0)) && !away(LinkReport::Up, Some(1001.0)));
        assert!(!away(LinkReport::Up, None));
    }
}
