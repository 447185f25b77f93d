//! The last judgement on the box, for whoever asks.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use pepd_admin::wire::{Fit, Readiness};

use crate::ui::format::age;

/// The age from which on a judgement is none: the main thread, which makes one each second, hangs. The
/// gate closes by itself after the same time.
const OLDEST: Duration = Duration::from_secs(5);

/// How far an end has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draining {
    /// The connections that are left.
    pub left: u32,
    /// The time that they may still take.
    pub time: Duration,
    /// The box that they move to, if they do.
    pub to: Option<String>,
}

impl Draining {
    /// Says what the end waits for, and for how long.
    fn why(&self) -> String {
        let until = match (self.left, &self.to) {
            (0, None) => return "it is ending".to_owned(),
            (0, Some(to)) => {
                return format!(
                    "it is ending, when nothing comes here any more that is sent on to {to}: lead the routes there"
                );
            }
            (1, None) => "its last connection does".to_owned(),
            (left, None) => format!("its {left} connections do"),
            (1, Some(to)) => format!("its last connection has moved to {to}"),
            (left, Some(to)) => format!("its {left} connections have moved to {to}"),
        };
        let time = age(self.time.as_secs_f64());
        format!("it is ending, when {until}, in {time} at the latest")
    }
}

/// The last judgement, which is made by one thread and asked for by another.
#[derive(Clone, Debug, Default)]
pub struct Published(Arc<RwLock<Option<(Instant, Readiness)>>>);

impl Published {
    /// Takes a judgement of this moment.
    pub(super) fn set(&self, readiness: Readiness, now: Instant) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some((now, readiness));
    }

    /// Returns what is to be answered now; `draining` is there where the daemon is ending.
    pub fn get(&self, draining: Option<Draining>, now: Instant) -> Readiness {
        let last = self
            .0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let (age, mut readiness) = match last {
            Some((made, readiness)) => (now.saturating_duration_since(made), readiness),
            None => (Duration::ZERO, starting()),
        };
        if let Some(draining) = draining {
            let why = draining.why();
            no_new(&mut readiness, &why);
            if readiness.live.fit {
                readiness.live.why = Some(why.clone());
            }
            if draining.left == 0 {
                readiness.live = Fit::unfit(&*why);
                for campus in &mut readiness.campuses {
                    campus.live = Fit::unfit(&*why);
                }
            }
        } else if age >= OLDEST {
            // The keeper makes another process of a daemon that hangs, which goes on with what there is.
            let why = format!("its main thread has done nothing for {} s", age.as_secs());
            no_new(&mut readiness, &why);
        }
        readiness
    }
}

fn starting() -> Readiness {
    let why = "it is starting";
    Readiness {
        new: Fit::unfit(why),
        live: Fit::unfit(why),
        campuses: Vec::new(),
    }
}

fn no_new(readiness: &mut Readiness, why: &str) {
    readiness.new = Fit::unfit(why);
    for campus in &mut readiness.campuses {
        campus.new = Fit::unfit(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_not_ready_before_the_first_judgement_nor_with_one_that_is_old() {
        let now = Instant::now();
        let published = Published::default();
        let starting = published.get(None, now);
        assert!(!starting.new.fit && !starting.live.fit, "{starting:?}");
        let fit = Readiness {
            new: Fit::yes(),
            live: Fit::yes(),
            campuses: Vec::new(),
        };
        published.set(fit.clone(), now);
        assert_eq!(published.get(None, now + OLDEST / 2), fit);
        let old = published.get(None, now + OLDEST);
        assert!(!old.new.fit && old.live.fit, "{old:?}");
    }

    #[test]
    fn one_that_drains_keeps_what_it_has_until_nothing_is_left() {
        let now = Instant::now();
        let published = Published::default();
        let fit = Readiness {
            new: Fit::yes(),
            live: Fit::yes(),
            campuses: Vec::new(),
        };
        published.set(fit, now);
        // No judgement is made any more.
        let later = now + 100 * OLDEST;
        for (left, live) in [(2, true), (1, true), (0, false)] {
            let time = Duration::from_secs(25);
            let to = None;
            let drains = published.get(Some(Draining { left, time, to }), later);
            assert_eq!((drains.new.fit, drains.live.fit), (false, live), "{left}");
        }
    }

    #[test]
    fn one_that_drains_says_what_for_and_how_long() {
        let says_of = |left, seconds, to: Option<&str>| {
            let time = Duration::from_secs(seconds);
            let to = to.map(str::to_owned);
            Draining { left, time, to }.why()
        };
        let says = |left, seconds| says_of(left, seconds, None);
        assert_eq!(
            [says(2, 3600), says(1, 25), says(0, 25)],
            [
                "it is ending, when its 2 connections do, in 1h 0m at the latest",
                "it is ending, when its last connection does, in 25s at the latest",
                "it is ending",
            ]
        );
        let says = |left| says_of(left, 25, Some("hb-c"));
        assert_eq!(
            [says(2), says(1), says(0)],
            [
                "it is ending, when its 2 connections have moved to hb-c, in 25s at the latest",
                "it is ending, when its last connection has moved to hb-c, in 25s at the latest",
                "it is ending, when nothing comes here any more that is sent on to hb-c: lead the routes there",
            ]
        );
    }
}
