//! `congestion = "auto"`: of each such leg it is looked what its connections have met, and told the relay which
//! congestion control new ones have. What follows from what is [`pepd_model::control_choice`]'s to say.

mod words;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pepd_admin::wire::{ChosenControl as Shown, HistoryStep, LegHistoryPoint, LegState, RateLimit};
use pepd_config::{Config, Congestion, Leg};
use pepd_model::control_choice::{Candidates, Change, Choice, Chosen, REST, Seen, Why};
use pepd_model::law::PAYLOAD;
use pepd_relay::{ChosenControl, Observer};

use crate::clock::unix_time;
use crate::daemon::controls::Controls;
use crate::daemon::latest::Latest;
use crate::daemon::remembered::{Learned, Legs};
use crate::time_limit;

/// The interval between two looks.
pub const LOOK: Duration = Duration::from_secs(10);

/// The time that the kernel may take to load bbr.
const PROBE_LIMIT: Duration = Duration::from_secs(15);

/// The legs whose congestion control is chosen.
#[derive(Debug)]
pub struct Choosing {
    legs: BTreeMap<String, OfLeg>,
    observer: Observer,
    figures: ChosenFigures,
}

/// What is chosen, for whoever asks.
pub type ChosenFigures = Latest<Vec<Shown>>;

#[derive(Debug)]
struct OfLeg {
    choice: Choice,
    candidates: Candidates,
    /// Where the relay finds it, by the kernel's names, which follow in the order of [`Chosen::ALL`].
    told: ChosenControl,
    names: [String; Chosen::ALL.len()],
    /// In seconds since the Unix epoch.
    since: f64,
}

/// Tells whether the kernel has bbr, where a leg may choose it. It may have to load a module.
pub async fn has_bbr(config: &Config) -> bool {
    if !config.legs.iter().any(is_chosen) {
        return false;
    }
    let name = Chosen::Bbr.name();
    let probed = time_limit::run_async(PROBE_LIMIT, move || pepd_relay::has_control(name)).await;
    let has = probed.unwrap_or_else(|why| {
        tracing::warn!("try {name}: {why}; does modprobe hang?");
        false
    });
    if !has {
        tracing::warn!(
            "the kernel has no {name}: congestion = \"auto\" has less to choose from (modprobe tcp_{name})"
        );
    }
    has
}

impl Choosing {
    /// Begins for the legs of a configuration; `observer` sees what their connections meet.
    pub fn new(config: &Config, controls: &Controls, has_bbr: bool, observer: Observer) -> Self {
        let mut choosing = Self {
            legs: BTreeMap::new(),
            observer,
            figures: ChosenFigures::default(),
        };
        choosing.follow(config, controls, has_bbr);
        choosing
    }

    /// Gives a handle on what is chosen.
    pub fn figures(&self) -> ChosenFigures {
        self.figures.clone()
    }

    /// Returns whether there is something to choose.
    pub fn is_needed(&self) -> bool {
        !self.legs.is_empty()
    }

    /// Chooses for the legs of another configuration from now on. What was chosen for one that is still there
    /// stays.
    pub fn follow(&mut self, config: &Config, controls: &Controls, has_bbr: bool) {
        let now = Instant::now();
        let mut before = std::mem::take(&mut self.legs);
        for leg in config.legs.iter().filter(|leg| is_chosen(leg)) {
            let Some(told) = controls.chosen(leg) else {
                continue;
            };
            let candidates = Candidates {
                bbr: has_bbr,
                find_rate: controls.can_find(leg),
            };
            let mut of_leg = before.remove(&leg.name).unwrap_or_else(|| {
                // It may be that of a leg of this name that there was before.
                told.choose(controls.name_of(leg, Chosen::default()));
                OfLeg {
                    choice: Choice::new(candidates, now),
                    candidates,
                    told,
                    names: Chosen::ALL.map(|chosen| controls.name_of(leg, chosen)),
                    since: unix_time(),
                }
            });
            if of_leg.candidates != candidates {
                of_leg.candidates = candidates;
                let change = of_leg.choice.choose_from(candidates, now);
                of_leg.tell(&leg.name, change);
            }
            self.legs.insert(leg.name.clone(), of_leg);
        }
        self.show();
    }

    /// Begins with what was chosen before, by a process that has ended.
    pub fn resume(&mut self, learned: &Legs, controls: &Controls, config: &Config) {
        let now = Instant::now();
        for leg in &config.legs {
            let before = learned.get(&leg.name).and_then(Learned::chosen);
            let (Some(before), Some(of_leg)) = (before, self.legs.get_mut(&leg.name)) else {
                continue;
            };
            of_leg.choice = Choice::resume(of_leg.candidates, before, now);
            of_leg
                .told
                .choose(controls.name_of(leg, of_leg.choice.chosen()));
        }
        self.show();
    }

    /// Gives what is chosen for each leg, where that is known by what its connections have met.
    pub fn learned(&self) -> impl Iterator<Item = (String, String)> {
        // What is on trial was not judged yet, and would not be by a process that finds it chosen.
        let is_met = |of_leg: &OfLeg| {
            !matches!(of_leg.choice.why(), Why::New | Why::Known) && !of_leg.choice.is_on_trial()
        };
        let known = self.legs.iter().filter(move |(_, of_leg)| is_met(of_leg));
        known.map(|(leg, of_leg)| (leg.clone(), of_leg.choice.chosen().name().to_owned()))
    }

    /// Looks what the connections have met, and chooses.
    pub fn look(&mut self, now: Instant) {
        if self.legs.is_empty() {
            return;
        }
        let flows = self.observer.flows();
        let states = flows.leg_states(now);
        for (name, leg) in &mut self.legs {
            let Some(state) = states.iter().find(|state| state.leg == *name) else {
                continue;
            };
            let time = now.saturating_duration_since(leg.choice.since()).min(REST);
            let since = flows.epoch() + flows.uptime(now) - time.as_secs_f64();
            let history = flows.leg_history(name, HistoryStep::Second, since);
            let points = history.map(|history| history.points).unwrap_or_default();
            let change = leg.choice.look(&seen(state, &points), now);
            leg.tell(name, change);
        }
        self.show();
    }

    fn show(&self) {
        let shown = self.legs.iter().map(|(name, leg)| leg.shown(name));
        self.figures.set(shown.collect());
    }
}

impl OfLeg {
    /// Has new connections have it, and logs it.
    fn tell(&mut self, leg: &str, change: Option<Change>) {
        let Some(change) = change else { return };
        self.since = unix_time();
        if let Some(name) = self.names.get(change.to as usize) {
            self.told.choose(name.clone());
        }
        tracing::info!(
            leg,
            from = change.from.name(),
            to = change.to.name(),
            reason = change.why.name(),
            "another congestion control for new connections: {}",
            words::why(change.why)
        );
    }

    fn shown(&self, leg: &str) -> Shown {
        let there = [
            (true, Chosen::Cubic),
            (self.candidates.bbr, Chosen::Bbr),
            (self.candidates.find_rate, Chosen::FindRate),
        ];
        let of = there.into_iter().filter(|(is_there, _)| *is_there);
        Shown {
            leg: leg.to_owned(),
            congestion: self.choice.chosen().name().to_owned(),
            of: of.map(|(_, chosen)| chosen.name().to_owned()).collect(),
            since: self.since,
            trial: self.choice.is_on_trial(),
            changes: self.choice.changes(),
            reason: self.choice.why().name().to_owned(),
            why: words::why(self.choice.why()),
        }
    }
}

fn is_chosen(leg: &Leg) -> bool {
    leg.congestion == Some(Congestion::Auto)
}

/// Adds up the seconds since the last choice, and the queue of the last five minutes: there is no choice before they are
/// all of it.
fn seen(state: &LegState, points: &[LegHistoryPoint]) -> Seen {
    let sum = |of: fn(&LegHistoryPoint) -> f64| points.iter().map(of).sum::<f64>();
    let segments = |bits: f64| bits / 8.0 / PAYLOAD;
    let busy = sum(|it| it.busy);
    let delivered = sum(|it| it.busy * it.sent * (1.0 - it.resent));
    let paths = points.iter().filter_map(|it| it.path);
    let (all, beside) = paths.fold((0, 0), |(all, beside), path| {
        (
            all + 1,
            beside + usize::from(path.limit == RateLimit::Others),
        )
    });
    let loaded = state.loaded_rtt;
    Seen {
        sent: segments(sum(|it| it.sent)),
        resent: segments(sum(|it| it.sent * it.resent)),
        busy,
        goodput: (busy > 0.0).then(|| delivered / busy),
        added: loaded.map(|it| it.added),
        idle: loaded.map(|it| it.median - it.added),
        others: all > 0 && 2 * beside > all,
    }
}

#[cfg(test)]
mod tests {
    use pepd_admin::fixture;
    use pepd_admin::wire::PathPoint;

    use super::*;

    #[test]
    fn what_was_met_is_added_up() {
        let state = fixture::status(3).legs.remove(0);
        let point = |busy, resent, limit: Option<RateLimit>| LegHistoryPoint {
            sent: 8.0 * 1000.0 * PAYLOAD,
            resent,
            busy,
            path: limit.map(|limit| PathPoint {
                limit,
                ..PathPoint::default()
            }),
            ..LegHistoryPoint::default()
        };
        let others = Some(RateLimit::Others);
        let points = [
            point(1.0, 0.02, others),
            point(0.0, 0.04, None),
            point(1.0, 0.0, others),
            point(1.0, 0.0, Some(RateLimit::Link)),
        ];
        let found = seen(&state, &points);
        assert!((found.sent - 4000.0).abs() < 1e-6 && (found.resent - 60.0).abs() < 1e-6);
        assert!((found.busy - 3.0).abs() < 1e-9 && found.others);
        let goodput = 8.0 * 2980.0 / 3.0 * PAYLOAD;
        assert!((found.goodput.unwrap() / goodput - 1.0).abs() < 1e-9);
        assert_eq!(seen(&state, &[]).goodput, None);
        assert!(!seen(&state, &points[3..]).others);
    }
}
