//! When a leg loses something, from random numbers that do not depend on what it does.

use std::collections::VecDeque;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};

use super::leg::Leg;
use super::line::Line;
use crate::random::{exponential, mixed};

/// The losses of a leg.
#[derive(Clone, Debug)]
pub(super) struct Losses {
    clock: Option<Clock>,
    plane: Option<Plane>,
}

/// Losses whatever is sent: a clock that rings after exponential times.
#[derive(Clone, Debug)]
struct Clock {
    random: Xoshiro256PlusPlus,
    rate: f64,
    next: f64,
}

/// Losses of what is sent: the points of a Poisson process of intensity p on (time × rate) that lie below the
/// rate (Baccelli et al., Fig. 19.10). It is drawn in bands of rate, each by itself, so that what one leg meets
/// does not depend on how high another got.
#[derive(Clone, Debug)]
struct Plane {
    seed: u64,
    /// The height of a band, packets a second.
    height: f64,
    /// Points of a band, each second.
    density: f64,
    bands: Vec<Band>,
}

#[derive(Clone, Debug)]
struct Band {
    random: Xoshiro256PlusPlus,
    drawn: f64,
    /// Times and rates of what has been drawn and is not over.
    points: VecDeque<(f64, f64)>,
}

impl Losses {
    pub(super) fn new(leg: &Leg, seed: u64) -> Self {
        let seed = mixed(seed, leg.stream);
        let clock = (leg.loss.per_second > 0.0).then(|| {
            let mut clock = Clock {
                random: Xoshiro256PlusPlus::seed_from_u64(mixed(seed, 0)),
                rate: leg.loss.per_second,
                next: 0.0,
            };
            clock.ring();
            clock
        });
        let usual = leg.usual();
        let is_moved = leg.aimd.is_some() && usual.is_finite() && usual > 0.0;
        let plane = (leg.loss.per_packet > 0.0 && is_moved).then(|| {
            // By what losses leave, so that legs which differ in p alone meet alike ones: a cap does not count.
            let mean = leg.aimd.map_or(usual, |aimd| aimd.mean(leg.loss));
            Plane {
                seed,
                height: mean,
                density: mean * leg.loss.per_packet,
                bands: Vec::new(),
            }
        });
        Self { clock, plane }
    }

    /// Gives when the next is, if the rate goes on along a line from `now` and not later than `until`.
    pub(super) fn next(&mut self, now: f64, line: Line, until: f64) -> Option<f64> {
        let by_clock = self.clock.as_mut().map(|clock| {
            while clock.next <= now {
                clock.ring();
            }
            clock.next
        });
        let until = by_clock.map_or(until, |time| time.min(until));
        let by_plane = self.plane.as_mut();
        let by_plane = by_plane.and_then(|plane| plane.next(now, line, until));
        by_plane.or_else(|| by_clock.filter(|time| *time <= until))
    }
}

impl Clock {
    fn ring(&mut self) {
        self.next += exponential(&mut self.random) / self.rate;
    }
}

impl Plane {
    fn next(&mut self, now: f64, line: Line, until: f64) -> Option<f64> {
        // In steps in which the rate rises by a band at most: far ahead it would be high above where the next
        // loss brings it down.
        let step = self.height / line.slope.max(self.height * self.density);
        let mut from = now;
        while from < until {
            let to = (from + step).min(until);
            let first = self.first_between(now, line, [from, to]);
            if first.is_some() {
                return first;
            }
            from = to;
        }
        None
    }

    fn first_between(&mut self, now: f64, line: Line, [from, until]: [f64; 2]) -> Option<f64> {
        let top = line.value.max(line.at(until - now));
        let mut first = None;
        let mut index = 0_u32;
        while f64::from(index) * self.height < top {
            let floor = f64::from(index) * self.height;
            let band = self.band(index);
            let until = first.unwrap_or(until);
            if let Some(time) = band.next(now, line, [from, until], floor) {
                first = Some(time);
            }
            index += 1;
        }
        first
    }

    fn band(&mut self, index: u32) -> BandAt<'_> {
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        while self.bands.len() <= at {
            let own = mixed(self.seed, self.bands.len() as u64 + 1);
            self.bands.push(Band {
                random: Xoshiro256PlusPlus::seed_from_u64(own),
                drawn: 0.0,
                points: VecDeque::new(),
            });
        }
        BandAt {
            band: &mut self.bands[at],
            height: self.height,
            density: self.density,
        }
    }
}

/// A band, with what all of them have in common.
struct BandAt<'p> {
    band: &'p mut Band,
    height: f64,
    density: f64,
}

impl BandAt<'_> {
    /// Gives the first point after `from` and not after `until` that lies below the line, which begins at `now`.
    fn next(self, now: f64, line: Line, [from, until]: [f64; 2], floor: f64) -> Option<f64> {
        let Self {
            band,
            height,
            density,
        } = self;
        while band.points.front().is_some_and(|point| point.0 <= now) {
            band.points.pop_front();
        }
        while band.drawn <= until {
            band.drawn += exponential(&mut band.random) / density;
            let place = floor + height * band.random.random::<f64>();
            if band.drawn > now {
                band.points.push_back((band.drawn, place));
            }
        }
        // Of a leg that carries little of what it could there are many before that lie above.
        let begun = band.points.partition_point(|point| point.0 <= from);
        let here = band.points.range(begun..);
        let mut here = here.take_while(|point| point.0 <= until);
        let below = here.find(|(time, place)| *place < line.at(time - now));
        below.map(|point| point.0)
    }
}
