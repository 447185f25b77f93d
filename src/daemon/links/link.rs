//! What is known of one link.

use std::collections::VecDeque;
use std::time::{Instant, SystemTime};

use pepd_admin::wire::{LinkReport, LinkState, ModemState, Outage};
use pepd_config::{LinkSource, Rate};

use super::noted::NotedLink;
use super::record::{Record, State};

/// What is known of the link under a leg.
pub(super) struct Link {
    pub(super) source: Option<LinkSource>,
    /// What the operator says that it carries, or else its modem.
    pub(super) rate: Option<Rate>,
    pub(super) record: Record,
    /// Whether it has been said that it flaps, since it changed last.
    pub(super) is_said_to_flap: bool,
    /// When it changed last, in seconds since the Unix epoch.
    pub(super) since: Option<f64>,
    /// Who told of the last change.
    pub(super) by: Option<String>,
    pub(super) changes: u64,
    pub(super) outages: VecDeque<Outage>,
    /// When it went last, or was about to, and when it came back.
    pub(super) gone: Option<Instant>,
    pub(super) back: Option<Instant>,
    /// What it had carried at most when it went, in bytes a second.
    pub(super) carried: Option<u64>,
}

/// The outages of a link that are kept for whoever looks at a flow's history.
const OUTAGES_KEPT: usize = 32;

impl Link {
    pub(super) fn new(source: Option<LinkSource>) -> Self {
        Self {
            source,
            rate: None,
            record: Record::new(),
            is_said_to_flap: false,
            since: None,
            by: None,
            changes: 0,
            outages: VecDeque::new(),
            gone: None,
            back: None,
            carried: None,
        }
    }

    /// Describes the link of this leg, and how its modem is, if it has one.
    pub(super) fn describe(
        &self,
        leg: &str,
        modem: Option<ModemState>,
        now: Instant,
        date: SystemTime,
    ) -> LinkState {
        let source = self.source.as_ref();
        let left = |at: Instant| at.saturating_duration_since(now);
        LinkState {
            leg: leg.to_owned(),
            state: match self.record.state() {
                State::Up => LinkReport::Up,
                State::GoingDown => LinkReport::GoingDown,
                State::Gone => LinkReport::Gone,
            },
            source: source.map_or("pepd link".to_owned(), ToString::to_string),
            modem,
            since: self.since,
            by: self.by.clone(),
            up_at: self.record.deadline().map(|at| seconds(date + left(at))),
            flaps: self.record.flaps(),
            changes: self.changes,
            waiting: 0,
            outages: self.outages.iter().copied().collect(),
        }
    }

    /// Goes on with what a process before has known of it.
    pub(super) fn go_on(&mut self, noted: NotedLink) {
        self.record = Record::found(noted.state, noted.up_at());
        (self.gone, self.back) = (noted.gone(), noted.back());
        self.carried = noted.carried;
        self.since = noted.since;
        self.by = noted.by;
        self.changes = noted.changes;
        self.outages = noted.outages.into();
    }

    /// Notes that the state is another, and who has told that.
    pub(super) fn enter(&mut self, state: State, by: &str, now: SystemTime) {
        let now = seconds(now);
        self.since = Some(now);
        self.by = Some(by.to_owned());
        self.changes += 1;
        self.is_said_to_flap = false;
        let clock = Some(Instant::now());
        match state {
            State::Up => self.back = clock,
            State::GoingDown | State::Gone => self.gone = clock,
        }
        match (state, self.outages.back_mut()) {
            (State::Gone, _) => {
                if self.outages.len() == OUTAGES_KEPT {
                    self.outages.pop_front();
                }
                self.outages.push_back(Outage {
                    begun: now,
                    ended: None,
                });
            }
            (State::Up, Some(outage)) => {
                outage.ended.get_or_insert(now);
            }
            (State::Up, None) | (State::GoingDown, _) => {}
        }
    }
}

/// Gives a time in seconds since the Unix epoch.
pub(super) fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// Returns how fast what was held goes on over a link of this rate, beside connections that are split and go on at what
/// they delivered: an eighth of it at least.
pub(super) fn beside(rate: Rate, split: Rate) -> Rate {
    Rate(rate.0.saturating_sub(split.0).max(rate.0 / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_held_and_what_is_split_go_on_at_the_links_rate_together() {
        let rate = Rate(8_000_000);
        for (split, held) in [
            (0, 8_000_000),
            (3_000_000, 5_000_000),
            (9_000_000, 1_000_000),
        ] {
            assert_eq!(beside(rate, Rate(split)), Rate(held));
        }
    }
}
